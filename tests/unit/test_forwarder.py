"""Forwarders, one thing at a time; what seeds of the simulation found stands here, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import AckLevel, Event, Events, PeerFrame, Publication
from overlay.base.effects import Send
from overlay.forwarding.fetches import FilterSet
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import (
    FilterInPlace,
    ForwardingEffect,
    TakenOut,
    TopologyConflict,
    TopologyLearned,
)
from overlay.forwarding.forwarding_settings import ForwardingSettings
from overlay.forwarding.neighbours import ServingState
from overlay.forwarding.topology import Topology
from tests.support.tree_net import TreeNet


def chain(count: int, **options: Any) -> Topology:
    names = [f"b{i}" for i in range(count)]
    links = [[names[i - 1], names[i]] for i in range(1, count)]
    mapping = {"brokers": {n: f"h:{n}" for n in names}, "links": links, "root": "b0"}
    return Topology.from_mapping({**mapping, **options})


def net_of(topology: Topology, **settings: Any) -> TreeNet:
    net = TreeNet(topology, 1, settings=replace(ForwardingSettings(), **settings))
    net.start_all()
    net.run(2.0)
    assert all(node.is_ready for node in net.nodes.values())
    return net


def cut(net: TreeNet, one: str, other: str) -> None:
    net.cut.add(frozenset((one, other)))


MODES = [
    {"mode": mode, "advertisements": ads}
    for mode in ("peer", "hierarchical")
    for ads in (False, True)
]


@pytest.mark.parametrize("options", MODES)
def test_events_reach_the_far_end(options: dict[str, Any]) -> None:
    net = net_of(chain(4, **options))
    far = net.subscribe("b3", "x/+")
    near = net.subscribe("b0", "#")
    net.run(1.0)
    assert far.confirmed_s is not None
    publisher = net.publisher("b0", ["x/1", "y/1"])
    net.publish(publisher, "x/1", [1, 2, 3])
    net.publish(publisher, "y/1", [1])
    net.run(3.0)
    net.publish_bundle(publisher, ["x/1", "y/1"])
    net.run(3.0)
    assert len(far.got) == 4
    assert len(near.got) == 6
    net.check(losses_told=False)


def test_only_what_is_wanted_travels() -> None:
    net = net_of(chain(3))
    net.subscribe("b2", "x/1", "v > 5")
    net.run(1.0)
    middle = net.nodes["b1"]
    net.publish(net.publisher("b0", ["x/1"]), "x/1", [1, 9, 2, 8])
    net.run(2.0)
    assert middle.counters.tree_events_forwarded == 2
    net.check(losses_told=False)


def test_replicated_waits_for_a_neighbour() -> None:
    net = net_of(chain(2))
    cut(net, "b0", "b1")
    net.run(6.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    net.run(3.0)
    assert publisher.settled["x"] == 0
    net.cut.clear()
    net.run(3.0)
    assert publisher.settled["x"] == 1
    assert net.nodes["b0"].keeper == "b1"


def test_alone_in_the_topology_replicated_is_rp() -> None:
    net = net_of(chain(1))
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    assert publisher.settled["x"] == 1


def test_rp_does_not_wait() -> None:
    net = net_of(chain(2))
    cut(net, "b0", "b1")
    net.run(6.0)
    event = Events(events=[Event(payload=b"1")]).SerializeToString()
    publication = Publication(
        topic="x", publisher=7, first_number=1, count=1, ack=AckLevel.ACK_LEVEL_RP, events=event
    )
    effects = net.nodes["b0"].publish([publication], net.now_s)
    assert [type(each).__name__ for each in effects] == ["Accepted"]


def test_a_repeat_is_taken_once() -> None:
    net = net_of(chain(2))
    got = net.subscribe("b1", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1, 2])
    [publication] = publisher.open["x"]
    for _ in range(3):
        net.perform("b0", net.nodes["b0"].publish([publication], net.now_s))
    net.run(1.0)
    assert len(got.got) == 2
    assert net.nodes["b0"].counters.published_repeats == 3


def test_an_origin_gets_back_what_it_published() -> None:
    net = net_of(chain(3))
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    cut(net, "b1", "b2")
    net.publish(publisher, "x", [1, 2, 3])
    net.run(1.0)
    assert publisher.settled["x"] == 3
    net.crash("b0")
    net.run(1.0)
    net.start("b0")
    net.run(7.0)
    net.cut.clear()
    net.publish(publisher, "x", [4])
    net.run(10.0)
    assert sorted(number for _, _, number in got.got) == [1, 2, 3, 4]
    net.check(losses_told=False)


def test_origin_and_keeper_die_at_once_and_it_is_told() -> None:
    net = net_of(chain(3))
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    net.run(1.0)
    cut(net, "b1", "b2")
    net.publish(publisher, "x", [2, 3])
    net.run(1.0)
    assert publisher.settled["x"] == 3
    for broker in ("b0", "b1"):
        net.crash(broker)
    for broker in ("b0", "b1"):
        net.start(broker)
    net.cut.clear()
    net.run(25.0)
    assert len(got.got) == 1
    assert got.told_s
    assert net.missing(told_excuses=False)
    net.check(losses_told=True)


def test_what_is_no_longer_retained_is_told() -> None:
    net = net_of(chain(2), own_log_entries_max=5, tree_log_entries_max=5)
    got = net.subscribe("b1", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    cut(net, "b0", "b1")
    for value in range(20):
        net.publish(publisher, "x", [value])
    net.run(6.0)
    net.cut.clear()
    net.run(10.0)
    assert [each.loss.upto for _, each in net.losses] == [15]
    assert sorted(number for _, _, number in got.got) == [16, 17, 18, 19, 20]


def test_a_log_that_is_too_small_for_a_slow_link_is_made_up_for() -> None:
    """The neighbour is sent from the own log what the common one has dropped."""
    net = net_of(chain(2), tree_log_entries_max=3, link_window_bytes=10)
    got = net.subscribe("b1", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    for value in range(40):
        net.publish(publisher, "x", [value])
    net.run(20.0)
    assert len(got.got) == 40
    net.check(losses_told=False)


def test_a_session_from_elsewhere_fetches_its_past() -> None:
    net = net_of(chain(3), fetch_part_bytes=1)
    net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    net.run(1.0)
    cursor = net.nodes["b2"].positions()
    for value in range(4):
        net.publish(publisher, "x", [value])
    net.run(2.0)
    x = Filter.parse("x")
    net.perform("b1", net.nodes["b1"].want(x, net.now_s))
    net.perform("b1", net.nodes["b1"].fetch(9, [x], cursor, net.now_s))
    net.run(5.0)
    parts = net.fetched["b1"]
    assert [part.done for part in parts][-1:] == [True]
    runs = [portion for part in parts for portion in part.portions]
    assert [run.first_number for run in runs] == [2, 3, 4, 5]  # type: ignore[union-attr]
    ends = {stream: number for part in parts for stream, number in part.ends.items()}
    assert 5 in ends.values()


# ---- found by seeds ------------------------------------------------------------------------------


def test_a_link_that_breaks_just_after_a_repair_was_handed_to_it() -> None:
    """The repair was taken for had: the next session went on from a log that never had it."""
    net = net_of(chain(3))
    publisher = net.publisher("b0", ["x"])
    cut(net, "b1", "b2")
    net.run(6.0)
    got = net.subscribe("b2", "x")
    net.run(0.5)
    net.publish(publisher, "x", [1, 2, 3])
    net.run(1.0)
    net.cut.clear()
    for _ in range(100):
        net.run(0.1)
        if net.nodes["b1"].neighbour_states()["b2"] is ServingState.LIVE:
            break
    cut(net, "b1", "b2")
    net.run(6.0)
    net.cut.clear()
    net.run(10.0)
    assert len(got.got) == 3
    net.check(losses_told=False)


def test_a_neighbour_unheard_of_while_subscriptions_were_confirmed() -> None:
    net = TreeNet(chain(2), 1)
    cut(net, "b0", "b1")
    net.start_all()
    got = net.subscribe("b1", "x")
    net.run(11.0)
    assert got.confirmed_s is not None
    net.publish(net.publisher("b0", ["x"]), "x", [1])
    net.run(1.0)
    net.cut.clear()
    net.run(5.0)
    assert got.told_s
    net.check(losses_told=True)


def test_a_neighbour_that_was_one_before_is_not_new() -> None:
    """Its streams were taken up where they stood, not where they began."""
    first = chain(3)
    star = {
        **first.to_mapping(),
        "version": 2,
        "links": [["b0", "b2"], ["b1", "b2"]],
    }
    net = net_of(first)
    got = net.subscribe("b0", "x")
    net.run(1.0)
    net.apply(Topology.from_mapping(star), "b0")
    net.run(5.0)
    cut(net, "b0", "b2")
    net.run(6.0)
    brokers = {**star["brokers"], "b3": "h:b3"}
    links = [["b0", "b1"], ["b1", "b2"], ["b1", "b3"]]
    third = Topology.from_mapping({**star, "version": 3, "brokers": brokers, "links": links})
    cut(net, "b0", "b1")
    net.apply(third, "b1")
    net.start("b3")
    net.run(4.0)
    net.publish(net.publisher("b3", ["x"]), "x", [1])
    net.run(2.0)
    net.cut.clear()
    net.run(12.0)
    assert len(got.got) == 1
    net.check(losses_told=False)


@pytest.mark.parametrize("mode", ["peer", "hierarchical"])
def test_an_advertisement_that_comes_late(mode: str) -> None:
    """What was published while its advertisement could not come is fetched, not passed over."""
    net = net_of(chain(4, mode=mode, advertisements=True))
    got = net.subscribe("b0", "x")
    net.run(1.0)
    cut(net, "b1", "b2")
    net.run(6.0)
    net.publish(net.publisher("b3", ["x"]), "x", [1, 2])
    net.run(4.0)
    net.cut.clear()
    net.run(10.0)
    assert len(got.got) == 2
    net.check(losses_told=False)


def test_a_filter_that_is_wanted_again_waits_again() -> None:
    """It was said to be in place because it had been asked for before, and given up since."""
    net = net_of(chain(3))
    cut(net, "b1", "b2")
    first = net.subscribe("b2", "x")
    net.run(0.2)
    net.unsubscribe(first)
    net.run(0.2)
    again = net.subscribe("b2", "x")
    effects = net.nodes["b2"].want(Filter.parse("y"), net.now_s)
    assert FilterInPlace not in {type(each) for each in effects}
    waiting = net.nodes["b2"]._exchange._confirmations._waiting[""]
    waiting[0].done()
    assert net.nodes["b2"]._effects == []
    waiting[1].done()
    assert [type(each) for each in net.nodes["b2"]._effects] == [FilterInPlace]
    assert again.confirmed_s is None


def test_a_neighbour_that_is_one_again_has_a_session_of_its_own() -> None:
    """Numbers of sessions began anew with the link: what had waited for the former one, waited."""
    first = chain(3)
    star = {**first.to_mapping(), "version": 2, "links": [["b0", "b2"], ["b1", "b2"]]}
    net = net_of(first)
    before = net.nodes["b0"]._context.neighbours["b1"].session
    net.apply(Topology.from_mapping(star), "b0")
    net.run(3.0)
    again = {**first.to_mapping(), "version": 3}
    net.apply(Topology.from_mapping(again), "b0")
    net.run(3.0)
    assert net.nodes["b0"]._context.neighbours["b1"].session > before


def test_filters_of_a_fetch_are_in_an_order_of_their_own() -> None:
    """They came from sets, and one seed had another trace in each process."""
    filters = [Filter.parse(name) for name in ("x", "a/b", "y/#")]
    assert FilterSet(filters).filters == FilterSet(reversed(filters)).filters


# ---- what is wrong -------------------------------------------------------------------------------


def test_another_topology_of_the_same_version_is_told() -> None:
    topology = chain(2)
    other = Topology.from_mapping({**topology.to_mapping(), "covering": False})
    nodes = {
        "b0": Forwarder("b0", "h:b0", 1, topology, ForwardingSettings(), 0.0),
        "b1": Forwarder("b1", "h:b1", 1, other, ForwardingSettings(), 0.0),
    }
    for node in nodes.values():
        node.start(0.0)
    sends = [each for each in nodes["b1"].tick(0.1) if isinstance(each, Send)]
    effects = [e for send in sends for e in nodes["b0"].handle(send.frame, 0.1)]
    assert TopologyConflict("b1", 1) in effects
    assert nodes["b0"].neighbour_states() == {"b1": ServingState.CLOSED}


def test_strangers_are_counted() -> None:
    node = Forwarder("b0", "h:b0", 1, chain(2), ForwardingSettings(), 0.0)
    frame = PeerFrame()
    frame.sender.broker_id = "x"
    frame.messages.add().link_batch.number = 1
    frame.messages.add().ping.nonce = 1
    frame.messages.add().topology_offer.topology = "no topology"
    node.handle(frame, 0.1)
    assert node.counters.link_frames_strange == 3


def test_an_older_topology_is_left_for_the_newer_one() -> None:
    old = chain(2)
    new = Topology.from_mapping({**old.to_mapping(), "version": 5})
    net = TreeNet(old, 1)
    net.start("b0")
    net.topology = new
    net.start("b1")
    net.run(2.0)
    assert net.nodes["b0"].topology.version == 5
    net.check(losses_told=False)


def test_a_broker_that_is_gone_for_good_leaves_its_streams_to_its_keeper() -> None:
    first = chain(3)
    net = net_of(first)
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    cut(net, "b1", "b2")
    net.publish(publisher, "x", [1, 2])
    net.run(1.0)
    assert publisher.settled["x"] == 2
    net.crash("b0")
    net.run(1.0)
    without = {
        **first.to_mapping(),
        "version": 2,
        "root": "b1",
        "brokers": {"b1": "h:b1", "b2": "h:b2"},
        "links": [["b1", "b2"]],
    }
    net.apply(Topology.from_mapping(without), "b1")
    net.run(1.0)
    net.cut.clear()
    net.run(8.0)
    assert len(got.got) == 2
    net.check(losses_told=False)


# ---- who is taken out ----------------------------------------------------------------------------


def smaller(before: Topology, *names: str) -> Topology:
    """The next version, with these alone."""
    mapping = before.to_mapping()
    brokers = {name: mapping["brokers"][name] for name in names}
    links = [link for link in mapping["links"] if set(link["between"]) <= set(names)]
    return Topology.from_mapping(
        {**mapping, "version": before.version + 1, "brokers": brokers, "links": links}
    )


def effects_of(net: TreeNet, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """Of each broker, from now on."""
    found: dict[str, list[object]] = {name: [] for name in net.nodes}
    perform = net.perform

    def note(broker: str, effects: list[ForwardingEffect]) -> None:
        found[broker] += effects
        perform(broker, effects)

    monkeypatch.setattr(net, "perform", note)
    return found


def test_whoever_is_taken_out_learns_it_also_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(chain(4))
    found = effects_of(net, monkeypatch)
    less = smaller(net.topology, "b0", "b1")
    net.apply(less, "b0")
    net.run(1.0)
    assert TopologyLearned(less, "b0") in found["b1"]
    for name in ("b2", "b3"):
        assert TakenOut(less) in found[name]
        # It goes, and is not alone in a tree of its own until then.
        assert net.nodes[name].topology.version == 1
    assert net.nodes["b1"].neighbour_states() == {"b0": ServingState.LIVE}


def test_a_broker_at_another_address_is_taken_out_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = net_of(chain(2))
    found = effects_of(net, monkeypatch)
    moved = Topology.from_mapping(
        {**net.topology.to_mapping(), "version": 2, "brokers": {"b0": "h:b0", "b1": "h:new"}}
    )
    net.apply(moved, "b0")
    net.run(1.0)
    assert TakenOut(moved) in found["b1"]
    greeted = [
        each.to.address
        for each in found["b0"]
        if isinstance(each, Send) and each.frame.messages[0].HasField("link_greeting")
    ]
    assert greeted[-1] == "h:new"
