"""Sessions of a broker in a tree that go on where they stood elsewhere."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.routing.forwarding.catch_up_group import CatchUpGroup, Rests
from broker_agent.core.routing.forwarding.forwarding import Forwarding
from broker_agent.core.routing.forwarding.place_telling import PLACES_TOLD_S, PlaceTelling
from broker_agent.core.routing.forwarding.read_ahead import ReadAhead
from broker_agent.core.sessions.session import Session
from dynatops.kit import filters
from dynatops.kit.bundles import Bundle
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import ClientFrame, Filter, Missed, Subscribe, Unsubscribe
from dynatops.v1.overlay_pb2 import Run
from overlay.forwarding.forwarding_effects import LossRange, StreamLost
from tests.support.routings import ROUTINGS
from tests.support.wired_brokers import WiredBrokers, WiredClient

NAMES = ("b0", "b1", "b2")


def tree() -> WiredBrokers:
    return WiredBrokers(ROUTINGS["forwarding"], NAMES)


def forwarding(net: WiredBrokers, name: str) -> Forwarding:
    routing = net.cores[name].routing
    assert isinstance(routing, Forwarding)
    return routing


def missed(client: WiredClient) -> list[Missed]:
    return [message.missed for message in client.said if message.HasField("missed")]


def reader_that_has_read(net: WiredBrokers, count: int) -> WiredClient:
    reader = net.connect("ann", "b0")
    net.subscribe("ann", "quake/#")
    net.connect("pub", "b2")
    for number in range(count):
        net.publish("pub", "quake/ca", b"%d" % number)
    net.run(2.0)
    assert len(reader.events) == count
    return reader


def test_who_gives_up_what_its_request_waited_for_knows_where_the_rest_begins() -> None:
    """Elsewhere it would be told of a gap."""
    net = tree()
    reader_that_has_read(net, 3)
    bob = net.connect("bob", "b0")
    wanted = [Filter(pattern="quake/#"), Filter(pattern="news")]
    frames = ClientFrame(), ClientFrame()
    frames[0].messages.add(subscribe=Subscribe(request=1, filters=wanted))
    frames[1].messages.add(unsubscribe=Unsubscribe(request=2, filters=wanted[1:]))
    for frame in frames:
        said = net.cores["b0"].on_client_frame(ConnectionId("bob"), frame, net.now_s)
        net._perform("b0", said)
    net.run(0.2)
    assert bob.kinds().count("subscribed") == 1
    assert max(bob.seen[STREAMS].values()) >= 3


# ---- rests ---------------------------------------------------------------------------------------


def test_whoever_has_caught_up_rests_as_long_as_that_took() -> None:
    net = tree()
    rests = Rests(2, net.cores["b0"].counters)
    rests.note("ann", 10.0, 10.1)
    rests.note("bob", 10.0, 15.0)
    assert rests.is_resting("ann", 11.0)
    assert not rests.is_resting("ann", 11.2)
    assert rests.is_resting("bob", 19.9)
    assert not rests.is_resting("bob", 20.0)
    # What the disk gave back is nobody's doing.
    rests.note("ann", None, 30.0)
    assert not rests.is_resting("ann", 30.0)


def test_a_client_that_resumes_again_and_again_waits() -> None:
    net = tree()
    reader = reader_that_has_read(net, 3)
    reader.seen.clear()
    counters = forwarding(net, "b1").forwarder.counters
    net.connect("ann", "b1")
    before, began_s = counters.tree_fetches, net.now_s
    for _ in range(8):
        net.subscribe("ann", "quake/#", resume=True)
    took_s = net.now_s - began_s
    assert counters.tree_fetches - before == 8
    assert took_s > 7.0
    assert net.cores["b1"].counters.catch_ups_put_off == 7


def test_it_does_not_help_to_come_anew() -> None:
    net = tree()
    reader_that_has_read(net, 3)
    net.connect("ann", "b1")
    net.subscribe("ann", "quake/#", resume=True)
    net.run(0.2)
    net.disconnect("ann")
    net.connect("ann", "b1")
    began_s = net.now_s
    net.subscribe("ann", "quake/#", resume=True)
    assert net.now_s - began_s > 0.5
    assert net.cores["b1"].counters.catch_ups_put_off == 1


def test_a_request_for_the_past_is_counted_once_though_the_fetch_begins_again() -> None:
    """By the manager as by the lake."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1")
    # What it misses cannot be had: that takes a while.
    net.crash("b2")
    net.run(5.0)
    reader.seen[STREAMS] = {7: 1}
    at_b1 = forwarding(net, "b1")
    at_b1.measures.begin_tally("manager")
    reader.requests += 1
    net._say("ann", subscribe=_resuming(reader, "quake/#"))
    net.run(2.0)
    (group,) = at_b1.subscriptions._groups
    fetches = at_b1.subscriptions._fetches_begun
    # As if more had come meanwhile than could be held.
    group.is_incomplete = True
    at_b1.subscriptions._fetched(group, net.now_s)
    assert at_b1.subscriptions._fetches_begun == fetches + 1
    assert at_b1.measures.take_tally("manager")["quake/#"].requests == 1


def test_what_is_asked_for_meanwhile_begins_afterwards() -> None:
    """Its place is one for all of its filters."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1")
    net.subscribe("ann", "quake/#", resume=True)
    net.run(0.1)
    net.unsubscribe("ann", "quake/#")
    for number in range(3, 6):
        net.publish("pub", "quake/ca", b"%d" % number)
    reader.requests += 1
    net._say("ann", subscribe=_resuming(reader, "quake/#"))
    net.run(0.1)
    began_s = net.now_s
    net.subscribe("ann", "news")
    assert net.now_s - began_s > 0.3
    net.run(1.0)
    assert reader.payloads("quake/ca") == [b"%d" % number for number in range(6)]
    assert reader.kinds().count("subscribed") == 4


def test_a_client_is_told_where_what_goes_on_begins() -> None:
    """What waits for the session before that was there for some of its filters only."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.subscribe("ann", "news", resume=True)
    # A run of no events, in the number of the request.
    assert reader.seen[STREAMS][0] == reader.requests - 1
    net.connect("ann", "b1")
    # Whatever is refused: it goes on with what there is.
    net.subscribe("ann", "bad/#/filter", resume=True)
    assert reader.seen[STREAMS][0] == reader.requests - 1


def test_what_a_connection_asked_for_that_is_gone_is_not_fetched() -> None:
    """Its client asks for it again, from where it is by then, if it was there already."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1", keep_s=60)
    net.subscribe("ann", "quake/#", resume=True)
    net.unsubscribe("ann", "quake/#")
    counters = forwarding(net, "b1").forwarder.counters
    before = counters.tree_fetches
    reader.requests += 1
    net._say("ann", subscribe=_resuming(reader, "quake/#"))
    assert forwarding(net, "b1").subscriptions._behind
    net.disconnect("ann")
    net.run(3.0)
    assert counters.tree_fetches == before
    assert not forwarding(net, "b1").subscriptions._behind


def test_what_a_session_has_stands_where_its_client_stood_until_it_has_caught_up() -> None:
    """The process that asked for that is gone, and the next knows nothing of it."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1", keep_s=60)
    net.subscribe("ann", "quake/#", resume=True)
    # It must wait; meanwhile nothing comes that is newer.
    reader.requests += 1
    reader.seen[STREAMS] = dict.fromkeys(reader.seen[STREAMS], 1)
    net._say("ann", subscribe=_resuming(reader, "quake/#"))
    subscriptions = forwarding(net, "b1").subscriptions
    (session,) = subscriptions._behind
    net.publish("pub", "quake/ca", b"3")
    assert list(subscriptions.catching_up(session)) == ["quake/#"]
    net.disconnect("ann")
    del net.clients["ann"]
    reader = net.connect("ann", "b1", keep_s=60)
    net.subscribe("ann", "quake/#")
    net.run(2.0)
    assert not subscriptions._behind
    assert reader.payloads() == [b"1", b"2", b"3"]


def test_who_goes_on_anew_is_fetched_only_that() -> None:
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1", keep_s=60)
    # What it misses cannot be had: that takes a while.
    net.crash("b2")
    net.run(5.0)
    reader.seen[STREAMS] = {7: 1}
    subscriptions = forwarding(net, "b1").subscriptions
    for _ in range(2):
        reader.requests += 1
        net._say("ann", subscribe=_resuming(reader, "quake/#"))
        net.run(2.0)
        assert len(subscriptions._groups) == 1
        assert len(subscriptions._fetches) == 1


def test_sessions_from_disk_begin_together() -> None:
    """One that wants nothing is in place at once: what others want is asked for, too."""
    net = tree()
    net.connect("idle", "b0", keep_s=60)
    net.subscribe("idle", "other")
    net.unsubscribe("idle", "other")
    net.connect("ann", "b0", keep_s=60)
    reader = net.subscribe("ann", "quake/#")
    net.connect("pub", "b2")
    net.publish("pub", "quake/ca", b"before")
    net.run(3.0)
    net.crash("b0")
    net.publish("pub", "quake/ca", b"while it was away")
    net.restart("b0")
    assert forwarding(net, "b0").subscriptions._fetches_begun == 1
    net.connect("ann", "b0", keep_s=60)
    net.run(1.0)
    assert reader.payloads()[-1] == b"while it was away"


def test_a_client_that_is_gone_is_fetched_nothing() -> None:
    net = tree()
    reader_that_has_read(net, 3)
    net.connect("ann", "b1")
    # Its broker cannot be reached: that takes a while.
    net.crash("b2")
    net.run(5.0)
    forwarder = forwarding(net, "b1").forwarder
    reader = net.clients["ann"]
    reader.seen["$streams"] = {7: 1}
    net.subscribe("ann", "quake/#", resume=True)
    assert len(forwarder._fetches) == 1
    net.disconnect("ann")
    net.run(0.2)
    assert len(forwarder._fetches) == 0
    assert forwarding(net, "b1").subscriptions._groups == {}


# ---- what is told --------------------------------------------------------------------------------


def test_when_all_brokers_died_each_client_is_told_once() -> None:
    net = tree()
    reader = reader_that_has_read(net, 3)
    for name in NAMES:
        net.crash(name)
    for name in NAMES:
        net.begin(name)
    net.run_until_ready()
    for turn, broker in enumerate(("b0", "b1", "b0")):
        net.connect("ann", broker)
        net.subscribe("ann", "quake/#", resume=True)
        net.run(3.0)
        assert len(missed(reader)) == 1, f"at {broker}, which is place {turn}"
    net.connect("another", "b2")
    net.publish("another", "quake/ca", b"after")
    net.run(2.0)
    assert reader.payloads()[3:] == [b"after"]


def test_a_loss_is_told_to_those_that_catch_up_too() -> None:
    net = tree()
    reader = reader_that_has_read(net, 3)
    net.connect("ann", "b1")
    net.crash("b2")
    net.run(5.0)
    reader.seen["$streams"] = {7: 1}
    net.subscribe("ann", "quake/#", resume=True)
    subscriptions = forwarding(net, "b1").subscriptions
    assert subscriptions._catching_up
    subscriptions.on_lost(StreamLost(LossRange(8, 1, 5)), net.now_s)
    net.run(0.2)
    assert len(missed(reader)) == 1


def _resuming(client: WiredClient, pattern: str) -> Subscribe:
    return Subscribe(
        request=client.requests,
        filters=[Filter(pattern=pattern)],
        resume=True,
        cursors=client.cursors(),
    )


# ---- what is held --------------------------------------------------------------------------------


def test_what_nobody_in_the_group_wants_is_not_held() -> None:
    session = Session("", "", 0, CoreSettings())
    session.filters["a/+"] = (filters.Filter.parse("a/+"),)
    group = CatchUpGroup({session: None}, {7: 1})
    for number, topic in enumerate(("a/1", "b/1", "a/2", "c"), 1):
        group.hold(Run(topic=topic, term=7, first_seq=number, count=1, events=bytes(1 << 10)))
    bundle = Bundle(1, ["c", "a/1"], [1, 1], [1, 1], [b"1", b"2"])
    bundle.terms, bundle.seqs = [7, 7], [5, 6]
    group.hold(bundle)
    held = list(group.advance(group.take_held()))
    assert [each.topic for each in held[:-1]] == ["a/2"]  # type: ignore[union-attr]
    assert isinstance(held[-1], Bundle)
    assert held[-1].topics == ["a/1"]


# ---- places --------------------------------------------------------------------------------------


def test_who_wants_little_is_told_once_a_minute_how_far_streams_are() -> None:
    net = tree()
    little = net.connect("ann", "b0")
    net.subscribe("ann", "flood/#")
    net.connect("bob", "b0")
    net.subscribe("bob", "quake/#")
    net.connect("pub", "b2")
    before = dict(little.seen[STREAMS])
    for number in range(5):
        net.publish("pub", "quake/ca", b"%d" % number)
    net.run(2.0)
    assert little.seen[STREAMS] == before
    net.run(PLACES_TOLD_S)
    assert little.events == []
    assert little.seen[STREAMS] == forwarding(net, "b0").forwarder.positions()
    assert sum(little.seen[STREAMS].values()) == sum(before.values()) + 5


def test_what_has_not_moved_is_not_told_again() -> None:
    telling = PlaceTelling()
    ann, bob = (Session(name, name, 0, CoreSettings()) for name in ("ann", "bob"))
    telling.begin(ann, 0.0)
    telling.begin(bob, 1.0)
    assert list(telling.due(PLACES_TOLD_S)) == [ann]
    assert list(telling.due(PLACES_TOLD_S + 1.0)) == [bob]
    assert telling.moved(ann, {1: 5, 2: 7}) == {1: 5, 2: 7}
    assert telling.moved(ann, {1: 5, 2: 8}) == {2: 8}
    assert telling.moved(ann, {1: 5, 2: 8}) == {}
    telling.forget(ann)
    assert list(telling.due(3 * PLACES_TOLD_S)) == [bob]


def test_a_process_that_does_not_know_where_its_session_stood_is_told() -> None:
    net = tree()
    reader = net.connect("ann", "b0")
    net.subscribe("ann", "quake/ca", "news/#", resume=True)
    assert [each.topic for each in missed(reader)] == ["quake/ca", "news/#"]


def test_a_loss_that_was_not_told_yet_is_not_on_disk_as_told() -> None:
    group = CatchUpGroup({}, {5: 7, 6: 1})
    group.end([5])
    assert group.reached[5] > 7
    assert group.told() == {5: 7, 6: 1}


# ---- who has read on elsewhere -------------------------------------------------------------------


def test_who_has_read_farther_than_a_stream_has_come_is_told_nothing_again() -> None:
    """What it missed came past the stream's own way, which a link that comes back is bringing."""
    net = tree()
    reader = reader_that_has_read(net, 3)
    stream = max(forwarding(net, "b2").forwarder.positions())
    sessions = forwarding(net, "b0").subscriptions
    (session,) = sessions._audiences.of("quake/ca").members
    sessions._read_ahead.note([session], {stream: 5}, {stream: 3})
    for number in range(3, 7):
        net.publish("pub", "quake/ca", b"%d" % number)
    net.run(2.0)
    assert reader.payloads() == [b"0", b"1", b"2", b"5", b"6"]
    assert not sessions._read_ahead


def test_where_they_have_read_farther_is_known_of_each() -> None:
    ahead = ReadAhead()
    ann, bob = (Session(name, name, 0, CoreSettings()) for name in ("ann", "bob"))
    ahead.note([ann, bob], {1: 5, 2: 7, 3: 2}, {1: 4, 3: 2})
    ahead.note([bob], {1: 9}, {1: 4})
    assert ahead.places(ann) == {1: 5, 2: 7}
    assert ahead.places(bob) == {1: 9}
    assert ahead.of(1, 6) == {bob: 9}
    ahead.come({1: 5, 2: 6})
    assert ahead.places(ann) == {2: 7}
    ahead.forget(ann)
    assert list(ahead.sessions()) == [bob]
    ahead.come({1: 9})
    assert not ahead
