"""A store's log on disks that tear, fail, fill up and lie: seeds; planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from broker_agent.core.stores.log import frames, opening, reading, recovery
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_context import LogContext
from broker_agent.core.stores.log.log_files import LogFiles
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.core.stores.log.stored_runs import StoredRunError
from simulator.eventlog.log_checks import LogViolationError, OpenLog, SimulatedLog
from simulator.eventlog.log_disk import SimulatedLogDisk

STEPS = 80
FEW, MANY = range(30), range(30, 230)


@pytest.mark.parametrize("seed", FEW)
def test_on_an_honest_disk_nothing_that_was_stored_is_lost(seed: int) -> None:
    SimulatedLog(seed).run(STEPS)


@pytest.mark.parametrize("seed", FEW)
def test_what_a_disk_betrays_is_told_and_not_served(seed: int) -> None:
    SimulatedLog(seed, betrays=True).run(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("betrays", [False, True])
def test_the_same_with_many_seeds(betrays: bool) -> None:
    for seed in MANY:
        try:
            SimulatedLog(seed, betrays=betrays).run(STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {betrays=}") from error


def test_one_seed_is_one_story() -> None:
    def story() -> tuple[object, ...]:
        log = SimulatedLog(7, betrays=True)
        log.run(STEPS)
        disk = log.disk
        contents = [(name, disk.read(name, 0, 1 << 20)) for name in sorted(disk.names())]
        return log.steps_done, log.notices, contents

    assert story() == story()


# ---- faults that are planted ---------------------------------------------------------------------


class FaultyFiles:
    """All that a disk does, but for what is replaced."""

    def __init__(self, files: LogFiles, **replaced: Callable[..., object]) -> None:
        self._files = files
        self._replaced = replaced

    def __getattr__(self, name: str) -> object:
        return self._replaced.get(name) or getattr(self._files, name)


def nothing(*_: object, **__: object) -> None:
    """In place of what should be done."""


def without(*methods: str) -> OpenLog:
    def open_log(
        files: LogFiles, settings: LogSettings, life: int, rules: Sequence[RetentionRule]
    ) -> EventLog:
        faulty = FaultyFiles(files, **dict.fromkeys(methods, nothing))
        return EventLog.open(faulty, settings, life, rules)  # type: ignore[arg-type]

    return open_log


def drops_too_much(
    files: LogFiles, settings: LogSettings, life: int, _: Sequence[RetentionRule]
) -> EventLog:
    return EventLog.open(files, settings, life, [RetentionRule(pattern="#", events_max=20)])


def is_found(seeds: Iterable[int], *, betrays: bool, open_log: OpenLog = EventLog.open) -> bool:
    for seed in seeds:
        try:
            SimulatedLog(seed, betrays=betrays, open_log=open_log).run(STEPS)
        except (LogViolationError, StoredRunError):
            return True
    return False


@pytest.mark.parametrize(
    "open_log",
    [without("sync"), without("cut"), drops_too_much],
    ids=["acknowledged before it is synced", "not cut where the disk was full", "drops too much"],
)
def test_a_fault_of_the_log_is_found(open_log: OpenLog) -> None:
    assert is_found(FEW, betrays=False, open_log=open_log)


def test_a_log_that_checks_no_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "check_body", nothing)
    monkeypatch.setattr(recovery, "check_body", nothing)
    assert is_found(FEW, betrays=True)


def test_a_log_that_tells_nobody_of_damage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogContext, "tell_damage", nothing)
    assert is_found(FEW, betrays=True)


def test_a_log_that_serves_what_is_damaged_as_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "checked_rows", _rows_or_nothing)
    monkeypatch.setattr(LogContext, "lose", nothing)
    monkeypatch.setattr(LogContext, "tell_missing", nothing)
    assert is_found(FEW, betrays=True)


def _rows_or_nothing(context: LogContext, at: reading.FrameAt) -> object:
    try:
        return context.segments.read_rows(at.segment, at.frame)
    except frames.LogFrameError:
        return []


def test_a_log_that_believes_what_a_failed_sync_left_in_memory_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "_write_again", nothing)
    assert is_found(range(200), betrays=False)


def test_the_disk_betrays_only_when_it_is_told_to() -> None:
    log = SimulatedLog(3)
    log.run(STEPS)
    assert isinstance(log.disk, SimulatedLogDisk)
    assert log.disk.betrayals == 0
