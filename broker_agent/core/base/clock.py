"""Time as timeouts should see it."""

from __future__ import annotations

from broker_agent.core.base.counters import BrokerCounters


class SteadyClock:
    """Turns readings of a clock that may jump into time that passes evenly."""

    def __init__(self, step_max_s: float, counters: BrokerCounters) -> None:
        self._step_max_s = step_max_s
        self._counters = counters
        self._read_s: float | None = None
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        """As of the last reading."""
        return self._now_s

    def at(self, reading_s: float) -> float:
        step_s = reading_s - self._read_s if self._read_s is not None else 0.0
        self._read_s = reading_s
        if not 0.0 <= step_s <= self._step_max_s:
            self._counters.clock_jumps += 1
            step_s = min(max(step_s, 0.0), self._step_max_s)
        self._now_s += step_s
        return self._now_s
