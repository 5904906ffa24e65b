"""Which broker subscribes to which topic, for networks that keep no other list of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.systems.system import Ints, Pairs


class SubscribedPairs:
    def __init__(self, brokers: int, topics: int) -> None:
        # Of topic and broker: whether it subscribes.
        self.table: NDArray[np.bool_] = np.zeros((topics, brokers), dtype=np.bool_)

    def changes(self, joins: Pairs, leaves: Pairs) -> Iterator[tuple[int, int, bool]]:
        """Broker, topic, and whether it joins: in the order of rule 2, each written down before it
        is yielded."""
        for rows, joining in ((leaves, False), (joins, True)):
            for broker, topic in rows.tolist():
                self._write(broker, topic, joining)
                yield broker, topic, joining

    def _write(self, broker: int, topic: int, joining: bool) -> None:
        if bool(self.table[topic, broker]) == joining:
            state = "subscribes already" if joining else "does not subscribe"
            raise ValueError(f"broker {broker} {state} to topic {topic}")
        self.table[topic, broker] = joining

    def of_topic(self, topic: int) -> Ints:
        """Subscribing brokers, ascending."""
        found: Ints = np.flatnonzero(self.table[topic]).astype(np.int32)
        return found
