"""Keeping sessions on disk: the driver's side of `broker_agent.core.keeping.journal`.

Writing happens in a thread, one write at a time; the event loop only says what to write. If the
disk fails, the broker goes on without it, says so once, and tries again until it works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker_agent.core.base.effects import BrokerEffect
from broker_agent.core.broker import Broker
from broker_agent.core.keeping.journal import Changes, Stored
from broker_agent.runtime.disk.session_store import SessionStore, SessionStoreError
from dynatops.kit.background import Supervisor
from dynatops.kit.filters import FilterError
from dynatops.kit.observing.log_operations import SAVING_FAILED, SAVING_RECOVERED

_RETRY_S = 2.0

log = logging.getLogger(__name__)


class Saving:
    def __init__(
        self,
        store: SessionStore,
        core: Broker,
        flush_s: float,
        now: Callable[[], float],
        perform: Callable[[Sequence[BrokerEffect]], None],
    ) -> None:
        self._store = store
        self._core = core
        self._flush_s = flush_s
        self._now = now
        self._perform = perform
        self._wanted = asyncio.Event()
        self._is_failing = False
        # Since when it fails.
        self._failing_s = 0.0
        self._stopping = False
        self._flushing: asyncio.Task[object] | None = None

    def restore(self, stored: Stored) -> None:
        """Give the core the sessions that were on disk. Raises SessionStoreError."""
        try:
            self._core.restore(stored, self._now())
        except FilterError as error:
            self._store.close()
            raise SessionStoreError(
                f"{self._store.path} has a filter that this version does not know ({error}); start "
                "the version that wrote it, or move the file away: its sessions begin anew then"
            ) from error

    @property
    def is_failing(self) -> bool:
        """Whether the disk did not take the last changes."""
        return self._is_failing

    @property
    def failing_for_s(self) -> float:
        return self._now() - self._failing_s if self._is_failing else 0.0

    def start(self, supervisor: Supervisor) -> None:
        self._flushing = supervisor.start("saving sessions", self._flush_forever(), may_end=True)

    def hurry(self) -> None:
        """Somebody waits for the disk."""
        self._wanted.set()

    async def _flush_forever(self) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(_RETRY_S if self._is_failing else self._flush_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            changes = self._core.unsaved()
            if changes is not None:
                await self._write(changes)

    async def _write(self, changes: Changes) -> None:
        try:
            await asyncio.to_thread(self._store.write, changes)
        except SessionStoreError as error:
            if not self._is_failing:
                SAVING_FAILED.log(
                    log,
                    f"sessions are not being saved: {error}; until they are, they do not survive "
                    f"a restart of this broker; trying again every {_RETRY_S:g} s",
                    error=str(error),
                )
                self._failing_s = self._now()
            self._is_failing = True
            self._perform(self._core.not_saved(self._now()))
            return
        if self._is_failing:
            self._is_failing = False
            SAVING_RECOVERED.log(log, f"sessions are being saved again, in {self._store.path}")
        self._perform(self._core.saved(self._now()))

    async def end_with(self, leave: Callable[[], None]) -> None:
        """Save everything as it is now, and `leave` with nothing in between."""
        self._stopping = True
        self._wanted.set()
        if self._flushing is not None:
            await asyncio.wait((self._flushing,))
        changes = self._core.unsaved(everything=True)
        leave()
        if changes is not None:
            await self._write(changes)

    async def save_departures(self) -> None:
        """Clients that went elsewhere while the broker was leaving need no session here."""
        changes = self._core.unsaved()
        if changes is not None:
            await self._write(changes)

    async def close(self) -> None:
        """Save no more."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        await asyncio.to_thread(self._store.close)
