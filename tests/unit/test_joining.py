"""Past and present of a subscription: held, dropped past a bound, and joined where they meet."""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.client.core.joining import Joining, LiveItem
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import Event, Events, Run, TermSeq

TOPIC = "quake/ca"


def _run(first: int, count: int = 1, *, term: int = 5, number: int = 0, topic: str = TOPIC) -> Run:
    events = Events(events=[Event(payload=b"x")] * count)
    return Run(
        topic=topic, term=term, first_seq=first, count=count, publisher=9,
        first_number=number or first, events=events.SerializeToString(),
    )  # fmt: skip


def _live(
    first: int, count: int = 1, *, term: int = 5, number: int = 0, topic: str = TOPIC
) -> Arrived:
    return Arrived(_run(first, count, term=term, number=number, topic=topic), 0, count)


def _stamps(items: Iterable[LiveItem]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for item in items:
        if isinstance(item, ArrivedBundle):
            found += [(item.bundle.terms[at], item.bundle.seqs[at]) for at in item.places]
        else:
            found += [(item.run.term, item.run.first_seq + offset) for _, offset in item.places]
    return found


def _joining(pattern: str = TOPIC, held_events_max: int = 100) -> Joining:
    joining = Joining([Filter.parse(pattern)], {}, held_events_max)
    joining.ask_up_to(pattern, [_place(TOPIC, 3)])
    return joining


def _place(topic: str, seq: int, term: int = 5) -> Cursor:
    return Cursor(topic=topic, seen=[TermSeq(term=term, seq=seq)])


def test_what_comes_live_is_held_until_the_past_is_there() -> None:
    joining = _joining()
    assert joining.live(_live(4, 2)) == ()
    assert _stamps(joining.reading.admit(_run(1, 4))) == [(5, 1), (5, 2), (5, 3), (5, 4)]
    assert not joining.must_ask_again
    assert _stamps(joining.join()) == [(5, 5)]
    assert _stamps(joining.live(_live(5, 2))) == [(5, 6)]
    assert joining.missing() == []


def test_what_was_stored_under_another_stamp_is_not_handed_out_again() -> None:
    joining = _joining()
    joining.reading.admit(_run(1, 3))
    # The history was lost, and its publisher has published again.
    joining.live(_live(1, 2, term=6, number=3))
    assert _stamps(joining.join()) == [(6, 2)]
    assert _stamps(joining.live(_live(3, 1, term=6, number=3))) == []


def test_only_what_is_new_of_a_delivery_is_handed_out() -> None:
    joining = _joining()
    joining.reading.admit(_run(1, 4))
    joining.live(Arrived(_run(3, 4), 1, 4))
    assert _stamps(joining.join()) == [(5, 5), (5, 6)]


def test_bundles_are_held_and_joined_as_well() -> None:
    joining = _joining("quake/+")
    joining.reading.admit(_run(1, 4))
    bundle = Bundle(9, [TOPIC, "quake/nv", TOPIC], [4, 1, 5], [0] * 3, [b"x"] * 3)
    bundle.terms, bundle.seqs = [5, 5, 5], [4, 1, 5]
    joining.live(ArrivedBundle(bundle, [0, 1, 2]))
    assert _stamps(joining.join()) == [(5, 1), (5, 5)]


def test_past_the_bound_what_was_held_is_asked_of_stores() -> None:
    joining = _joining(held_events_max=5)
    joining.live(_live(4, 6))
    assert joining.must_ask_again
    assert joining.ask_up_to(TOPIC, [_place(TOPIC, 9)]) == [_place(TOPIC, 9)]
    joining.live(_live(10))
    joining.reading.admit(_run(1, 9))
    assert not joining.must_ask_again
    assert _stamps(joining.join()) == [(5, 10)]
    assert joining.missing() == []


def test_what_was_dropped_and_is_in_no_store_is_told() -> None:
    joining = _joining("quake/+", held_events_max=2)
    joining.live(_live(1, 3, topic="quake/nv"))
    joining.live(_live(4, 3))
    joining.reading.admit(_run(1, 6))
    assert _stamps(joining.join()) == []
    assert joining.missing() == ["quake/nv"]


def test_what_a_condition_leaves_out_is_not_missing() -> None:
    joining = Joining([Filter.parse(TOPIC, "size > 3")], {}, 2)
    joining.live(_live(1, 3))
    assert list(joining.join()) == []
    assert joining.missing() == []


def test_a_topic_that_is_new_may_have_a_past() -> None:
    joining = _joining("quake/+")
    joining.live(_live(1, topic="quake/new"))
    assert not joining.must_ask_again
    joining.live(_live(4, topic="quake/old"))
    assert joining.must_ask_again
    joining.ask_up_to("quake/+", [_place(TOPIC, 3), _place("quake/old", 4)])
    assert not joining.must_ask_again


def test_in_a_tree_places_are_of_streams() -> None:
    joining = Joining([Filter.parse("quake/+")], {})
    assert joining.ask_up_to("quake/+", [_place(STREAMS, 40), _place(STREAMS, 0, term=6)]) == [
        _place(STREAMS, 40)
    ]
    joining.live(_live(44))
    joining.live(_live(3, term=6))
    assert not joining.must_ask_again
    joining.live(_live(9, term=7))
    assert joining.must_ask_again
