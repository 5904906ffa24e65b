"""Forwarders, one thing at a time; what seeds of the simulation found stands here, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Event,
    Events,
    KeepCopies,
    PeerFrame,
    Publication,
    Run,
)
from overlay.base.effects import Accepted, Deliver, DeliverBundle, Send
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import (
    FilterInPlace,
    ForwardingEffect,
    LossRange,
    TakenOut,
    TopologyConflict,
    TopologyLearned,
)
from overlay.forwarding.keeping.fetches import OpenFetch
from overlay.forwarding.links.neighbours import ServingState
from overlay.forwarding.streams.filter_set import FilterSet
from overlay.forwarding.streams.known_streams import stream_id
from overlay.forwarding.streams.portions import events_in
from overlay.forwarding.tree.topology import Topology
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


def test_topics_of_the_brokers_own_are_advertised_like_others() -> None:
    net = net_of(chain(3, advertisements=True))
    topic = "$summaries/0"
    net.perform("b2", net.nodes["b2"].want(Filter.of_system(topic), net.now_s))
    net.publish(net.publisher("b0", [topic]), topic, [1])
    net.run(3.0)
    assert net.nodes["b2"].counters.tree_events_local == 1
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
    effects = net.nodes["b0"].publish([one_event("x", 1, AckLevel.ACK_LEVEL_RP)], net.now_s)
    assert [type(each).__name__ for each in effects] == ["Accepted"]


def one_event(topic: str, number: int, ack: AckLevel.ValueType) -> Publication:
    event = Events(events=[Event(payload=b"1")]).SerializeToString()
    return Publication(
        topic=topic, publisher=7, first_number=number, count=1, ack=ack, events=event
    )


def test_what_is_said_of_an_event_is_true_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledgement is of all numbers up to its own, whatever they wait for."""
    net = net_of(chain(2))
    cut(net, "b0", "b1")
    net.run(6.0)
    node, now_s = net.nodes["b0"], net.now_s
    rp, replicated = AckLevel.ACK_LEVEL_RP, AckLevel.ACK_LEVEL_REPLICATED
    first = [one_event("x", 1, replicated), one_event("x", 2, rp), one_event("y", 1, rp)]
    said = [each for each in node.publish(first, now_s) if isinstance(each, Accepted)]
    assert [each.ack.acknowledged[0].topic for each in said] == ["y"]
    bundle = Bundle(7, ["x", "z"], [3, 1], [1, 1], [b"1", b"1"])
    bundle.ack, bundle.pending = rp, [0, 0]
    assert not any(isinstance(each, Accepted) for each in node.publish_bundle(bundle, now_s))
    later: list[object] = []
    perform = net.perform

    def note(broker: str, effects: list[ForwardingEffect]) -> None:
        later.extend(each for each in effects if isinstance(each, Accepted))
        perform(broker, [each for each in effects if not isinstance(each, Accepted)])

    monkeypatch.setattr(net, "perform", note)
    net.cut.clear()
    net.run(3.0)
    assert len(later) == 3
    effects = node.publish([one_event("x", 4, rp)], net.now_s)
    assert any(isinstance(each, Accepted) for each in effects)


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


def _published(net: TreeNet, broker: str, number: int) -> Run:
    """The run that becomes of an event of a publisher whose others are all settled."""
    event = Events(events=[Event(payload=b"x")]).SerializeToString()
    publication = Publication(
        topic="x", publisher=9, first_number=number, count=1, settled=number - 1, events=event
    )
    effects = net.nodes[broker].publish([publication], net.now_s)
    (delivered,) = [effect.run for effect in effects if isinstance(effect, Deliver)]
    return delivered


def test_events_of_a_publisher_that_changed_brokers_say_what_is_elsewhere() -> None:
    """With each of them: whoever reads on may begin behind the first."""
    net = net_of(chain(2))
    for broker in ("b0", "b1"):
        net.subscribe(broker, "x")
    net.run(1.0)
    assert [_published(net, "b0", number).since_number for number in (1, 2)] == [0, 0]
    assert [_published(net, "b1", number).since_number for number in (3, 4)] == [3, 3]
    assert _published(net, "b0", 5).since_number == 5
    # In a bundle, too, beside what a publisher began there.
    bundle = Bundle(9, ["x", "y"], [6, 1], [1, 1], [b"", b""])
    bundle.pending = [0, 0]
    net.subscribe("b0", "y")
    effects = net.nodes["b0"].publish_bundle(bundle, net.now_s)
    (delivered,) = [effect.bundle for effect in effects if isinstance(effect, DeliverBundle)]
    again = Bundle.from_wire(delivered.to_wire())
    assert again.since_numbers == [5, 0]
    assert again.pick([0]).run_at(0).since_number == 5


def test_what_a_former_life_published_is_in_another_stream() -> None:
    net = net_of(chain(2))
    net.subscribe("b0", "x")
    net.run(1.0)
    _published(net, "b0", 1)
    net.run(1.0)
    net.crash("b0")
    net.start("b0")
    net.subscribe("b0", "x")
    net.run(8.0)
    assert _published(net, "b0", 2).since_number == 2


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


def test_copies_are_in_the_order_of_lives_whatever_comes_first() -> None:
    """An event of a new life overtook copies of the former one: none of it was found again."""
    node = net_of(chain(2)).nodes["b0"]
    keeping, neighbour = node._keeping, node._context.neighbours["b1"]
    former, present = 5, 9
    message = KeepCopies(keep=True)
    message.streams.add(stream=former, end=2)
    message.streams.add(stream=present)
    keeping.on_keep(neighbour, message)
    early = Run(topic="x", term=present, first_seq=1, count=1)
    keeping.keep("b1", early)
    for copied in (Run(topic="x", term=former, first_seq=1, count=2), early):
        keeping.keep("b1", copied, in_turn=True)
    found = [entry.last for s in (former, present) for entry in keeping.entries("b1", s, 0)]
    assert found == [2, 1]


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


def test_with_advertisements_a_filter_waits_for_what_is_advertised() -> None:
    """The neighbour's table had not come: nothing was asked of it, and that was soon confirmed."""
    net = net_of(chain(5, advertisements=True))
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    net.run(5.0)
    net.crash("b4")
    net.start("b4")
    neighbour = net.nodes["b4"]._context.neighbours["b3"]
    for _ in range(100):
        if neighbour.is_open:
            break
        net.run(0.1)
    assert not neighbour.table_version
    got = net.subscribe("b4", "x")
    for _ in range(100):
        if got.confirmed_s is not None:
            break
        net.run(0.1)
    net.publish(publisher, "x", [2])
    net.run(3.0)
    assert len(got.got) == 1


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


def test_a_former_keeper_takes_over_nothing() -> None:
    """What it has is not all: the present one's is."""
    names = ("b0", "b1", "b2", "b3")
    links = {1: ["b1", "b3"], 2: ["b2", "b3"]}

    def version(number: int) -> Topology:
        present = names if number < 3 else names[:3]
        pairs = [["b0", "b1"], ["b0", "b2"], *([links[number]] if number < 3 else [])]
        mapping = {"brokers": {n: f"h:{n}" for n in present}, "links": pairs, "root": "b0"}
        return Topology.from_mapping({**mapping, "version": number})

    net = net_of(version(1))
    got = net.subscribe("b0", "x")
    net.run(1.0)
    publisher = net.publisher("b3", ["x"])
    for number in (2, 3):
        net.publish(publisher, "x", [number])
        net.run(3.0)
        net.apply(version(number), "b0")
        if number == 3:
            net.crash("b3")
        net.run(6.0)
    assert len(got.got) == 2
    assert [name for name, node in net.nodes.items() if len(node._context.own.highs) > 2] == ["b2"]
    assert net.losses == []


# ---- the past, while its origin is gone ----------------------------------------------------------


def test_a_keeper_that_has_only_some_copies_again_does_not_vouch_for_all() -> None:
    """It was restarted, and its origin died before it had all copies once more."""
    net = net_of(chain(3), link_window_bytes=10)
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b1", ["x"])
    cut(net, "b1", "b2")
    for value in range(30):
        net.publish(publisher, "x", [value])
    net.run(10.0)
    assert publisher.settled["x"] == 30
    assert net.nodes["b1"].keeper == "b0"
    net.crash("b0")
    net.start("b0")
    for _ in range(100):
        net.run(0.1)
        if any(store.highs for store in net.nodes["b0"]._keeping._stores.values()):
            break
    net.crash("b1")
    net.start("b1")
    net.cut.clear()
    net.run(25.0)
    assert net.missing(told_excuses=False)
    assert got.told_s


def fetched_by(net: TreeNet, broker: str, positions: Mapping[int, int], wanted: Filter) -> Fetched:
    """What a session gets there, within less than what a link that is down is waited for."""
    net.perform(broker, net.nodes[broker].want(wanted, net.now_s))
    net.run(1.0)
    net.fetched.clear()
    net.perform(broker, net.nodes[broker].fetch(1, [wanted], positions, net.now_s))
    net.run(3.0)
    parts = net.fetched[broker]
    numbers = [
        run.first_number + offset
        for part in parts
        for run in part.portions
        if isinstance(run, Run)
        for offset in (run.selected if run.partial else range(run.count))
    ]
    losses = [(each.after, each.upto) for part in parts for each in part.losses]
    return Fetched(numbers, losses, bool(parts) and parts[-1].done)


class Fetched(NamedTuple):
    numbers: list[int]
    losses: list[tuple[int, int | None]]
    is_done: bool


X = Filter.parse("x")
STREAM_OF = {name: stream_id(name, 1_700_000_000_001) for name in ("b0", "b1", "b2", "b3")}


def test_the_keeper_answers_for_an_origin_that_is_gone() -> None:
    """Nobody wanted these events when they were published."""
    net = net_of(chain(3), fetch_part_bytes=1)
    net.publish(net.publisher("b0", ["x"]), "x", [1, 2])
    net.publish(net.publisher("b0", ["x"]), "x", [3])
    net.run(2.0)
    net.crash("b0")
    net.run(5.0)
    found = fetched_by(net, "b2", {STREAM_OF["b0"]: 1}, X)
    assert found == Fetched([2, 1], [], True)


def test_the_keeper_passes_on_what_it_has_a_copy_of_only() -> None:
    """Events wait for a neighbour that resumes; their copies do not, and are acknowledged."""
    net = net_of(chain(3))
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.nodes["b0"]._serving.serve = lambda neighbour, now_s: None  # type: ignore[method-assign]
    net.publish(publisher, "x", [1, 2])
    net.run(1.0)
    assert publisher.settled["x"] == 2
    assert not got.got
    net.crash("b0")
    net.run(6.0)
    assert len(got.got) == 2
    assert net.losses == []


def away(net: TreeNet, *, wanted_before: bool) -> Fetched:
    """b3 - b2 - b1 - b0: b0 is the origin, b1, its keeper, is cut off with it; b2 is asked."""
    if wanted_before:
        net.subscribe("b3", "x")
    else:
        net.subscribe("b3", "x", "v > 2")
    net.run(1.0)
    net.publish(net.publisher("b0", ["x"]), "x", [1, 2, 3])
    net.run(2.0)
    cut(net, "b2", "b1")
    net.run(5.0)
    return fetched_by(net, "b2", {STREAM_OF["b0"]: 0}, X)


def test_a_broker_on_the_way_answers_if_its_log_has_all() -> None:
    net = net_of(chain(4))
    assert away(net, wanted_before=True) == Fetched([1, 2, 3], [], True)


@pytest.mark.parametrize(("where", "asked"), [("", 0), ("v > 2", 1)])
def test_origins_are_asked_only_if_nobody_on_the_way_has_all(where: str, asked: int) -> None:
    """What was let by before a filter stood is not in the log, though nothing newer is known."""
    net = net_of(chain(4))
    net.subscribe("b3", "x", where)
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1, 2])
    # Before it is said how far the stream is.
    net.run(0.4)
    origin = net.nodes["b0"].counters
    before = origin.tree_fetches
    net.perform("b2", net.nodes["b2"].want(X, net.now_s))
    net.perform("b2", net.nodes["b2"].fetch(1, [X], {STREAM_OF["b0"]: 0}, net.now_s))
    net.publish(publisher, "x", [3])
    net.run(5.0)
    assert origin.tree_fetches - before == asked
    fetched = [run for part in net.fetched["b2"] for run in part.portions]
    assert sum(events_in(each) for each in fetched) >= 2
    assert net.fetched["b2"][-1].done


def test_a_broker_on_the_way_does_not_answer_if_something_was_not_let_by() -> None:
    net = net_of(chain(4))
    found = away(net, wanted_before=False)
    assert found == Fetched([], [], False)
    net.run(6.0)
    assert [part.losses for part in net.fetched["b2"] if part.losses] == [
        [LossRange(STREAM_OF["b0"], 0, 3)]
    ]


def test_a_broker_on_the_way_does_not_answer_from_a_log_that_has_dropped_something() -> None:
    net = net_of(chain(4), tree_log_entries_max=2)
    net.subscribe("b3", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    for value in range(4):
        net.publish(publisher, "x", [value])
    net.run(2.0)
    cut(net, "b2", "b1")
    net.run(5.0)
    assert fetched_by(net, "b2", {STREAM_OF["b0"]: 1}, X) == Fetched([], [], False)
    assert fetched_by(net, "b2", {STREAM_OF["b0"]: 2}, X).numbers == [3, 4]


def test_what_only_the_origin_had_comes_after_an_answer_without_it() -> None:
    """Acknowledged as `rp`, while its link was cut: later, in order, and not declared absent."""
    net = net_of(chain(3))
    got = net.subscribe("b1", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1])
    net.run(1.0)
    cut(net, "b0", "b1")
    net.run(5.0)
    net.publish(publisher, "x", [2, 3])
    assert fetched_by(net, "b2", {}, X) == Fetched([1], [], True)
    late = net.subscribe("b2", "x")
    net.cut.clear()
    net.run(8.0)
    assert sorted(number for _, _, number in got.got) == [1, 2, 3]
    assert sorted(number for _, _, number in late.got) == [2, 3]
    net.check(losses_told=False)


def test_of_a_stream_that_nobody_has_a_word_of_the_rest_is_lost() -> None:
    net = net_of(chain(3))
    unknown = stream_id("b0", 1_600_000_000_000)
    elsewhere = stream_id("gone", 1_600_000_000_000)
    found = fetched_by(net, "b2", {unknown: 5, elsewhere: 7}, X)
    assert sorted(found.losses) == [(5, None), (7, None)]
    assert found.is_done


def test_what_a_broker_on_the_way_has_no_room_to_fetch_is_lost() -> None:
    net = net_of(chain(3), fetches_max=1)
    got = net.subscribe("b2", "x")
    net.run(1.0)
    publisher = net.publisher("b0", ["x"])
    net.publish(publisher, "x", [1, 2])
    net.run(2.0)
    stuck = OpenFetch("b9", [], {}, lambda part: None, lambda: False, unnamed=False)
    net.nodes["b1"]._fetches._open.put(99, stuck)
    assert fetched_by(net, "b2", {STREAM_OF["b0"]: 1}, X) == Fetched([], [(1, 2)], True)
    del net.nodes["b1"]._fetches._open[99]
    # The stream goes on.
    net.publish(publisher, "x", [3])
    net.run(2.0)
    assert len(got.got) == 3


def test_all_brokers_die_at_once_and_it_is_told() -> None:
    net = net_of(chain(3))
    net.publish(net.publisher("b0", ["x"]), "x", [1, 2])
    net.run(2.0)
    for broker in list(net.nodes):
        net.crash(broker)
    net.start_all()
    net.run(12.0)
    found = fetched_by(net, "b2", {STREAM_OF["b0"]: 1}, X)
    assert found == Fetched([], [(1, None)], True)
    # And whoever comes later, too, after a life of that broker that nothing was lost of.
    net.crash("b0")
    net.start("b0")
    net.run(12.0)
    assert fetched_by(net, "b2", {STREAM_OF["b0"]: 1}, X) == Fetched([], [(1, None)], True)


def test_doubts_outlive_the_life_that_had_them() -> None:
    """A keeper had some copies of a stream, which may have gone on; and gave them back twice."""
    net = net_of(chain(3))
    net.publish(net.publisher("b1", ["x"]), "x", [1])
    net.run(2.0)
    cut(net, "b1", "b2")
    net.crash("b1")
    net.start("b1")
    net.run(12.0)
    net.cut.clear()
    net.run(5.0)
    net.crash("b1")
    net.start("b1")
    net.run(5.0)
    assert fetched_by(net, "b2", {STREAM_OF["b1"]: 1}, X) == Fetched([], [(1, None)], True)


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
