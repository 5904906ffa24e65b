"""The store of a simulated broker: its log, on a disk that outlives it, and what drives that.

It does what `broker_agent.runtime.eventlog` does: takes what its core has for the log, when the
disk is ready; has it written and synced; says how that came out. What is being written when the
broker dies may be on the disk, in part, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_files import LogFilesError
from broker_agent.core.stores.log.log_notices import LogNotice
from broker_agent.core.stores.log.log_requests import AppendToLog
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.store_options import StoreOptions
from broker_agent.core.stores.store_reader import ReadOrder, StorePortion
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import PastError
from simulator.eventlog.log_disk import PowerLostError, SimulatedLogDisk

if TYPE_CHECKING:
    from simulator.world import SimulatedBroker, World

# A write and its sync, or a reading, takes so long at most.
_DISK_MAX_S = 0.03
_TAKEN_BYTES = 4_000
_TAKEN_TOGETHER = 4
# Everything happens in the first kilobytes.
LOG_SETTINGS = LogSettings(
    segment_bytes=4_000, frame_bytes=800, refuse_below_free_bytes=0, resume_above_free_bytes=500
)


@dataclass(slots=True)
class StoreDisk:
    """Of one broker, through all its lives."""

    disk: SimulatedLogDisk
    filters: Sequence[Filter]
    notices: list[LogNotice] = field(default_factory=list)


class SimulatedStore:
    """One life of a store."""

    def __init__(self, world: World, kept: StoreDisk, life: int) -> None:
        self._world = world
        self._kept = kept
        self._rng = Random(world.rng.getrandbits(64))
        self.log = EventLog.open(kept.disk, LOG_SETTINGS, life)
        self.options = StoreOptions(kept.filters, self.log.extents(), serves=True)
        self._note()
        self._broker: SimulatedBroker
        self._is_due = False

    def attach(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    def _later(self, action: Callable[[], None]) -> None:
        self._world.scheduler.after(self._rng.uniform(0.0, _DISK_MAX_S), action)

    def _note(self) -> None:
        self._kept.notices += self.log.take_notices()

    # ---- writing --------------------------------------------------------------------------------

    def feed(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self._write)

    def _write(self) -> None:
        self._is_due = False
        if self._broker.alive:
            appends = self._take()
            for outcome in self.log.commit(appends) if appends else ():
                self._broker.on_log_outcome(outcome)
            self._note()
            if len(appends) == _TAKEN_TOGETHER:
                self.feed()

    def _take(self) -> list[AppendToLog]:
        appends: list[AppendToLog] = []
        now_s = self._world.scheduler.now_s
        while len(appends) < _TAKEN_TOGETHER:
            append = self._broker.core.take_unstored(_TAKEN_BYTES, round(now_s * 1e6), now_s)
            if append is None:
                break
            appends.append(append)
        return appends

    # ---- reading --------------------------------------------------------------------------------

    def read(self, order: ReadOrder) -> None:
        self._later(lambda: self._answer(order))

    def _answer(self, order: ReadOrder) -> None:
        if not self._broker.alive:
            return
        try:
            portion = read_past(self.log, order)
        except LogFilesError as error:
            portion = StorePortion(error=PastError.PAST_ERROR_DAMAGED, message=str(error))
        self._note()
        self._broker.on_past_read(order.key, portion)

    # ---- its end --------------------------------------------------------------------------------

    def close(self) -> None:
        """In order: what the core has is written."""
        while appends := self._take():
            for outcome in self.log.commit(appends):
                self._broker.core.log_answered(outcome, self._world.scheduler.now_s)
        # A disk that is full: what it has is read again when it is opened.
        with suppress(LogFilesError):
            self.log.close()
        self._note()

    def die(self) -> None:
        """The process is killed, or (half of the time) its machine loses power, perhaps in the
        middle of a write."""
        disk = self._kept.disk
        loses_power = self._rng.random() < 0.5
        if self._is_due and loses_power:
            disk.power_left = self._rng.randint(0, 3)
            try:
                appends = self._take()
                if appends:
                    self.log.commit(appends)
            except PowerLostError:
                pass
        if loses_power:
            disk.crash()
        else:
            disk.kill()
