"""A store's log in a broker that runs: what its core wants of the log, and what it is told.

    AppendToLog  --> wait, bounded --> a group --> written, synced --> AppendStored, AppendRefused
    ReadOrder    --> wait, bounded --> between groups ---------------> PastOutput
                                       what is not retained is dropped, a segment at a time

While one group is being synced, the next gathers: under load groups are as large as they may be,
and an event alone waits for nobody. All of it happens in one thread of its own; this end belongs to
the event loop. What the log has to say besides comes as notices, to be logged and told to the core.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_files import LogFilesError
from broker_agent.core.stores.log.log_notices import LogNotice
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendToLog,
    LogOutcome,
)
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion
from dynatops.kit.background import Supervisor
from dynatops.kit.bounded import BoundedQueue, Past
from dynatops.v1.overlay_pb2 import PastError

# Answers between two groups, so that appends do not wait for many readers.
_READS_TOGETHER = 4


class PastOutput(NamedTuple):
    """What was read for somebody, or why nothing was."""

    key: ServedKey
    portion: StorePortion


LogOutput = LogOutcome | PastOutput | LogNotice


class _WaitingAppend(NamedTuple):
    append: AppendToLog
    nbytes: int


class LogDriver:
    def __init__(
        self,
        log: EventLog,
        settings: LogSettings,
        deliver: Callable[[Sequence[LogOutput]], None],
        clock_us: Callable[[], int],
    ) -> None:
        """`deliver` is called in the event loop; `clock_us` has the time of day."""
        self._log = log
        self._settings = settings
        self._deliver = deliver
        self._clock_us = clock_us
        counters = log.counters
        self._appends: BoundedQueue[_WaitingAppend] = BoundedQueue(
            settings.appends_max, counters, "log_appends_refused", past=Past.NEWEST,
            weigh=lambda waiting: waiting.nbytes, weight_max=settings.waiting_bytes_max,
        )  # fmt: skip
        self._reads: BoundedQueue[ReadOrder] = BoundedQueue(
            settings.reads_max, counters, "log_reads_refused", past=Past.NEWEST
        )
        self._wanted = asyncio.Event()
        self._stopping = False
        self._working: asyncio.Task[object] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-log")

    def start(self, supervisor: Supervisor) -> None:
        self._working = supervisor.start("the store's log", self._work_forever(), may_end=True)

    def append(self, append: AppendToLog) -> None:
        nbytes = sum(len(row.data) for row in append.rows)
        if not self._appends.put(_WaitingAppend(append, nbytes)):
            reason = "more waits to be written than may; it may come again"
            self._deliver([AppendRefused(append.number, AppendRefusal.BUSY, reason)])
        self._wanted.set()

    def read(self, order: ReadOrder) -> None:
        if not self._reads.put(order):
            message = "too many read from this store's log at a time"
            refusal = StorePortion(error=PastError.PAST_ERROR_OVERLOADED, message=message)
            self._deliver([PastOutput(order.key, refusal)])
        self._wanted.set()

    async def _work_forever(self) -> None:
        loop = asyncio.get_running_loop()
        tend_at_s = loop.time() + self._settings.retention_interval_s
        while not self._stopping or self._appends or self._reads:
            is_due = loop.time() >= tend_at_s and not self._stopping
            if not self._appends and not self._reads and not is_due:
                await self._wait(tend_at_s)
                continue
            work = self._group(), self._next_reads(), is_due
            outputs, has_more = await loop.run_in_executor(self._thread, self._work, *work)
            if is_due and not has_more:
                tend_at_s = loop.time() + self._settings.retention_interval_s
            self._deliver(outputs)

    async def _wait(self, until_s: float) -> None:
        self._wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._wanted.wait()

    def _group(self) -> list[AppendToLog]:
        group: list[AppendToLog] = []
        nbytes = 0
        while self._appends and (not group or nbytes < self._settings.group_bytes_max):
            waiting = self._appends.take()
            group.append(waiting.append)
            nbytes += waiting.nbytes
        return group

    def _next_reads(self) -> list[ReadOrder]:
        return [self._reads.take() for _ in range(min(_READS_TOGETHER, len(self._reads)))]

    def _work(
        self, appends: Sequence[AppendToLog], reads: Sequence[ReadOrder], is_due: bool
    ) -> tuple[list[LogOutput], bool]:
        """In the log's thread. The second: whether there is more to be tended."""
        outputs: list[LogOutput] = []
        if appends:
            outputs += self._log.commit(appends)
        outputs += [PastOutput(order.key, self._portion(order)) for order in reads]
        has_more = is_due and self._log.tend(self._clock_us())
        outputs += self._log.take_notices()
        return outputs, has_more

    def _portion(self, order: ReadOrder) -> StorePortion:
        try:
            return read_past(self._log, order)
        except LogFilesError as error:
            return StorePortion(error=PastError.PAST_ERROR_DAMAGED, message=str(error))

    async def stop(self) -> None:
        """What waits is written first. Raises LogFilesError, if the log could not be closed in
        order."""
        self._stopping = True
        self._wanted.set()
        if self._working is not None:
            await asyncio.wait([self._working])
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._log.close)
        finally:
            self._thread.shutdown()
