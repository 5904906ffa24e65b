"""A log on a disk that misbehaves: what it was given, what it said, and whether that was true.

    steps drawn by a seed: appends, readings, drops, kills, power failures, full disks, failed
    syncs; and of a disk that betrays flipped bits, syncs that did nothing, files that are gone

After each step: whoever reads gets what was appended, nothing else and nothing twice, in order, and
what is missing is told; what was said to be stored is there, unless the disk betrayed it, and then
it is told; a store that said that it failed takes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_context import LogHealth
from broker_agent.core.stores.log.log_files import LogFiles
from broker_agent.core.stores.log.log_notices import (
    LogCut,
    LogDamaged,
    LogFailed,
    LogNotice,
    LogRebuilt,
)
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendStored,
    AppendToLog,
    ReadUnit,
    UnitAnswer,
)
from broker_agent.core.stores.log.log_rows import LogRow, RowKind, Stamp, StampRange
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.core.stores.log.segments import DURABLE
from broker_agent.core.stores.log.stored_runs import row_of_run, run_of
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Event, Events, Run
from simulator.eventlog.log_disk import PowerLostError, SimulatedLogDisk

_SETTINGS = LogSettings(
    segment_bytes=3_000, frame_bytes=600, refuse_below_free_bytes=0, resume_above_free_bytes=500
)
_UNITS = ("a", "b/c", "dropped/x")
_KEPT = 30
_RULES = (RetentionRule(pattern="dropped/#", events_max=_KEPT),)

# Of these one must have been said when something is gone.
_OF_LOSS = (LogDamaged, LogRebuilt, LogCut)

# How a log is opened; other ways have faults that must be found.
OpenLog = Callable[[LogFiles, LogSettings, int, Sequence[RetentionRule]], EventLog]


class LogViolationError(AssertionError):
    """The log did not do what is promised; the message says what."""


@dataclass(slots=True)
class _KnownUnit:
    """What is known of one unit, beside the log."""

    # Said to be stored, and not told as missing since.
    stored: set[int] = field(default_factory=set)
    # How much there had been told when it was looked at last.
    heard: int = 0


class SimulatedLog:
    """One seed, one story."""

    def __init__(
        self, seed: int, *, betrays: bool = False, open_log: OpenLog = EventLog.open
    ) -> None:
        self._rng = Random(seed)
        self.disk = SimulatedLogDisk(Random(seed + 1))
        self._betrays = betrays
        self._open_log = open_log
        self._life = 0
        self._units = {unit: _KnownUnit() for unit in _UNITS}
        self.notices: list[LogNotice] = []
        self._log = self._open()
        self.steps_done: list[str] = []

    def run(self, steps: int) -> None:
        harmless = [
            *[self._append] * 10, self._append_past, *[self._look] * 3, self._tend, self._kill,
            self._lose_power, self._fill_up, self._fail_sync,
        ]  # fmt: skip
        harmful = [self._flip, self._lie, self._lose_file] if self._betrays else []
        for _ in range(steps):
            step = self._rng.choice(harmless + harmful)
            self.steps_done.append(step.__name__)
            step()
        self._kill()
        self._look()

    # ---- steps ----------------------------------------------------------------------------------

    def _append(self) -> None:
        unit = self._rng.choice(_UNITS)
        extent = self._log.extent(unit)
        # From where the log is, as a broker does that subscribes again; or after a gap.
        first = (extent.upto[1] if extent is not None else 0) + 1
        if self._rng.random() < 0.1:
            first += self._rng.randint(1, 10)
        self._append_stamps(unit, first, self._rng.randint(1, 12))

    def _append_past(self) -> None:
        """What is missing, as from another store; or anything once more."""
        unit = self._rng.choice(_UNITS)
        extent = self._log.extent(unit)
        if extent is None:
            return
        if extent.holes and self._rng.random() < 0.8:
            (_, after), (_, upto) = self._rng.choice(extent.holes)
            first = self._rng.randint(after + 1, upto)
            self._append_stamps(unit, first, self._rng.randint(1, upto - first + 3))
        else:
            self._append_stamps(
                unit, self._rng.randint(1, extent.upto[1] + 1), self._rng.randint(1, 20)
            )

    def _append_stamps(self, unit: str, first: int, count: int) -> None:
        appends = []
        for number in range(self._rng.randint(1, 3)):
            appends.append(AppendToLog(number, [_row(unit, first, count)]))
            first += count
        before = self._log.health
        for append, outcome in zip(appends, self._log.commit(appends), strict=True):
            if isinstance(outcome, AppendStored):
                if before is LogHealth.FAILED:
                    raise LogViolationError("a log that failed has stored something")
                for row in append.rows:
                    self._units[unit].stored |= set(range(row.first, row.last + 1))
            elif outcome.refusal not in {AppendRefusal.FULL, AppendRefusal.FAILED}:
                raise LogViolationError(f"an append was refused: {outcome}")
        self._hear()

    def _tend(self) -> None:
        while self._log.tend(1_000_000):
            pass
        self._hear()

    def _look(self) -> None:
        for unit in _UNITS:
            self._check_unit(unit)

    def _kill(self) -> None:
        self.disk.kill()
        self._log = self._open()

    def _lose_power(self) -> None:
        self.disk.power_left = self._rng.randint(0, 12)
        try:
            for _ in range(4):
                self._rng.choice([self._append, self._append, self._tend])()
        except PowerLostError:
            pass
        self.disk.crash()
        self._log = self._open()

    def _fill_up(self) -> None:
        free = self.disk.free_bytes()
        self.disk.capacity_bytes -= free - self._rng.randint(0, 600)
        for _ in range(3):
            self._append()
        self._tend()
        if self._rng.random() < 0.5:
            self._kill()
            self._append()
        self.disk.capacity_bytes += free
        self._look()

    def _fail_sync(self) -> None:
        self.disk.sync_failures = 1
        self._append()
        self._append()
        self.disk.sync_failures = 0
        if self._rng.random() < 0.5:
            self.disk.crash()
        self._log = self._open()

    # ---- betrayal -------------------------------------------------------------------------------

    def _flip(self) -> None:
        name = self._rng.choice(sorted(self.disk.names()) or [""])
        if name and self.disk.size(name):
            self.disk.flip_bit(
                name, self._rng.randrange(self.disk.size(name)), self._rng.randrange(8)
            )
            self._look()

    def _lie(self) -> None:
        self.disk.lies = 2
        self._append()
        self._append()
        self.disk.lies = 0
        self.disk.crash()
        self._log = self._open()

    def _lose_file(self) -> None:
        names = sorted(self.disk.names())
        if names and self._rng.random() < 0.3:
            self.disk.kill()
            self.disk.lose_file(self._rng.choice(names))
            self._log = self._open()

    # ---- checks ---------------------------------------------------------------------------------

    def _open(self) -> EventLog:
        self._life += 1
        log = self._open_log(self.disk, _SETTINGS, self._life, _RULES)
        self._log = log
        self._hear()
        self._look()
        return log

    def _hear(self) -> None:
        notices = self._log.take_notices()
        self.notices += notices
        for notice in notices:
            if isinstance(notice, LogFailed) and "synced" not in notice.reason:
                raise LogViolationError(f"no sync has failed: {notice}")
            if not self._betrays and isinstance(notice, LogDamaged):
                raise LogViolationError(f"damage on an honest disk: {notice}")

    def _check_unit(self, unit: str) -> None:
        rows, missing, upto = _read_all(self._log, unit, self._rng.choice([1, 200, 5_000]))
        self._hear()
        known = self._units[unit]
        there: list[int] = []
        expired: set[int] = set()
        for row in rows:
            if row.kind == RowKind.EXPIRED:
                expired |= set(range(row.first, row.last + 1))
            there += _checked_seqs(row)
        if sorted(set(there)) != there:
            raise LogViolationError(f"events of {unit} twice, or not in order: {there}")
        lost = {seq for (_, low), (_, high) in missing for seq in range(low + 1, high + 1)}
        if lost & set(there):
            raise LogViolationError(f"{unit}: there, and told as missing: {lost & set(there)}")
        allowed = self._droppable(unit, there)
        if (wrongly := expired - allowed) and not self.disk.betrayals:
            raise LogViolationError(f"{unit}: dropped too early: {sorted(wrongly)}")
        silent = known.stored - set(there) - lost - expired
        # What is after its end, it does not claim to have.
        unclaimed = {seq for seq in silent if seq > upto[1]}
        if silent - unclaimed:
            raise LogViolationError(f"{unit}: gone without a word: {sorted(silent - unclaimed)}")
        gone = (known.stored & (lost | unclaimed)) - allowed
        if gone and not self.disk.betrayals:
            raise LogViolationError(f"{unit}: lost on an honest disk: {sorted(gone)}")
        if self.disk.lied or DURABLE in self.disk.betrayed:
            # Where a disk forgets all that it was given, or the newest segment and how much was in
            # it, nothing is left to know it by; but then the log does not claim to have it.
            gone -= unclaimed
            known.stored -= unclaimed
        if gone and not any(isinstance(each, _OF_LOSS) for each in self.notices[known.heard :]):
            raise LogViolationError(f"{unit}: nobody was told of {sorted(gone)}")
        known.stored -= gone
        known.heard = len(self.notices)

    def _droppable(self, unit: str, there: Sequence[int]) -> set[int]:
        """Of which there are as many later events as are to stay."""
        if not unit.startswith("dropped/") or len(there) < _KEPT:
            return set()
        return set(range(1, there[-_KEPT]))


def _read_all(
    log: EventLog, unit: str, bytes_max: int
) -> tuple[list[LogRow], list[StampRange], Stamp]:
    rows: list[LogRow] = []
    missing: list[StampRange] = []
    request: ReadUnit | None = ReadUnit(1, unit, (1, 0), bytes_max=bytes_max)
    upto: Stamp = (1, 0)
    while request is not None:
        answer = log.read(request)
        if not isinstance(answer, UnitAnswer):
            raise LogViolationError(f"an answer to another question: {answer}")
        rows += answer.rows
        missing += answer.missing
        upto = answer.upto
        request = answer.following
    return rows, missing, upto


def _payload(unit: str, seq: int) -> bytes:
    return f"{unit}:{seq}".encode() * (1 + seq % 3)


def _row(unit: str, first: int, count: int) -> LogRow:
    events = [
        Event(payload=_payload(unit, seq), published_us=seq) for seq in range(first, first + count)
    ]
    run = Run(
        topic=unit, term=1, first_seq=first, count=count, publisher=7, first_number=first,
        events=Events(events=events).SerializeToString(),
    )  # fmt: skip
    return row_of_run(run, unit, 1_000)


def _checked_seqs(row: LogRow) -> list[int]:
    """Raises LogViolationError, if these are not the events that were appended."""
    run = run_of(row)
    if run is None:
        return []
    events = events_of(run)
    seqs = list(range(row.first, row.last + 1))
    payloads = [event.payload for event in events or ()]
    if payloads != [_payload(row.topic, seq) for seq in seqs]:
        raise LogViolationError(f"{row.topic}: not what was appended, at {row.first}")
    return seqs
