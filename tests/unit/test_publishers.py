from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynatops.kit.repeats import (
    HOLES_MAX,
    Hole,
    Publishers,
    PublisherWindow,
    Range,
    part_of_events,
    part_of_run,
)
from dynatops.v1.overlay_pb2 import Event, Events, Run
from tests.support.nodes import events


def test_numbers_in_a_row_are_new_once() -> None:
    window = PublisherWindow()
    assert window.admit(1, 3) == [Range(1, 3)]
    assert window.admit(1, 3) == []
    assert window.admit(2, 4) == [Range(4, 2)]
    assert window.high == 5


def test_what_was_skipped_never_comes_unless_it_is_missing_from_the_history() -> None:
    window = PublisherWindow()
    assert window.admit(5, 1) == [Range(5, 1)]
    assert window.admit(4, 1) == []
    assert window.admit(9, 1, missing=2, clock=17) == [Range(9, 1)]
    assert window.holes == (Hole(7, 8, 17),)
    assert window.admit(6, 2) == [Range(7, 1, 17)]
    assert window.admit(8, 3) == [Range(8, 1, 17), Range(10, 1)]
    assert not window.holes


def test_a_hole_can_be_filled_from_the_middle() -> None:
    window = PublisherWindow()
    window.admit(10, 1, missing=9)
    assert window.admit(4, 3) == [Range(4, 3, 0)]
    assert window.holes == (Hole(1, 3), Hole(7, 9))


def test_holes_are_bounded_and_the_oldest_is_forgotten() -> None:
    window = PublisherWindow()
    for i in range(HOLES_MAX + 3):
        window.admit(10 * (i + 1), 1, missing=1)
    assert len(window.holes) == HOLES_MAX
    assert window.admit(9, 1) == []


def test_what_is_before_those_that_are_together_may_yet_come() -> None:
    window = PublisherWindow()
    window.expect_before(5)
    assert window.admit(7, 1) == [Range(7, 1)]
    assert window.holes == (Hole(1, 4),)
    # Those between were passed over here, or had before.
    assert window.admit(5, 2) == []
    assert window.admit(3, 2) == [Range(3, 2, 0)]
    # Nothing new is said of what has been seen.
    window.expect_before(8)
    assert window.holes == (Hole(1, 2),)


def test_whoever_takes_in_order_knows_since_when_all_are_here() -> None:
    window = PublisherWindow()
    window.begin_elsewhere()
    assert window.admit_next(1, 2, 0) == (0, 0)
    assert window.since == 0
    assert window.admit_next(6, 1, 5) == (0, 3)
    assert window.admit_next(7, 1, 6) == (0, 0)
    assert window.since == 6
    window.begin_elsewhere()
    assert window.since == 8


@pytest.mark.parametrize(
    ("first", "count", "settled", "expected"),
    [
        (4, 2, 0, (0, 0)),  # the next
        (2, 2, 0, (2, 0)),  # seen
        (3, 2, 0, (1, 0)),  # partly seen
        (6, 1, 4, None),  # 5 is still to come
        (6, 1, 5, (0, 2)),  # 4 and 5 were settled elsewhere
    ],
)
def test_publications_are_taken_in_order(
    first: int, count: int, settled: int, expected: tuple[int, int] | None
) -> None:
    window = PublisherWindow(high=3)
    assert window.admit_next(first, count, settled) == expected


def test_what_was_seen_elsewhere_is_no_news() -> None:
    here, there = (
        PublisherWindow(high=3, holes=[Hole(2, 2, 7)]),
        PublisherWindow(high=9, holes=[Hole(2, 6, 4)]),
    )
    here.learn(there)
    assert (here.high, here.holes) == (9, (Hole(2, 2, 7), Hole(4, 6, 0)))
    # What was missing there was missing before anybody joined here.
    assert here.admit(5, 6) == [Range(5, 2, 0), Range(10, 1)]


def test_what_is_missing_from_before_it_began_may_come_for_those_who_come_from_there() -> None:
    here = PublisherWindow()
    assert here.admit(7, 2) == [Range(7, 2)]
    assert here.admit(4, 3) == []
    here.learn(PublisherWindow(high=8, holes=[Hole(4, 5)]))
    assert here.admit(3, 3) == [Range(4, 2, 0)]
    assert here.admit(3, 3) == []


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(0, 6)), max_size=30))
def test_no_number_is_ever_new_twice(steps: list[tuple[int, int, int]]) -> None:
    window, seen = PublisherWindow(), set[int]()
    for first, count, missing in steps:
        for new in window.admit(first, count, missing):
            numbers = set(range(new.first, new.first + new.count))
            assert numbers <= set(range(first, first + count))
            assert not numbers & seen
            seen |= numbers


def test_parts_of_runs_keep_their_numbers() -> None:
    run = Run(
        topic="t", term=9, first_seq=11, count=3, publisher=7, first_number=21,
        events=events(b"a", b"b", b"c"), prev_term=8, prev_seq=4,
    )  # fmt: skip
    part = part_of_run(run, 1, 2)
    assert (part.first_seq, part.first_number, part.count) == (12, 22, 2)
    assert [event.payload for event in Events.FromString(part.events).events] == [b"b", b"c"]
    assert part.prev_term == 0
    assert part_of_run(run, 0, 2).prev_seq == 4
    assert part_of_run(run, 0, 3) is run


def test_publishers_are_bounded() -> None:
    publishers = Publishers(publishers_max=2)
    for publisher in (1, 2, 1, 3):
        publishers.window(publisher).admit(1, 1)
    assert len(publishers) == 2
    assert publishers.window(1).high == 1
    assert publishers.window(2).high == 0


def test_publishers_survive_the_wire() -> None:
    publishers = Publishers(publishers_max=10)
    publishers.window(5).admit(9, 2, missing=3)
    copy = Publishers(publishers_max=10)
    copy.load(publishers.to_states())
    assert (copy.window(5).high, copy.window(5).holes) == (10, (Hole(6, 8),))


def test_of_what_is_no_list_of_events_there_are_none() -> None:
    assert part_of_events(b"\xff\xff\xff", 1, 2) == b""
    assert Events.FromString(part_of_events(events(b"a", b"b"), 1, 5)) == Events.FromString(
        events(b"b")
    )


def test_a_part_says_that_there_are_attributes() -> None:
    whole = Events(events=[Event(payload=b"a"), Event(payload=b"b")], attributed=True)
    part = Events.FromString(part_of_events(whole.SerializeToString(), 1, 1))
    assert part.attributed
    assert [event.payload for event in part.events] == [b"b"]
