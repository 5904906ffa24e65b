"""When a subscription is in place: once every neighbour that was told of it has said so.

Whoever asks, a neighbour with a version of its table or this broker with a filter, waits for what
had been told to all others by then. Neighbours that are away are not waited for: when they come
back they are told the whole table before anything else. The tree has no circles, nor has the
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dynatops.kit.bounded import BoundedQueue
from overlay.forwarding.links.neighbours import TreeNeighbour


@dataclass(frozen=True, slots=True)
class _Waiting:
    done: Callable[[], None]
    # Of each neighbour: the session, and the version told in it.
    told: Mapping[str, tuple[int, int]]


class Confirmations:
    def __init__(
        self,
        waiting_max: int,
        counters: object,
        start_patience_s: float,
        answered: Callable[[TreeNeighbour], int],
    ) -> None:
        """`answered` is the version that a neighbour has said this of."""
        self._answered = answered
        self._waiting_max = waiting_max
        self._counters = counters
        self._start_patience_s = start_patience_s
        # By who asks: what is asked first is in place first.
        self._waiting: dict[str, BoundedQueue[_Waiting]] = {}

    def wait(
        self, asker: str, neighbours: Iterable[TreeNeighbour], done: Callable[[], None]
    ) -> None:
        """`done` is called when what the asker wants now is in place."""
        told = {
            n.broker_id: (n.session, n.told_version)
            for n in neighbours
            if n.broker_id != asker and (n.is_open or not n.session)
        }
        queue = self._waiting.get(asker)
        if queue is None:
            queue = self._waiting[asker] = BoundedQueue(
                self._waiting_max, self._counters, "confirmations_dropped"
            )
        queue.put(_Waiting(done, told))

    def forget(self, asker: str) -> None:
        self._waiting.pop(asker, None)

    def settle(self, neighbours: Mapping[str, TreeNeighbour], age_s: float) -> None:
        """Call `done` of all that is in place. This broker's life is so old."""
        for queue in self._waiting.values():
            while queue and self._is_in_place(queue[0], neighbours, age_s):
                queue.take().done()

    def _is_in_place(
        self, waiting: _Waiting, neighbours: Mapping[str, TreeNeighbour], age_s: float
    ) -> bool:
        return all(
            self._has_confirmed(neighbours.get(broker_id), session, version, age_s)
            for broker_id, (session, version) in waiting.told.items()
        )

    def _has_confirmed(
        self, neighbour: TreeNeighbour | None, session: int, version: int, age_s: float
    ) -> bool:
        if neighbour is None:
            return True
        if not neighbour.session:
            return age_s >= self._start_patience_s
        if not neighbour.is_open:
            return True
        # A newer session began with the whole table, which is its first version.
        needed = version if neighbour.session == session else 1
        return self._answered(neighbour) >= needed
