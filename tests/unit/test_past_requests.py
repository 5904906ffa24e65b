"""Requests for the past: clear answers, flow control, and going on at another store."""

from __future__ import annotations

import pytest

from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PastCredit,
    PastError,
    PastPlace,
    PastRange,
    PastRequest,
    PastResponse,
    TermSeq,
)
from overlay.stores.past_settings import PastSettings
from tests.support.memory_store import TERM
from tests.support.past_net import PastNet, PastReader

A = "top_a"
# The figures' tree, both ways.
EDGES = [("1", "2"), ("2", "3"), ("3", "4"), ("3", "5"), ("5", "6")]
TREE = [*EDGES, *((other, one) for one, other in EDGES)]
SMALL = PastSettings(portion_bytes=100)


def _net(*stores: str, events: int = 3, settings: PastSettings | None = None) -> PastNet:
    net = PastNet(TREE, settings)
    for store in stores:
        net.keep(store, A)
    for number in range(1, events + 1):
        net.publish(A, b"%d" % number, at_us=number)
    # Until each broker knows other ways, too.
    net.pass_time(10.0)
    return net


def _place(seq: int, topic: str = A) -> PastPlace:
    return PastPlace(topic=topic, seen=[TermSeq(term=TERM, seq=seq)])


def _all(events: int = 3) -> list[bytes]:
    return [b"%d" % number for number in range(1, events + 1)]


# ---- what may be asked for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (PastRange(), _all(5)),
        (PastRange(since_us=3), _all(5)[2:]),
        (PastRange(last=2), _all(5)[3:]),
        (PastRange(last=9), _all(5)),
        (PastRange(after=[_place(2)]), _all(5)[2:]),
        (PastRange(after=[_place(1)], since_us=4), _all(5)[3:]),
        (PastRange(after=[_place(5)]), []),
        (PastRange(since_us=6), []),
    ],
    ids=["all", "since", "last", "last of fewer", "cursor", "cursor and since", "end", "later"],
)
@pytest.mark.parametrize("settings", [None, SMALL], ids=["at once", "in portions"])
def test_ranges(wanted: PastRange, expected: list[bytes], settings: PastSettings | None) -> None:
    reader = _net("2", events=5, settings=settings).ask("6", A, wanted)
    assert reader.payloads == expected
    assert not reader.error


def test_only_the_store_applies_the_whole_filter() -> None:
    net = _net("2", events=0)
    for size in range(6):
        net.publish(A, b"%d" % size, size=size)
    reader = net.ask("6", A, where="size > 3")
    assert reader.payloads == [b"4", b"5"]
    assert net.counters["2"].past_events_read == 6
    assert net.counters["2"].past_events_served == 2


def test_a_wildcard_is_asked_of_each_unit_and_no_event_comes_twice() -> None:
    net = PastNet(TREE)
    net.keep("2", "quake/ca")
    net.keep("5", "quake/or", "+/ca")
    for topic in ("quake/ca", "quake/or", "flood/ca", "quake/ca"):
        net.publish(topic, topic.encode())
    assert sorted(net.ask("4", "quake/#").payloads) == [b"quake/ca"] * 2 + [b"quake/or"]
    assert sorted(net.ask("4", "#").payloads) == [b"flood/ca"] + [b"quake/ca"] * 2 + [b"quake/or"]
    assert net.ask("4", "flood/+").payloads == [b"flood/ca"]


def test_a_unit_that_has_all_of_it_is_asked_alone() -> None:
    net = PastNet(TREE)
    net.keep("2", "quake/#")
    net.keep("5", "quake/or")
    net.publish("quake/or", b"1")
    reader = net.ask("6", "quake/+")
    assert (reader.payloads, reader.arrivals) == ([b"1"], 1)
    assert net.counters["5"].serves == 0


# ---- clear answers -------------------------------------------------------------------------------


def test_nobody_keeps_it() -> None:
    reader = _net("2").ask("6", "top_b")
    assert reader.error == PastError.PAST_ERROR_NOT_STORED
    assert reader.ended is not None
    assert "top_b" in reader.ended.message


def test_a_cursor_in_the_future() -> None:
    reader = _net("2", "5").ask("6", A, PastRange(after=[_place(9)]))
    assert reader.error == PastError.PAST_ERROR_FUTURE
    assert reader.payloads == []


def test_a_cursor_that_is_beyond_the_nearest_store_finds_one_that_has_more() -> None:
    net = _net("2", "5", events=5)
    lacks = net.past["5"].store
    del lacks.runs[3:]
    assert net.ask("6", A, PastRange(after=[_place(4)])).payloads == [b"5"]
    # The nearest stands at the cursor exactly, which is no future: there is no more as yet.
    reader = net.ask("6", A, PastRange(after=[_place(3)]))
    assert (reader.payloads, reader.error) == ([], 0)


def test_what_has_expired_is_asked_of_all_stores_and_then_told() -> None:
    net = _net("2", "5", events=5)
    net.past["5"].store.expire(3)
    # The other one has it.
    assert net.ask("6", A, PastRange(after=[_place(1)])).payloads == _all(5)[1:]
    net.past["2"].store.expire(2)
    reader = net.ask("6", A, PastRange(after=[_place(1)]))
    assert (reader.payloads, reader.error) == ([], PastError.PAST_ERROR_EXPIRED)


def test_what_is_left_of_what_has_expired_comes_to_whoever_takes_that_and_is_told() -> None:
    net = _net("2", "5", events=5)
    for store in ("2", "5"):
        net.past[store].store.expire(2)
    reader = net.ask("6", A, PastRange(after=[_place(1)], with_loss=True))
    assert (reader.payloads, reader.error, reader.lossy) == (_all(5)[2:], 0, 1)


def test_a_store_that_is_damaged_serves_nothing_and_the_next_nearest_does() -> None:
    net = _net("2", "5")
    net.past["5"].store.is_damaged = True
    reader = net.ask("6", A)
    assert (reader.payloads, reader.error) == (_all(), 0)
    net.past["2"].store.is_damaged = True
    assert net.ask("6", A).error == PastError.PAST_ERROR_DAMAGED


def test_a_store_with_too_much_to_do_says_so_and_the_next_nearest_is_asked() -> None:
    net = _net("2", "5", settings=PastSettings(serves_max=1))
    for store in ("2", "5"):
        net.past[store].store.is_silent = True
        net.ask(store, A)
    assert net.ask("6", A).error == PastError.PAST_ERROR_OVERLOADED
    assert net.counters["2"].serves_refused == net.counters["5"].serves_refused == 1


def test_a_broker_has_so_many_requests_open_and_no_more() -> None:
    net = _net("2", settings=PastSettings(asks_max=1))
    net.ask("6", A, credit_bytes=1)
    assert net.ask("6", A).error == PastError.PAST_ERROR_OVERLOADED
    assert net.counters["6"].asks_refused == 1


def test_a_filter_that_is_about_too_much_is_refused() -> None:
    net = PastNet(TREE, PastSettings(units_per_ask_max=2))
    net.keep("2", "a", "b", "c")
    assert net.ask("6", "+").error == PastError.PAST_ERROR_INVALID


def test_a_store_that_never_answers_is_given_up_in_the_end() -> None:
    net = _net("2")
    net.past["2"].store.is_silent = True
    reader = net.ask("6", A)
    net.pass_time(120.0)
    assert reader.error == PastError.PAST_ERROR_UNAVAILABLE
    assert len(net.past["6"].requests) == 0


# ---- flow control --------------------------------------------------------------------------------


def test_nothing_more_is_sent_than_there_is_credit_for() -> None:
    net = _net("2", events=50, settings=PastSettings(portion_bytes=100, response_patience_s=2.0))
    reader = net.ask("6", A, credit_bytes=2_000)
    assert 0 < len(reader.payloads) < 50
    assert reader.spent_bytes < 2_000 + 500
    had = len(reader.payloads)
    net.pass_time(20.0)
    assert len(reader.payloads) == had
    while reader.ended is None:
        net.grant(reader, 1_000)
    assert (reader.payloads, reader.error) == (_all(50), 0)
    assert net.counters["2"].serves == 1


def test_a_request_without_credit_begins_once_there_is_some() -> None:
    net = _net("2")
    reader = net.ask("6", A, credit_bytes=0)
    assert net.counters["2"].serves == 0
    net.grant(reader, 10_000)
    assert reader.payloads == _all()


def test_a_store_closes_what_nobody_takes_and_the_asker_goes_on_where_it_was() -> None:
    net = _net("2", events=50, settings=PastSettings(portion_bytes=100, serve_idle_s=5.0))
    reader = net.ask("6", A, credit_bytes=2_000)
    net.pass_time(6.0)
    assert len(net.past["2"].serving) == 0
    assert net.counters["2"].serves_closed == 1
    net.grant(reader, 1 << 20)
    assert reader.payloads == _all(50)


def test_whoever_cancels_gets_nothing_more_and_the_store_forgets_it() -> None:
    net = _net("2", events=50, settings=SMALL)
    reader = net.ask("6", A, credit_bytes=2_000)
    had = len(reader.payloads)
    net.cancel(reader)
    net.grant(reader, 1 << 20)
    assert len(reader.payloads) == had
    assert len(net.past["2"].serving) == len(net.past["6"].requests) == 0


def test_requests_take_turns_at_the_disk() -> None:
    net = _net("2", events=20, settings=PastSettings(portion_bytes=100, reads_at_once=1))
    readers = [net.ask(broker, A, credit_bytes=1) for broker in ("1", "4", "6")]
    for reader in readers:
        net.past[reader.broker].requests.grant(reader.number, 1 << 20, net.now_s)
    net.run()
    assert all(reader.payloads == _all(20) for reader in readers)


# ---- another store -------------------------------------------------------------------------------


def _half_read(net: PastNet) -> PastReader:
    reader = net.ask("6", A, credit_bytes=2_000)
    assert 0 < len(reader.payloads) < 50
    return reader


@pytest.mark.parametrize("notices", [True, False])
def test_another_store_goes_on_where_one_has_died(notices: bool) -> None:
    net = _net("2", "5", events=50, settings=SMALL)
    net.notices_breaks = notices
    reader = _half_read(net)
    # Broker 5 is on the way to the others: its store dies, and it lives on without one.
    net.past["5"].store.is_silent = True
    net.grant(reader, 1 << 20)
    net.pass_time(60.0)
    assert (reader.payloads, reader.error) == (_all(50), 0)
    assert net.counters["6"].asks_moved == 1


def test_another_store_goes_on_where_one_keeps_it_no_more() -> None:
    net = _net("2", "5", events=50, settings=SMALL)
    reader = _half_read(net)
    net.past["5"].serving.give_up(A)
    net.give_up("5", A)
    net.grant(reader, 1 << 20)
    assert (reader.payloads, reader.error) == (_all(50), 0)


def test_the_broker_on_the_way_crashes_and_is_back() -> None:
    net = _net("2", events=50, settings=SMALL)
    reader = _half_read(net)
    net.crash("3")
    net.pass_time(2.0)
    net.start("3")
    net.grant(reader, 1 << 20)
    net.pass_time(30.0)
    assert (reader.payloads, reader.error) == (_all(50), 0)


def test_the_newest_so_many_are_as_many_though_another_store_goes_on() -> None:
    net = _net("2", "5", events=50, settings=SMALL)
    reader = net.ask("6", A, PastRange(last=30), credit_bytes=1_000)
    assert 0 < len(reader.payloads) < 30
    net.past["5"].store.is_silent = True
    net.grant(reader, 1 << 20)
    net.pass_time(60.0)
    assert reader.payloads == _all(50)[20:]


# ---- garbage -------------------------------------------------------------------------------------


def test_messages_that_are_for_nobody_are_passed_over() -> None:
    net = _net("2")
    ways = net.past["5"].ways
    me, other = NodeRef(broker_id="5", address="5"), NodeRef(broker_id="9", address="9")
    ways.on_request(PastRequest(request=1, unit=A))
    ways.on_request(PastRequest(request=1, unit=A, path=[other, me]))
    ways.on_response(PastResponse(request=1))
    ways.on_response(PastResponse(request=1, path=[me, other]))
    ways.on_credit(PastCredit(request=1))
    ways.on_credit(PastCredit(request=1, route=[other]))
    assert net.counters["5"].past_messages_strange == 6
    net.past["5"].requests.on_response(PastResponse(request=77), 0.0)
    assert net.counters["5"].past_messages_strange == 7
    assert ways.take_said() == []


def test_a_filter_that_is_none_is_refused() -> None:
    net = _net("2")
    request = PastRequest(request=1, unit=A, path=[NodeRef(broker_id="1", address="1")])
    request.filter.pattern = "a/#/b"
    net.past["2"].ways.on_request(request)
    ((address, message),) = net.past["2"].settle(0.0)
    assert address == "1"
    assert message.past_response.error == PastError.PAST_ERROR_INVALID


def test_a_request_does_not_go_on_for_ever() -> None:
    net = _net("2", settings=PastSettings(hops_max=2))
    # Broker 6 is three hops away from it, and does not know of it.
    assert net.ask("6", A).error == PastError.PAST_ERROR_NOT_STORED
    assert net.ask("5", A).payloads == _all()
