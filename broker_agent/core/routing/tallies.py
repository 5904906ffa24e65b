"""What was counted of topics here, for several who take it at times of their own."""

from __future__ import annotations

from collections.abc import Mapping

from dynatops.kit.bounded import BoundedTable
from overlay.history.reigns import TopicTally


class Tallies:
    def __init__(self, topics_max: int, counters: object, counter: str) -> None:
        """`counter`: of those, what counts topics that had to go for others."""
        self._topics_max = topics_max
        self._counters = counters
        self._counter = counter
        # By who takes it, by topic; each has counts of its own.
        self._takers: dict[str, BoundedTable[str, TopicTally]] = {}

    def open(self, taker: str) -> None:
        if taker not in self._takers:
            self._takers[taker] = self._empty()

    def _empty(self) -> BoundedTable[str, TopicTally]:
        """A taker that never comes must not cost more and more."""
        return BoundedTable(self._topics_max, self._counters, self._counter)

    def add(self, counted: Mapping[str, TopicTally]) -> None:
        """For all who take."""
        for tallies in self._takers.values():
            for topic, more in counted.items():
                tally = tallies.get(topic)
                if tally is None:
                    tally = tallies[topic] = TopicTally()
                else:
                    tallies.move_to_end(topic)
                tally.events += more.events
                tally.nbytes += more.nbytes
                tally.requests += more.requests

    def take_tally(self, taker: str) -> dict[str, TopicTally]:
        """What was added for this one since its last call; nothing for a stranger."""
        taken = self._takers.get(taker)
        if taken is None:
            return {}
        self._takers[taker] = self._empty()
        return taken
