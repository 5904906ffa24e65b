"""Counting what is too much to count at once: a broker may have 100,000 topics and more sessions.

The core counts a few thousand things at each step, so that nobody waits for it; the result of a
round stands until the next one is there. Figures made of it are some seconds old.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.broker import Broker

_AT_ONCE = 2_000
_PERIOD_S = 2.0


class Census:
    def __init__(self, core: Broker) -> None:
        self.last = BrokerCounts()
        self._core = core
        self._round: Iterator[None] | None = None
        self._next_s = 0.0

    def step(self, now_s: float) -> None:
        if self._round is None:
            if now_s < self._next_s:
                return
            self._round = self._count()
            self._next_s = now_s + _PERIOD_S
        if next(self._round, self) is self:
            self._round = None

    def _count(self) -> Iterator[None]:
        self.last = yield from self._core.count_in_steps(_AT_ONCE)
