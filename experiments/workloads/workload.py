"""What every workload is: brokers with places, topics, and users whose interests change in steps.

A workload is a stream: steps are made while they are asked for, and asking again gives the same. In
a step, users change one after the other. What a user drops it had, what it adds it had not; its
first change is its arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from experiments.sites import Floats, Ints, Sites, Topics


class UserChange(NamedTuple):
    user: int
    # The cell in which it is now; 0 where the workload has no places.
    cell: int
    dropped: tuple[int, ...]
    added: tuple[int, ...]


class UserChanges(NamedTuple):
    """Changes one after the other, in columns: there are millions of them."""

    users: Ints
    cells: Ints
    # Of change i: dropped[first_dropped[i] : first_dropped[i + 1]]; what is added alike.
    first_dropped: Ints
    dropped: Ints
    first_added: Ints
    added: Ints

    @classmethod
    def of(cls, changes: Iterable[UserChange]) -> UserChanges:
        rows = list(changes)
        return cls(
            np.array([row.user for row in rows], dtype=np.int32),
            np.array([row.cell for row in rows], dtype=np.int32),
            *_joined([row.dropped for row in rows]),
            *_joined([row.added for row in rows]),
        )

    @property
    def size(self) -> int:
        return len(self.users)

    def rows(self) -> Iterator[UserChange]:
        dropped, added = self.dropped.tolist(), self.added.tolist()
        from_dropped, from_added = self.first_dropped.tolist(), self.first_added.tolist()
        for i, (user, cell) in enumerate(
            zip(self.users.tolist(), self.cells.tolist(), strict=True)
        ):
            yield UserChange(
                user,
                cell,
                tuple(dropped[from_dropped[i] : from_dropped[i + 1]]),
                tuple(added[from_added[i] : from_added[i + 1]]),
            )


def _joined(rows: list[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """Where each row begins, and all of them."""
    first = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=first[1:])
    return first, np.array([value for row in rows for value in row], dtype=np.int32)


class Step(NamedTuple):
    """All changes until this time, since that of the step before."""

    at_h: float
    changes: UserChanges


class UserPublication(NamedTuple):
    """A publication: by whom, where the user is, and on which topic."""

    user: int
    cell: int
    topic: int


class Workload(Protocol):
    @property
    def users(self) -> int: ...

    @property
    def sites(self) -> Sites: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def follows_max(self) -> int:
        """As many topics a user follows at most."""

    @property
    def settled_h(self) -> float:
        """Steps until here bring users in; what happens in them is not measured."""

    @property
    def end_h(self) -> float: ...

    @property
    def broker_of_cell(self) -> Ints:
        """[cell] -> the broker that is responsible for users there."""

    def steps(self) -> Iterator[Step]: ...

    def rates(self) -> Floats:
        """[topic] -> events an hour, as the last step has left it."""

    def publications(self, count: int, rng: np.random.Generator) -> list[UserPublication]:
        """Some of what is published now, drawn as it happens."""

    def access_ms(self, cells: Ints, brokers: Ints) -> Floats:
        """Round trips between users in these cells and these brokers."""
