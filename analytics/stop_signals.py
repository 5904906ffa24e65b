"""Signals to stop: noticed in time, and never in the middle of what they may not interrupt."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def put_off(number: signal.Signals) -> Iterator[None]:
    """The signal takes effect when this is over; at once, if it comes a second time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(number)
    has_come = False

    def note(_: int, frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        signal.signal(number, former)

    signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, former)
    if has_come:
        signal.raise_signal(number)


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
