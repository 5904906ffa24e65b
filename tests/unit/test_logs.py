"""Lines of the log, for people and for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any, ClassVar, get_args

import pytest

from broker_agent.core.base.notices import (
    BrokerNotice,
    PlanOutcome,
    SessionDetached,
    SessionEnded,
    Unfrozen,
)
from broker_agent.runtime.observing import narrating
from dynatops.kit.observing.log_lines import Level, Operation, log_notice
from dynatops.kit.observing.log_operations import ALWAYS, FIELDS, RING_LEFT, DeclaredOperations
from dynatops.kit.observing.logs import JsonFormatter, TextFormatter, without_passwords
from reconfig_manager.model.notices import Notice
from reconfig_manager.service.observing import operation_log

log = logging.getLogger("tests.logs")
OPERATIONS = (*narrating.OPERATIONS, *operation_log.OPERATIONS)
SESSION_ENDED = SessionEnded.operation


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    kept = Kept()
    log.addHandler(kept)
    log.setLevel(logging.DEBUG)
    yield kept.records
    log.removeHandler(kept)
    log.setLevel(logging.NOTSET)


def as_json(record: logging.LogRecord, **always: str) -> dict[str, Any]:
    line = JsonFormatter(always).format(record)
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    return document


class TestJson:
    def test_any_line(self, records: list[logging.LogRecord]) -> None:
        log.warning("as %s as\n%d", "can be", 1)
        line = as_json(records[0], broker="b0")
        assert line.pop("time").endswith("Z")
        assert line == {
            "level": "warning",
            "broker": "b0",
            "logger": log.name,
            "message": "as can be as\n1",
        }

    def test_the_time_is_utc(self, records: list[logging.LogRecord]) -> None:
        log.info("x")
        records[0].created = 1_000_000_000.25
        told = as_json(records[0])["time"]
        assert told == "2001-09-09T01:46:40.250Z"
        assert datetime.fromisoformat(told).timestamp() == 1_000_000_000.25

    def test_an_operation(self, records: list[logging.LogRecord]) -> None:
        SESSION_ENDED.log(log, broker="b0", client="änn", delivered=3, connected_s=None)
        line = as_json(records[0], broker="another")
        assert line["operation"] == line["message"] == "session_ended"
        assert (line["broker"], line["client"], line["delivered"]) == ("b0", "änn", 3)
        assert "connected_s" not in line

    def test_with_words_for_people(self, records: list[logging.LogRecord]) -> None:
        RING_LEFT.log(log, "100% gone", seconds=1.5)
        line = as_json(records[0])
        assert (line["message"], line["operation"]) == ("100% gone", "ring_left")

    def test_a_failure(self, records: list[logging.LogRecord]) -> None:
        try:
            raise ValueError("what is wrong")
        except ValueError:
            log.exception("it failed")
        assert "ValueError: what is wrong" in as_json(records[0])["traceback"]

    def test_what_json_does_not_know_is_text(self, records: list[logging.LogRecord]) -> None:
        RING_LEFT.log(log, sessions=complex(1, 2))
        assert as_json(records[0])["sessions"] == "(1+2j)"


class TestText:
    def test_any_line(self, records: list[logging.LogRecord]) -> None:
        log.error("as ever")
        assert TextFormatter().format(records[0]).endswith(" ERROR as ever")

    def test_an_operation_without_words(self, records: list[logging.LogRecord]) -> None:
        SESSION_ENDED.log(log, client='of "ann"', session="s=1", delivered=3, connected_s=0.1 + 0.2)
        text = TextFormatter().format(records[0])
        assert text.endswith(
            r'session_ended client="of \"ann\"" session="s=1" delivered=3 connected_s=0.3'
        )

    def test_an_operation_with_words(self, records: list[logging.LogRecord]) -> None:
        RING_LEFT.log(log, "it has left", seconds=1.5)
        assert TextFormatter().format(records[0]).endswith(" INFO it has left")


class TestPasswords:
    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
            ("rediss://ann:se:cr%2Fet@h, again", "rediss://ann:***@h, again"),
            ("s3://key:secret@bucket and a://b:c@d", "s3://key:***@bucket and a://b:***@d"),
            ("http://127.0.0.1:7480/a@b", "http://127.0.0.1:7480/a@b"),
            ("unix:///tmp/a:b@c", "unix:///tmp/a:b@c"),
        ],
    )
    def test_within_urls(self, text: str, told: str) -> None:
        assert without_passwords(text) == told

    def test_in_either_format(self, records: list[logging.LogRecord]) -> None:
        RING_LEFT.log(log, broker="redis://:secret@host")
        for formatter in (JsonFormatter(), TextFormatter()):
            assert "secret" not in formatter.format(records[0])


class TestNotices:
    def test_one_is_logged_with_its_fields_in_their_order(
        self, records: list[logging.LogRecord]
    ) -> None:
        notice = Unfrozen("p1", PlanOutcome.COMMITTED, 3, 0.12345, "0a", "0b")
        log_notice(log, notice, broker="b0")
        line = as_json(records[0])
        assert list(line)[-8:] == ["operation", *Unfrozen.operation.fields]
        assert (line["operation"], line["level"]) == ("reconfigured", "info")
        assert (line["broker"], line["outcome"], line["frozen_s"]) == ("b0", "committed", 0.123)

    def test_what_does_not_apply_is_left_out(self, records: list[logging.LogRecord]) -> None:
        log_notice(log, SessionDetached("ann", "s1", None, 3, 0, 2), broker="b0")
        assert "connected_s" not in as_json(records[0])

    def test_nothing_is_read_for_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        class Unreadable:
            operation: ClassVar = Operation("unreadable", "It has no field.", ("broker", "count"))

        caplog.set_level(logging.WARNING, log.name)
        log_notice(log, Unreadable(), broker="b0")
        assert not caplog.records

    @pytest.mark.parametrize("kind", [*get_args(BrokerNotice), *get_args(Notice)])
    def test_it_has_what_its_operation_has(self, kind: type) -> None:
        operation = getattr(kind, "operation", None)
        for name in operation.fields if operation else ():
            # Who says it, or what the notice has.
            assert name in ("broker", "manager") or hasattr(kind, name)

    def test_levels_are_those_of_logging(self) -> None:
        for level in Level:
            assert logging.getLevelName(level) == level.name


class TestTable:
    def test_an_operation_has_its_fields_and_no_others(
        self, records: list[logging.LogRecord]
    ) -> None:
        with pytest.raises(ValueError, match="ring_left has no field token"):
            RING_LEFT.log(log, token="abc")
        assert not records

    def test_nothing_is_made_for_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, log.name)
        RING_LEFT.log(log, seconds=1.0)
        assert not caplog.records

    def test_every_field_is_explained(self) -> None:
        known = {**ALWAYS, **FIELDS}
        used = {name for operation in OPERATIONS for name in operation.fields}
        assert used <= known.keys()
        assert FIELDS.keys() <= used
        assert not ALWAYS.keys() & FIELDS.keys()

    def test_no_two_operations_have_one_name(self) -> None:
        assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)

    def test_what_cannot_be_declared(self) -> None:
        declared = DeclaredOperations()
        once = declared.declare("once", "It happened.", ("broker", "count"))
        assert list(declared) == [once]
        with pytest.raises(ValueError, match="once is declared twice"):
            declared.declare("once", "It happened again.", ())
        with pytest.raises(ValueError, match="say in FIELDS what colour means"):
            declared.declare("painted", "It was painted.", ("broker", "colour"))

    def test_those_of_notices_are_among_them(self) -> None:
        declared = DeclaredOperations()
        once = declared.declare("once", "It happened.", ("broker", "count"))
        assert declared.with_notices((SessionEnded, int)) == (once, SESSION_ENDED)
        assert list(declared) == [once]
        with pytest.raises(ValueError, match="session_ended is declared twice"):
            declared.with_notices((SessionEnded, SessionEnded))
