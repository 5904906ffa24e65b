"""Rounds of jobs in one process: every so many seconds, until it is told to stop.

A round is what a run by itself would be, with a session of Spark that is there already. SIGTERM and
SIGINT end the waiting, or the round after the job that is under way: what counts is committed, so
nothing is cut off that matters. A second signal does what it always does. A round that fails is
told, and tried again at the next time; after some in a row the process ends, for whatever watches
it to see.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

FAILURES_MAX = 5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Whether SIGTERM or SIGINT came, from when it is entered."""

    def __init__(self) -> None:
        self.is_given = False
        # What is written to in a handler, and waited for outside of it: no lock is held in between.
        self._heard, self._said = socket.socketpair()

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        self._heard.close()
        self._said.close()

    def wait(self, seconds: float) -> bool:
        """Until it is given, or that much later; whether it is."""
        if not self.is_given:
            select.select([self._heard], [], [], max(0.0, seconds))
        return self.is_given

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_given = True
        self._said.send(b"!")
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)


def run_rounds(
    run_round: Callable[[], bool],
    *,
    every_s: float,
    wait: Callable[[float], bool],
    say: Callable[[str], None],
    now_s: Callable[[], float] = time.monotonic,
) -> bool:
    """`run_round` says whether it went well, `wait` whether to stop; whether the last one did.

    Rounds begin `every_s` apart; one that takes longer is followed by the next at once.
    """
    failures = 0
    while True:
        begun_s = now_s()
        is_well = run_round()
        failures = 0 if is_well else failures + 1
        if failures >= FAILURES_MAX:
            say(f"{failures} rounds in a row have failed: giving up")
            return False
        if failures:
            say(f"round failed, {failures} of {FAILURES_MAX} in a row; next one in {every_s:g} s")
        if wait(begun_s + every_s - now_s()):
            return is_well
