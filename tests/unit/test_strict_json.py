"""JSON that others can read, too."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

import pytest

from dynatops.cli.common import finite, positive, print_json
from dynatops.kit.observing.logs import JsonFormatter
from dynatops.kit.strict_json import JsonError, parse_json, write_json

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN is no number"),
        ('{"a": [Infinity]}', "Infinity is no number"),
        ("-Infinity", "-Infinity is no number"),
        ("1e999", "1e999 is too large a number"),
        ('{"a": 1, "b": 2, "a": 3}', "a is there twice"),
        ("{", "at line 1, column 2"),
        (b'"\xff\xff"', "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5_000, "Exceeds the limit"),
    ],
)
def test_what_is_none(text: str | bytes, problem: str) -> None:
    with pytest.raises(JsonError, match=problem):
        parse_json(text)


def test_what_is() -> None:
    document = {"a": [1, -2.5, None, True, "ä"], "b": {}}
    assert parse_json(write_json(document)) == document
    assert parse_json(write_json(document).encode()) == document


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (NAN, "null"),
        ({"a": NAN, "b": [INF, 1.5], "c": (-INF,)}, '{"a": null, "b": [null, 1.5], "c": [null]}'),
    ],
)
def test_numbers_that_json_does_not_have(document: Any, text: str) -> None:
    assert write_json(document) == text


def test_what_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"ratio": NAN})
    assert parse_json(capsys.readouterr().out) == {"ratio": None}


def test_what_is_logged() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "m", None, None)
    record.dynatops_operation, record.dynatops_values = "o", {"seconds": NAN}
    line = json.loads(JsonFormatter().format(record))
    assert line["seconds"] is None


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x"])
def test_options_are_numbers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        finite(text)
    with pytest.raises(argparse.ArgumentTypeError):
        positive(float)(text)
