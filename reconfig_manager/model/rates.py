"""Topics as numbers, and how often something happens in each (DYNATOPS eq. 12).

In every period each broker's counts are divided by the time that they were counted for, and summed
over brokers; the estimate takes that in with weight alpha. A broker that did not report in a period
counts as in the one before: otherwise a late report would look like silence, and then like a burst.
A topic's first observation is its first estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from overlay.placement.cost_kernels import Floats, Ints

_NO_INTS: Ints = np.empty(0, dtype=np.int32)
_NO_FLOATS: Floats = np.empty(0)


class TopicNumbers:
    """Names of topics <-> small numbers, which are given out again once a topic is forgotten."""

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        # Topics that were not taken in because there are too many.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def bound(self) -> int:
        """Numbers are below this."""
        return len(self._names)

    def number(self, name: str) -> int | None:
        """A new one if need be; None if there are too many topics."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if len(self._numbers) >= self._topics_max:
            self.refused += 1
            return None
        if self._free:
            number = self._free.pop()
            self._names[number] = name
        else:
            number = len(self._names)
            self._names.append(name)
        self._numbers[name] = number
        return number

    def numbers(self, names: Iterable[str]) -> Ints:
        """Ascending, without repeats and those past the limit."""
        found = [number for name in names if (number := self.number(name)) is not None]
        return np.unique(np.array(found, dtype=np.int32)) if found else _NO_INTS

    def known(self, name: str) -> int | None:
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        return self._names[number]

    def forget_topic(self, number: int) -> None:
        del self._numbers[self._names[number]]
        self._free.append(number)


@dataclass(slots=True)
class _Observed:
    """Of one broker."""

    counts: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    # Of the last period with a report.
    numbers: Ints = field(default_factory=lambda: _NO_INTS)
    rates: Floats = field(default_factory=lambda: _NO_FLOATS)


class Rates:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._estimates: Floats = np.zeros(0)
        self._known: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        # Periods without an event.
        self._idle: Ints = np.zeros(0, dtype=np.int32)
        self._observed: dict[str, _Observed] = {}
        self.periods = 0

    def count(self, broker_id: str, counts: Iterable[tuple[int, int]], seconds: float) -> None:
        observed = self._observed.setdefault(broker_id, _Observed())
        observed.seconds += seconds
        total = observed.counts
        for number, events in counts:
            total[number] = total.get(number, 0) + events

    def forget_broker(self, broker_id: str) -> None:
        self._observed.pop(broker_id, None)

    def restore(self, rates: Mapping[int, float], size: int) -> None:
        """Begin with these."""
        self._grow(size)
        for number, rate in rates.items():
            self._estimates[number] = rate
            self._known[number] = True

    def close_period(self, size: int) -> None:
        """eq. 12. Nothing happens in a period in which nobody reported."""
        if not any(observed.seconds > 0 for observed in self._observed.values()):
            return
        self._grow(size)
        seen = np.zeros(len(self._estimates))
        for broker_id in sorted(self._observed):
            observed = self._observed[broker_id]
            if observed.seconds > 0:
                _settle(observed)
            seen[observed.numbers] += observed.rates
        first = ~self._known & (seen > 0)
        self._estimates += self._alpha * (seen - self._estimates)
        self._estimates[first] = seen[first]
        self._known |= first
        self._idle = np.where(seen > 0, 0, self._idle + 1).astype(np.int32)
        self.periods += 1

    def idle(self, periods: int) -> Ints:
        """Topics without events for so many periods."""
        return np.nonzero(self._idle >= periods)[0].astype(np.int32)

    def forget_topic(self, number: int) -> None:
        self._estimates[number] = 0.0
        self._known[number] = False
        self._idle[number] = 0
        for observed in self._observed.values():
            observed.counts.pop(number, None)

    def estimates(self, size: int) -> Floats:
        """[topic number] -> events/s. A copy."""
        self._grow(size)
        return self._estimates[:size].copy()

    def _grow(self, size: int) -> None:
        more = size - len(self._estimates)
        if more > 0:
            more += size // 2
            self._estimates = np.concatenate([self._estimates, np.zeros(more)])
            self._known = np.concatenate([self._known, np.zeros(more, dtype=np.bool_)])
            self._idle = np.concatenate([self._idle, np.zeros(more, dtype=np.int32)])


def _settle(observed: _Observed) -> None:
    size = len(observed.counts)
    observed.numbers = np.fromiter(observed.counts, dtype=np.int32, count=size)
    counts = np.fromiter(observed.counts.values(), dtype=np.float64, count=size)
    observed.rates = counts / observed.seconds
    observed.counts = {}
    observed.seconds = 0.0
