"""Finding the past among whole brokers, on every routing: the seam that both of them pass."""

from __future__ import annotations

import pytest

from dynatops.v1.overlay_pb2 import PastError
from tests.support.routings import ROUTINGS, MakeRouting
from tests.support.store_brokers import StoreBrokers

NAMES = ("b0", "b1", "b2", "b3")


@pytest.fixture(params=list(ROUTINGS.values()), ids=list(ROUTINGS))
def routing(request: pytest.FixtureRequest) -> MakeRouting:
    made: MakeRouting = request.param
    return made


def _net(routing: MakeRouting, **stores: str) -> StoreBrokers:
    net = StoreBrokers(routing, NAMES, {name: [keeps] for name, keeps in stores.items()})
    net.connect("pub", "b3")
    return net


def _publish(net: StoreBrokers, topic: str, first: int, count: int) -> list[bytes]:
    payloads = [b"%d" % number for number in range(first, first + count)]
    for payload in payloads:
        net.publish("pub", topic, payload, size=int(payload))
    net.run(5.0)
    return payloads


def _distances(net: StoreBrokers, unit: str) -> dict[str, int]:
    entries = {name: core.storing.past.table.entry(unit) for name, core in net.cores.items()}
    return {name: entry.distance for name, entry in entries.items() if entry is not None}


def test_neighbours_are_other_brokers_at_their_addresses(routing: MakeRouting) -> None:
    net = _net(routing)
    for name, core in net.cores.items():
        neighbours = core.routing.brokers.neighbours()
        assert neighbours
        assert name not in neighbours
        assert all(address == other for other, address in neighbours.items())
        assert not any(core.routing.brokers.is_gone(other) for other in neighbours)


def test_all_brokers_know_of_a_store_and_how_far_it_is(routing: MakeRouting) -> None:
    distances = _distances(_net(routing, b0="quake/#"), "quake/#")
    assert sorted(distances) == list(NAMES)
    assert [name for name, distance in distances.items() if not distance] == ["b0"]
    assert max(distances.values()) <= 3


def test_what_was_published_before_is_had_from_everywhere(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    published = _publish(net, "quake/ca", 1, 10)
    for name in NAMES:
        asked = net.ask(name, "quake/ca")
        assert (asked.payloads, asked.error) == (published, 0)
    assert net.ask("b3", "quake/+", where="size > 8").payloads == published[8:]
    assert net.ask("b2", "quake/ca", last=3).payloads == published[7:]


def test_a_store_says_whether_it_has_come_as_far_as_it_was_to(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    _publish(net, "news", 100, 3)
    published = _publish(net, "quake/ca", 1, 3)
    net.connect("sub", "b2")
    subscriber = net.subscribe("sub", "quake/#", "news")
    published += _publish(net, "quake/ca", 4, 3)
    _publish(net, "news", 103, 3)
    # What the store does not keep is nothing that it could come to.
    asked = net.ask("b1", "quake/#", upto=subscriber.cursors())
    assert (asked.payloads, asked.error) == (published, 0)
    beyond = subscriber.cursors()
    for cursor in beyond:
        for seen in cursor.seen:
            seen.seq += 1
    asked = net.ask("b1", "quake/#", upto=beyond)
    assert (asked.payloads, asked.error) == (published, PastError.PAST_ERROR_NOT_YET)
    assert asked.ended is not None
    assert asked.ended.message == "b0 has not stored yet what was published last"


def test_what_nobody_keeps_is_not_stored(routing: MakeRouting) -> None:
    assert _net(routing, b0="quake/#").ask("b2", "news/ca").error == PastError.PAST_ERROR_NOT_STORED


def test_the_next_nearest_takes_over_from_a_store_that_crashed(routing: MakeRouting) -> None:
    # In a chain whoever is at an end can go without those beyond.
    net = _net(routing, b0="quake/#", b1="quake/#")
    published = _publish(net, "quake/ca", 1, 10)
    net.crash("b0")
    net.run(20.0)
    for name in ("b1", "b2", "b3"):
        asked = net.ask(name, "quake/ca")
        assert (asked.payloads, asked.error) == (published, 0)
    net.crash("b1")
    net.run(20.0)
    assert net.ask("b2", "quake/ca").error == PastError.PAST_ERROR_NOT_STORED


def test_a_store_that_leaves_is_known_no_more(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    net.leave("b0")
    net.run(2.0)
    net.crash("b0")
    net.run(20.0)
    assert _distances(net, "quake/#") == {}


def test_a_broker_that_comes_back_learns_of_all_stores(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    net.crash("b2")
    net.run(5.0)
    net.restart("b2")
    net.run(10.0)
    assert sorted(_distances(net, "quake/#")) == list(NAMES)


def test_brokers_without_stores_say_nothing_of_them(routing: MakeRouting) -> None:
    net = _net(routing)
    net.run(10.0)
    counters = [core.storing.past.counters for core in net.cores.values()]
    assert sum(c.advertisements_sent + c.advertisements_renewed for c in counters) == 0


# ---- clients -------------------------------------------------------------------------------------


def test_a_client_is_told_no_more_than_it_lets_come(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    published = _publish(net, "quake/ca", 1, 200)
    asked = net.ask("b3", "quake/ca", credit_bytes=1)
    assert 0 < len(asked.payloads) <= 200
    assert asked.ended is None or asked.payloads == published
    asked = net.give_credit("asks-b3", credit_bytes=1 << 20)
    assert (asked.payloads, asked.error) == (published, 0)


def test_a_client_that_cancels_is_told_nothing_more(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    _publish(net, "quake/ca", 1, 20)
    assert net.ask("b3", "quake/ca", credit_bytes=0).ended is None
    assert net.cores["b3"].status().past_asks == 1
    asked = net.give_credit("asks-b3", cancel=True)
    assert asked.ended is None
    assert net.cores["b3"].status().past_asks == 0
    net.give_credit("asks-b3", credit_bytes=1 << 20)
    assert net.asked("asks-b3").payloads == []


def test_with_its_connection_a_history_ends(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    _publish(net, "quake/ca", 1, 20)
    net.ask("b3", "quake/ca", credit_bytes=0)
    net.disconnect("asks-b3")
    net.run(1.0)
    assert net.cores["b3"].status().past_asks == 0


def test_a_client_has_so_many_open_and_no_more(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    for _ in range(8):
        assert net.ask("b3", "quake/ca", credit_bytes=0).ended is None
    assert net.ask("b3", "quake/ca").error == PastError.PAST_ERROR_OVERLOADED


def test_what_is_no_filter_is_refused(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#")
    assert net.ask("b3", "quake#").error == PastError.PAST_ERROR_INVALID
    assert net.ask("b3", "quake/ca", where="size >").error == PastError.PAST_ERROR_INVALID


def test_cursors_say_where_to_go_on_at_any_store(routing: MakeRouting) -> None:
    net = _net(routing, b0="quake/#", b1="quake/#")
    reader = net.connect("reader", "b2")
    net.subscribe("reader", "quake/ca")
    published = _publish(net, "quake/ca", 1, 10)
    cursors = [cursor for cursor in reader.cursors() if cursor.topic == "quake/ca"]
    assert cursors
    published += _publish(net, "quake/ca", 11, 5)
    for name in NAMES:
        asked = net.ask(name, "quake/ca", after=cursors)
        assert (asked.payloads, asked.error) == (published[10:], 0)
    newest = [cursor for cursor in reader.cursors() if cursor.topic == "quake/ca"]
    newest[0].seen[0].seq += 5
    assert net.ask("b3", "quake/ca", after=newest).error == PastError.PAST_ERROR_FUTURE
