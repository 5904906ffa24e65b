"""What is published in a made-up world: each topic at a rate of its own, by the time of day."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dynatops.lake.fields import HOUR_S
from dynatops.local.made_up_lake.days import HOURS, busyness
from dynatops.local.made_up_lake.world import Floats, LakeWorld

# Whole parts of an hour.
_WINDOWS_S = (3600, 1800, 900, 600, 300, 120, 60, 30, 20, 10, 5, 2, 1)
# Of pairs of a window and a topic, those with events, at most on average: else topics would all
# have something in every window.
_FILLED_MAX = 0.5
# Pairs drawn at once.
_BLOCK_PAIRS = 2_000_000

Counts = NDArray[np.int64]
# Window, topic, events and bytes of each row.
Block = tuple[Counts, Counts, Counts, Counts]


class Traffic:
    def __init__(self, world: LakeWorld, rng: np.random.Generator) -> None:
        """Raises ValueError if so few topics cannot make so many rows."""
        self._world = world
        self._rng = rng
        spec = world.spec
        pairs_s = spec.days * HOURS * HOUR_S * spec.topics
        fitting = [w for w in _WINDOWS_S if pairs_s / w * _FILLED_MAX >= spec.rows]
        if not fitting:
            raise ValueError(
                f"{spec.topics:,} topics make at most {int(pairs_s * _FILLED_MAX):,} rows in "
                f"{spec.days} days, not {spec.rows:,}"
            )
        self.window_s = fitting[0]
        busy = np.stack([busyness(hour, world.topic_longitude) for hour in range(HOURS)])
        self._busy = busy.astype(np.float32)
        self._scale = self._scale_for(spec.rows / spec.days)

    def _scale_for(self, rows_per_day: float) -> float:
        """Events in a window for a rate of 1, such that so many windows have any."""
        # A fair sample: every topic in some hours.
        hours = range(0, HOURS, 4 if self._world.spec.topics > 10_000 else 1)
        load = (self._busy[hours] * self._world.topic_rate).astype(np.float32)
        windows = HOUR_S / self.window_s * HOURS / len(hours)
        low, high = -30.0, 30.0
        for _ in range(40):
            middle = (low + high) / 2
            filled = -np.expm1(-load * np.float32(np.exp(middle)))
            too_many = windows * float(filled.sum(dtype=np.float64)) > rows_per_day
            low, high = (low, middle) if too_many else (middle, high)
        return float(np.exp((low + high) / 2))

    def hour(self, hour: int) -> Iterator[Block]:
        """Portions, in order of windows."""
        mean = self._world.topic_rate * self._busy[hour] * self._scale
        windows = HOUR_S // self.window_s
        at_once = max(1, _BLOCK_PAIRS // len(mean))
        for first in range(0, windows, at_once):
            count = min(at_once, windows - first)
            yield self._block(first, count, mean)

    def _block(self, first: int, windows: int, mean: Floats) -> Block:
        drawn = self._rng.poisson(mean, (windows, len(mean)))
        filled = np.flatnonzero(drawn)
        window, topic = np.divmod(filled, len(mean))
        events = drawn.ravel()[filled]
        nbytes = (events * self._world.topic_bytes[topic]).astype(np.int64)
        return window + first, topic, events, nbytes
