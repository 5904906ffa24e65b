"""One client's connection: messages in to the core, and the session's output out, as fast as it is
taken. What carries them is a `ClientWire`, and all that differs from one listener to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from broker_agent.core.base.effects import (
    CloseConnection,
    ConnectionEffect,
    PauseReading,
    ResumeReading,
    Wake,
)
from dynatops.kit.pacing import Pacer
from dynatops.kit.serving.first_reads import FirstReads

_UNTAKEN_GOODBYE_S = 5.0
_UNTAKEN_OUTPUT_S = 5.0

log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """There is nobody at the other end of a wire any more, however that was noticed."""


class ClientWire(Protocol):
    """The broker's end of what leads to one client. Never read twice at a time, nor written."""

    @property
    def host(self) -> str:
        """Where the client is, as strangers are counted (`dynatops.kit.addresses.counted_as`)."""

    async def read(self) -> bytes | None:
        """The client's next message, whole, and no larger than `runtime.message_bytes_max`; None if
        it has nothing more to say. What nobody has asked for is not taken in, but for a small
        buffer: strangers are asked a few at a time. Raises ClientGoneError."""

    async def write(self, output: bytes) -> None:
        """Returns when there is room for more: until then what comes waits in the session, within
        its bounds. Raises ClientGoneError."""

    async def close(self, reason: str) -> None:
        """End it: in order, and what was written goes out still, if that is taken soon; or, with a
        reason, as broken. It may have ended by itself."""


class ClientConnection:
    def __init__(self, wire: ClientWire) -> None:
        self._wire = wire
        self._work = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._ending = False
        # Nobody takes anything any more.
        self._gone = False
        self._reading: asyncio.Task[None] | None = None

    @property
    def host(self) -> str:
        """Where the client is."""
        return self._wire.host

    # ---- what the core wants --------------------------------------------------------------------

    def perform(self, effect: ConnectionEffect) -> None:
        match effect:
            case PauseReading():
                self._may_read.clear()
            case ResumeReading():
                self._may_read.set()
            case Wake():
                self._wake()
            case CloseConnection():
                if not self._ending:
                    # The client may neither take the goodbye nor say another word.
                    loop = asyncio.get_running_loop()
                    loop.call_later(_UNTAKEN_GOODBYE_S, self._stop_reading)
                self._ending = True
                self._wake()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _wake(self) -> None:
        if not self._gone:
            self._flushed.clear()
            self._work.set()

    async def flushed(self) -> None:
        """Wait until everything queued has been handed to the network."""
        await self._flushed.wait()

    # ---- moving messages ------------------------------------------------------------------------

    async def serve(
        self,
        on_bytes: Callable[[bytes], None],
        take_output: Callable[[], bytes],
        first_reads: FirstReads,
    ) -> None:
        """Until the client goes or the core ends the session."""
        reading = self._reading = asyncio.create_task(self._read_all(on_bytes, first_reads))
        writing = asyncio.create_task(self._write_all(take_output))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            self._gone = True
            self._work.set()
            # A wire that is in the middle of a write cannot be ended: gRPC would refuse, and the
            # client wait for ever.
            await asyncio.wait((writing,), timeout=_UNTAKEN_OUTPUT_S)
        finally:
            self._gone = True
            self._flushed.set()
            for task in (reading, writing):
                task.cancel()
            problems = await asyncio.gather(reading, writing, return_exceptions=True)
        for problem in problems:
            if isinstance(problem, ClientGoneError):
                log.debug("a client went: %r", problem.__cause__ or problem)
            elif isinstance(problem, Exception):
                raise problem

    async def _read_all(self, on_bytes: Callable[[bytes], None], first_reads: FirstReads) -> None:
        # What comes first is a hello, or the last that is read.
        wire = self._wire
        raw = await first_reads.read(wire.host, wire.read)
        while raw is not None:
            on_bytes(raw)
            # Not held on to while nothing comes: it may be large.
            raw = None
            if self._ending:
                # What a client says after it was told goodbye is of no interest; wait for the end.
                await asyncio.sleep(_UNTAKEN_GOODBYE_S)
                return
            await self._may_read.wait()
            raw = await wire.read()

    async def _write_all(self, take_output: Callable[[], bytes]) -> None:
        pacer = Pacer()
        while True:
            await self._work.wait()
            if not (self._ending or self._gone):
                await pacer.turn()
            self._work.clear()
            while not self._gone and (output := take_output()):
                pacer.wrote(len(output))
                await self._wire.write(output)
            if self._gone:
                return
            if not self._work.is_set():
                self._flushed.set()
                if self._ending:
                    return
