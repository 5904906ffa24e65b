"""What was counted of topics here, for several who take it at times of their own."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.reigns import Tally


class Tallies:
    def __init__(self) -> None:
        # By who takes it, by topic; each has counts of its own.
        self._takers: dict[str, dict[str, Tally]] = {}

    def open(self, taker: str) -> None:
        self._takers.setdefault(taker, {})

    def add(self, counted: Mapping[str, Tally]) -> None:
        """For all who take."""
        for tallies in self._takers.values():
            for topic, more in counted.items():
                tally = tallies.get(topic)
                if tally is None:
                    tally = tallies[topic] = Tally()
                tally.events += more.events
                tally.nbytes += more.nbytes
                tally.requests += more.requests

    def take(self, taker: str) -> dict[str, Tally]:
        """What was added for this one since its last call; nothing for a stranger."""
        taken = self._takers.get(taker)
        if taken is None:
            return {}
        self._takers[taker] = {}
        return taken
