"""What every workload is: brokers with places, topics, and users whose interests change in steps.

A workload is a stream: steps are made while they are asked for, and asking again gives the same. In
a step, users change one after the other. What a user drops it had, what it adds it had not; its
first change is its arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from experiments.sites import Floats, Ints, Sites, Topics


class UserChange(NamedTuple):
    user: int
    # The cell in which it is now; 0 where the workload has no places.
    cell: int
    dropped: tuple[int, ...]
    added: tuple[int, ...]


class Step(NamedTuple):
    """All changes until this time, since that of the step before."""

    at_h: float
    changes: list[UserChange]


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
