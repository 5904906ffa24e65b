"""Lines of the log, for people and for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from dynatops.kit.observing.log_operations import (
    ALWAYS,
    BROKER_OPERATIONS,
    FIELDS,
    MANAGER_OPERATIONS,
    RING_LEFT,
    SESSION_ENDED,
    DeclaredOperations,
)
from dynatops.kit.observing.logs import JsonFormatter, TextFormatter, without_passwords

log = logging.getLogger("tests.logs")
OPERATIONS = (*BROKER_OPERATIONS, *MANAGER_OPERATIONS)


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
