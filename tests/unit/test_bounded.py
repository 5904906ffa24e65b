"""Queues and tables that cannot grow past their bound."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dynatops.kit.bounded import BoundedQueue, BoundedTable, Past


@dataclass(slots=True)
class Counters:
    gone: int = 0


def table(entries_max: int, past: Past = Past.OLDEST) -> tuple[BoundedTable[str, int], Counters]:
    counters = Counters()
    return BoundedTable(entries_max, counters, "gone", past=past), counters


def queue(
    items_max: int, past: Past = Past.OLDEST, weight_max: int = 0
) -> tuple[BoundedQueue[bytes], Counters]:
    counters = Counters()
    weigh = len if weight_max else None
    made = BoundedQueue[bytes](
        items_max, counters, "gone", past=past, weigh=weigh, weight_max=weight_max
    )
    return made, counters


def test_the_oldest_goes_for_the_newest_and_is_counted() -> None:
    there, counters = table(2)
    for number, key in enumerate("abc"):
        assert there.put(key, number)
    assert dict(there) == {"b": 1, "c": 2}
    assert counters.gone == 1


def test_a_key_that_is_there_takes_no_room() -> None:
    there, counters = table(2)
    there["a"], there["b"], there["a"] = 1, 2, 3
    assert dict(there) == {"a": 3, "b": 2}
    assert counters.gone == 0


def test_a_key_used_lately_stays() -> None:
    there, _ = table(2)
    there["a"], there["b"] = 1, 2
    there.move_to_end("a")
    there["c"] = 3
    assert list(there) == ["a", "c"]


def test_the_newest_is_not_let_in_where_that_is_the_policy() -> None:
    there, counters = table(1, Past.NEWEST)
    assert there.put("a", 1)
    assert not there.put("b", 2)
    assert there.put("a", 3)
    assert dict(there) == {"a": 3}
    assert counters.gone == 1


def test_no_way_into_a_table_passes_by_its_bound() -> None:
    there, counters = table(2)
    there.update({"a": 1, "b": 2, "c": 3})
    there.setdefault("d", 4)
    there |= {"e": 5}
    assert list(there) == ["d", "e"]
    assert counters.gone == 3


def test_who_wants_to_know_hears_what_had_to_go() -> None:
    gone: list[tuple[str, int]] = []
    there = BoundedTable[str, int](
        1, Counters(), "gone", on_drop=lambda key, value: gone.append((key, value))
    )
    there["a"], there["b"] = 1, 2
    assert gone == [("a", 1)]


def test_a_queue_drops_its_oldest() -> None:
    there, counters = queue(2)
    for item in (b"a", b"b", b"c"):
        assert there.put(item)
    assert list(there) == [b"b", b"c"]
    assert counters.gone == 1
    assert there.take() == b"b"
    assert there.take_all() == [b"c"]
    assert not there


def test_a_queue_refuses_the_newest() -> None:
    there, counters = queue(1, Past.NEWEST)
    assert there.put(b"a")
    assert not there.put(b"b")
    assert list(there) == [b"a"]
    assert counters.gone == 1


@pytest.mark.parametrize(
    ("past", "left"), [(Past.OLDEST, [b"cccc"]), (Past.NEWEST, [b"aa", b"bb"])]
)
def test_a_queue_is_bounded_by_weight(past: Past, left: list[bytes]) -> None:
    there, counters = queue(10, past, weight_max=5)
    for item in (b"aa", b"bb", b"cccc"):
        there.put(item)
    assert list(there) == left
    assert there.weight == 4
    assert counters.gone == {Past.OLDEST: 2, Past.NEWEST: 1}[past]
    there.clear()
    assert there.weight == 0


def test_one_heavy_item_alone_is_let_in() -> None:
    there, counters = queue(10, Past.NEWEST, weight_max=2)
    assert there.put(b"heavy")
    assert not there.put(b"")
    assert there.take() == b"heavy"
    assert there.weight == 0
    assert counters.gone == 1


def test_a_counter_that_does_not_exist_is_noticed_at_once() -> None:
    with pytest.raises(AttributeError):
        BoundedTable[str, int](1, Counters(), "lost")


def test_a_bound_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        queue(0)
