"""A broker that is a store: from its core to its log, and back.

    core --"there is something"--> take rows --> LogDriver: written, synced --outcomes--> core
              ^----------------- room again --------------'

No more is taken from the core than the disk is about to write: what waits longer, waits in the
core, which knows what to do if it becomes too much.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_agent.core.base.effects import BrokerEffect
from broker_agent.core.broker import Broker
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_counters import LogCounters
from broker_agent.core.stores.log.log_files import LogFilesError
from broker_agent.core.stores.log.log_requests import (
    AppendRefused,
    AppendStored,
)
from broker_agent.core.stores.store_options import StoreAssignment, StoreOptions
from broker_agent.core.stores.store_reader import ReadOrder
from broker_agent.process_settings import BrokerSettings
from broker_agent.retention_text import retention_rules
from broker_agent.runtime.disk.assignment_file import AssignmentFile
from broker_agent.runtime.eventlog.disk_files import DiskLogFiles
from broker_agent.runtime.eventlog.log_driver import LogDriver, LogOutput, PastOutput
from dynatops.kit.background import Supervisor
from dynatops.kit.filters import Filter
from dynatops.kit.observing.log_lines import log_notice
from dynatops.kit.serving.start_errors import StartError

# Of the log, within a broker's folder.
FOLDER = "store"
# At a time; while so much is being written, as much again waits.
_TAKEN_BYTES = 1 << 20
_UNDER_WAY_BYTES_MAX = 8 << 20

log = logging.getLogger(__name__)


def _clock_us() -> int:
    """The time of day."""
    return time.time_ns() // 1_000


class StoreFeed:
    def __init__(self, files: DiskLogFiles, settings: BrokerSettings, life: int) -> None:
        """Raises LogFilesError."""
        self._files = files
        rules = retention_rules(settings.store.retain)
        event_log = self._log = EventLog.open(files, settings.eventlog, life, rules)
        self._assignment = AssignmentFile(files.folder)
        assigned = self._assignment.read() if settings.store.capacity else None
        keep = assigned.patterns if assigned is not None else settings.store.keep
        self.options = StoreOptions(
            [Filter.parse(pattern) for pattern in keep],
            event_log.extents(),
            settings.eventlog.units_max,
            serves=True,
            capacity=settings.store.capacity,
            assigned=assigned,
        )
        self._driver = LogDriver(event_log, settings.eventlog, self._on_outputs, _clock_us)
        self._core: Broker
        self._now: Callable[[], float]
        self._perform: Callable[[Sequence[BrokerEffect]], None]
        # By number: bytes that the log has not answered for.
        self._under_way: dict[int, int] = {}

    @classmethod
    def open(cls, settings: BrokerSettings, incarnation: int) -> StoreFeed:
        """Raises StartError."""
        folder = Path(settings.store.dir or Path(settings.data_dir) / FOLDER)
        try:
            files = DiskLogFiles(folder)
            try:
                return cls(files, settings, incarnation)
            except BaseException:
                files.close()
                raise
        except LogFilesError as error:
            raise StartError(f"the log of this store cannot be opened: {error}") from error

    @property
    def counters(self) -> LogCounters:
        return self._log.counters

    def start(
        self,
        core: Broker,
        now: Callable[[], float],
        perform: Callable[[Sequence[BrokerEffect]], None],
        supervisor: Supervisor,
    ) -> None:
        self._core, self._now, self._perform = core, now, perform
        # What was found when it was opened.
        self._on_outputs(self._log.take_notices())
        self._driver.start(supervisor)

    def feed(self) -> None:
        """Give the log what the core has for it, as far as there is room."""
        while sum(self._under_way.values()) < _UNDER_WAY_BYTES_MAX:
            append = self._core.take_unstored(_TAKEN_BYTES, _clock_us(), self._now())
            if append is None:
                return
            self._under_way[append.number] = sum(len(row.data) for row in append.rows)
            self._driver.append(append)

    def read(self, order: ReadOrder) -> None:
        self._driver.read(order)

    async def remember(self, assignment: StoreAssignment) -> None:
        """What a manager told this store to keep."""
        problem = await self._assignment.remember(assignment)
        epoch = assignment.epoch
        self._perform(self._core.assignment_remembered(epoch, problem, self._now()))

    def _on_outputs(self, outputs: Sequence[LogOutput]) -> None:
        for output in outputs:
            if isinstance(output, AppendStored | AppendRefused):
                self._under_way.pop(output.number, None)
                self._perform(self._core.log_answered(output, self._now()))
            elif isinstance(output, PastOutput):
                key, portion = output
                self._perform(self._core.past_read(key, portion, self._now()))
            else:
                log_notice(log, output, broker=self._core.identity.broker_id)
        self.feed()

    async def stop(self) -> None:
        """What the core has had until now is written."""
        self.feed()
        try:
            await self._driver.stop()
        except LogFilesError as error:
            log.error("the log of this store was not closed in order: %s", error)

    def close(self) -> None:
        """Let go of the files. Once it has stopped, or at once, whatever is under way."""
        self._files.close()
