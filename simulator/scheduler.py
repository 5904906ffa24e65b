"""Virtual time: things happen in order of their time; at equal times, of being planned."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import TextIO

Action = Callable[[], None]


class Scheduler:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Action]] = []
        self._planned = 0

    def after(self, delay_s: float, action: Action) -> None:
        self._planned += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._planned, action))

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        self.now_s = end_s


class Trace:
    """What happened, as lines; kept only as a digest unless somewhere to write it is given.

    Two runs of one seed have the same trace, byte for byte.
    """

    def __init__(self, scheduler: Scheduler, out: TextIO | None = None) -> None:
        self._scheduler = scheduler
        self._out = out
        self._digest = hashlib.sha256()
        self.lines = 0

    def note(self, line: str) -> None:
        text = f"{self._scheduler.now_s:10.4f} {line}\n"
        self.lines += 1
        self._digest.update(text.encode())
        if self._out is not None:
            self._out.write(text)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
