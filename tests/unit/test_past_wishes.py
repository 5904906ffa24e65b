"""What an application says of the past it wants; cursors that it writes down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dynatops.client.cursors import Cursor
from dynatops.client.errors import ArgumentError
from dynatops.client.events import Event
from dynatops.client.past_wishes import checked_wish, since_us_of

NOW_US = 1_800_000_000_000_000


def _event(seq: int, term: int = 5, topic: str = "quake/ca") -> Event:
    return Event(topic, b"", 0, term, seq)


@pytest.mark.parametrize(
    ("since", "expected_us"),
    [
        ("all", 0),
        ("90s", NOW_US - 90_000_000),
        ("1.5m", NOW_US - 90_000_000),
        ("1h", NOW_US - 3_600_000_000),
        ("7d", NOW_US - 7 * 86_400_000_000),
        ("9999w", 1),
        (timedelta(hours=1), NOW_US - 3_600_000_000),
        (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000_000),
        ("2026-01-01T00:00:00+00:00", 1_767_225_600_000_000),
    ],
)
def test_times(since: object, expected_us: int) -> None:
    assert since_us_of(since, NOW_US) == expected_us


@pytest.mark.parametrize("since", ["", "1", "h", "-1h", "yesterday", 3, None, timedelta(-1)])
def test_what_is_no_time(since: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        since_us_of(since, NOW_US)
    assert caught.value.argument == "since"


@pytest.mark.parametrize("last", [-1, True, "3", 1.0])
def test_what_is_no_number(last: object) -> None:
    with pytest.raises(ArgumentError):
        checked_wish("a", "", "all", last, with_loss=False)


def test_a_cursor_is_written_and_read() -> None:
    cursor = Cursor()
    for event in (_event(3), _event(2), _event(1, term=6), _event(9, topic="fire/Köln")):
        cursor.note(event)
    assert str(cursor) == '{"quake/ca": {"5": 3, "6": 1}, "fire/Köln": {"5": 9}}'
    assert Cursor.parse(str(cursor)) == cursor
    wish = checked_wish("quake/#", "", cursor, 0, with_loss=True)
    assert wish.after == {"quake/ca": {5: 3, 6: 1}, "fire/Köln": {5: 9}}
    # What is asked for does not change with what is noted later.
    cursor.note(_event(4))
    assert wish.after["quake/ca"][5] == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "{",
        '{"a/#": {}}',
        '{"a": 3}',
        '{"a": {"x": 1}}',
        '{"a": {"1": -1}}',
        '{"a": {"1": 1.0}}',
    ],
)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(ArgumentError):
        Cursor.parse(text)
