"""Logs of stores for tests: small ones, runs to put in, and all that is read from them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import (
    AppendStored,
    AppendToLog,
    ReadTopics,
    ReadUnit,
    TopicsAnswer,
    UnitAnswer,
)
from broker_agent.core.stores.log.log_rows import NOWHERE, LogRow, Stamp, StampRange
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.stored_runs import row_of_run, run_of
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Attribute, Event, Events, Run
from simulator.eventlog.log_disk import SimulatedLogDisk

# Everything happens in the first kilobytes.
SMALL = LogSettings(
    segment_bytes=2_000, frame_bytes=500, refuse_below_free_bytes=0, resume_above_free_bytes=0
)


def disk(seed: int = 1) -> SimulatedLogDisk:
    return SimulatedLogDisk(Random(seed))


def run(
    topic: str,
    first: int,
    count: int = 1,
    *,
    term: int = 1,
    published_us: int = 1_000,
    keys: Sequence[str] = (),
) -> Run:
    """Payloads say which stamp they have."""
    events = [
        Event(payload=payload_of(topic, term, seq), published_us=published_us)
        for seq in range(first, first + count)
    ]
    for event, key in zip(events, keys, strict=False):
        event.attributes.append(Attribute(name="key", text=key))
    return Run(
        topic=topic, term=term, first_seq=first, count=count, publisher=7, first_number=first,
        events=Events(events=events, attributed=bool(keys)).SerializeToString(),
    )  # fmt: skip


def payload_of(topic: str, term: int, seq: int) -> bytes:
    return f"{topic}:{term}.{seq}".encode()


def row(topic: str, first: int, count: int = 1, *, term: int = 1, now_us: int = 2_000) -> LogRow:
    return row_of_run(run(topic, first, count, term=term, published_us=now_us), topic, now_us)


def store(log: EventLog, *rows: LogRow) -> None:
    assert log.commit([AppendToLog(1, rows)]) == [AppendStored(1)]


def open_log(files: SimulatedLogDisk, settings: LogSettings = SMALL, life: int = 1) -> EventLog:
    return EventLog.open(files, settings, life)


class UnitContents:
    """All of a unit, as a reader gets it by portions."""

    def __init__(
        self,
        log: EventLog,
        unit: str,
        after: Stamp = NOWHERE,
        pattern: str = "",
        since_us: int = 0,
        bytes_max: int = 300,
    ) -> None:
        self.rows: list[LogRow] = []
        self.missing: list[StampRange] = []
        self.portions = 0
        request: ReadUnit | None = ReadUnit(1, unit, after, pattern, since_us, bytes_max)
        while request is not None:
            answer = log.read(request)
            assert isinstance(answer, UnitAnswer)
            self.rows += answer.rows
            self.missing += answer.missing
            self.portions += 1
            request = answer.following

    @property
    def stamps(self) -> list[Stamp]:
        """Of the events, which are those that belong to these stamps."""
        return [stamp for row in self.rows for stamp in stamps_of(row)]

    @property
    def seqs(self) -> list[int]:
        return [seq for _, seq in self.stamps]


def stamps_of(row: LogRow) -> list[Stamp]:
    found = run_of(row)
    if found is None:
        return []
    events = events_of(found)
    assert events is not None
    offsets = found.selected if found.partial else range(found.count)
    stamps = [(found.term, found.first_seq + offset) for offset in offsets]
    assert len(stamps) == len(events) == row.events
    for (term, seq), event in zip(stamps, events, strict=True):
        assert event.payload == payload_of(row.topic, term, seq)
    return stamps


def topic_rows(log: EventLog, pattern: str, since_us: int = 0) -> list[LogRow]:
    request: ReadTopics | None = ReadTopics(1, pattern, since_us, 300)
    rows: list[LogRow] = []
    while request is not None:
        answer = log.read(request)
        assert isinstance(answer, TopicsAnswer)
        rows += answer.rows
        request = answer.following
    return rows
