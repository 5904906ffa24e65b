"""Virtual time: things happen in order of their time; at equal times, of being planned."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import TextIO

Action = Callable[[], None]
# Lines of a trace that are digested together.
_LINES_AT_ONCE = 1_000


class Scheduler:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Action]] = []
        self._planned = 0

    def after(self, delay_s: float, action: Action) -> None:
        self._planned += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._planned, action))

    def run_until(self, end_s: float) -> None:
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= end_s:
            self.now_s, _, action = pop(queue)
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
        # What is not in the digest yet.
        self._waiting: list[str] = []
        self.lines = 0

    def note(self, line: str) -> None:
        text = f"{self._scheduler.now_s:10.4f} {line}\n"
        self.lines += 1
        self._waiting.append(text)
        if len(self._waiting) >= _LINES_AT_ONCE:
            self._digest_waiting()
        if self._out is not None:
            self._out.write(text)

    def _digest_waiting(self) -> None:
        self._digest.update("".join(self._waiting).encode())
        self._waiting.clear()

    @property
    def digest(self) -> str:
        self._digest_waiting()
        return self._digest.hexdigest()
