"""What must hold of a ring, said without the code that is to make it hold.

`check_listed` holds whenever a publisher is told that an event is safe, `check_catalogue` at the
end of every run. `check_ring` holds whenever the ring has had no partition for a while (Zave's
invariant; her proof assumes that no node loses all its successors at once). `check_rest` holds once
the network has been whole and nobody has died for long enough: the ring is compared with the static
geometry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.overlay_pb2 import Events
from overlay.base.identifiers import NodeId, distance, key_of, show_node
from overlay.base.membership import Status
from overlay.history.topic_log import TopicLog
from overlay.node import Node
from overlay.placement.geometry import RingGeometry
from simulator.checkers import may_be_gone
from simulator.clients import PublishedEvent
from simulator.world import SimulatedBroker, World

# Names that were lost with a part of the catalogue are back within this (`catalogue_check_s`), and
# what was announced before may be acknowledged meanwhile.
_ANNOUNCING_AGAIN_S = 15.0


def _members(brokers: Iterable[SimulatedBroker]) -> dict[NodeId, Node]:
    nodes = (ring_of(broker.core).node for broker in brokers if broker.alive)
    return {node.me.node_id: node for node in nodes if node.ring.status is Status.MEMBER}


# ---- the ring ------------------------------------------------------------------------------------


def check_ring(brokers: Iterable[SimulatedBroker]) -> list[str]:
    """INV-2: one ordered ring, everyone connected to it, every list ordered and without repeats."""
    members = _members(brokers)
    best: dict[NodeId, NodeId] = {}
    violations: list[str] = []
    for node_id, node in members.items():
        successors = [peer.node_id for peer in node.ring.successors]
        away = [distance(node_id, successor) for successor in successors]
        if away != sorted(set(away)) or 0 in away:
            violations.append(f"{node.me}: successor list is not in order: {_show(successors)}")
        living = [successor for successor in successors if successor in members]
        if living:
            best[node_id] = living[0]
        elif len(members) > 1:
            violations.append(f"{node.me}: no living successor in {_show(successors)}")
    if violations or len(members) <= 1:
        return violations
    rings = _cycles(best)
    if len(rings) != 1:
        return [f"{len(rings)} rings: {'; '.join(_show(ring) for ring in rings)}"]
    ring = rings[0]
    turns = sum(distance(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))
    if turns != 1 << 64:
        violations.append(f"the ring goes round {turns >> 64} times: {_show(ring)}")
    return violations


def _cycles(step: dict[NodeId, NodeId]) -> list[list[NodeId]]:
    """The cycles that following `step` from anywhere ends in."""
    cycles: list[list[NodeId]] = []
    done: set[NodeId] = set()
    for start in sorted(step):
        path: list[NodeId] = []
        node = start
        while node not in done and node not in path:
            path.append(node)
            node = step[node]
        if node not in done:
            cycles.append(path[path.index(node) :])
        done.update(path)
    return cycles


def _show(node_ids: Iterable[NodeId]) -> str:
    return "[" + " ".join(show_node(node_id)[:6] for node_id in node_ids) + "]"


# ---- at rest -------------------------------------------------------------------------------------


def check_rest(brokers: Sequence[SimulatedBroker]) -> list[str]:
    """INV-7, 8, 9: ring, fingers, rendezvous points and trees are as the geometry says."""
    living = [broker for broker in brokers if broker.alive]
    nodes = {ring_of(broker.core).node.me.node_id: ring_of(broker.core).node for broker in living}
    if not nodes:
        return []
    outside = [str(n.me) for n in nodes.values() if n.ring.status is not Status.MEMBER]
    if outside:
        return [f"not members of the ring: {', '.join(outside)}"]
    geometry = RingGeometry(nodes)
    in_order = [nodes[NodeId(int(node_id))] for node_id in geometry.node_ids]
    return [
        *_check_neighbours(in_order),
        *_check_fingers(in_order, geometry),
        *_check_rendezvous_points(in_order, geometry),
        *_check_trees(living, in_order, geometry),
    ]


def _check_neighbours(in_order: list[Node]) -> Iterable[str]:
    size = len(in_order)
    for i, node in enumerate(in_order):
        reach = min(size - 1, node.settings.successors_max)
        expected = [in_order[(i + k) % size].me.node_id for k in range(1, reach + 1)]
        successors = [peer.node_id for peer in node.ring.successors]
        if successors != expected:
            yield f"{node.me}: successors {_show(successors)} instead of {_show(expected)}"
        before = in_order[i - 1].me.node_id
        if node.ring.range_low != before:
            low = show_node(node.ring.range_low)
            yield f"{node.me}: predecessor {low} instead of {show_node(before)}"
        if not node.reigns.ready:
            yield f"{node.me}: still waits for its range"


def _check_fingers(in_order: list[Node], geometry: RingGeometry) -> Iterable[str]:
    fingers = geometry.fingers()
    for i, node in enumerate(in_order):
        expected = {in_order[k].me.node_id for k in fingers[i] if k != i}
        targets = {peer.node_id for peer in node.ring.fingers.routes.targets}
        if targets != expected:
            yield (
                f"{node.me}: routes by {_show(sorted(targets))}"
                f" instead of {_show(sorted(expected))}"
            )


def _check_rendezvous_points(in_order: list[Node], geometry: RingGeometry) -> Iterable[str]:
    for i, node in enumerate(in_order):
        for topic in node.reigns.by_topic:
            owner = geometry.successor_of(key_of(topic))
            if owner != i:
                yield f"{node.me}: rendezvous point of {topic!r}, which is {in_order[owner].me}'s"
        if node.succession.handing:
            yield f"{node.me}: {node.succession.handing} topics were never taken over"


def _check_trees(
    living: list[SimulatedBroker], in_order: list[Node], geometry: RingGeometry
) -> Iterable[str]:
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    present: defaultdict[str, set[int]] = defaultdict(set)
    for broker in living:
        index = geometry.index_of(ring_of(broker.core).node.me.node_id)
        for topic in ring_of(broker.core).node.interests.wanted:
            wanted[topic].append(index)
        for topic, tree in ring_of(broker.core).node.trees.topics.items():
            if tree.entrusted:
                present[topic].add(index)
    for topic in sorted({*wanted, *present}):
        root = geometry.successor_of(key_of(topic))
        shape = geometry.tree(root, wanted[topic])
        expected = set(shape.nodes) if wanted[topic] else set()
        if present[topic] != expected:
            missing = _show(in_order[i].me.node_id for i in sorted(expected - present[topic]))
            extra = _show(in_order[i].me.node_id for i in sorted(present[topic] - expected))
            yield f"tree of {topic!r}: missing {missing}, too many {extra}"
            continue
        for i in expected:
            tree = in_order[i].trees.topics[topic]
            children = {child.node_id for child in tree.delegates.values() if child is not None}
            due = {in_order[k].me.node_id for k in shape.children(i)}
            if children != due:
                yield (
                    f"tree of {topic!r}: {in_order[i].me} has children {_show(sorted(children))}"
                    f" instead of {_show(sorted(due))}"
                )


# ---- the catalogue -------------------------------------------------------------------------------


def check_listed(world: World, event: PublishedEvent) -> list[str]:
    """INV-13, while it runs: somebody alive has the name of the topic of an event that has just
    been acknowledged, if nothing has been taken away lately."""
    topic = event.topic
    if may_be_gone(event, world, _ANNOUNCING_AGAIN_S):
        return []
    shard = _shard_of(topic)
    for broker in world.brokers.values():
        node = ring_of(broker.core).node
        held = (node.reigns.by_topic.get(shard), node.replication.copies.get(shard))
        if broker.alive and any(topic in _names(each.log) for each in held if each is not None):
            return []
    return [f"an event on {topic!r} was acknowledged, and nobody has its name in {shard!r}"]


def check_catalogue(world: World) -> list[str]:
    """INV-13, in the end: topics with acknowledged events that are there are in the catalogue."""
    reigns = [
        ring_of(broker.core).node.reigns.by_topic
        for broker in world.brokers.values()
        if broker.alive
    ]
    acknowledged = [event for event in world.published if event.acknowledged_s is not None]
    owed = {event.topic for event in acknowledged if not may_be_gone(event, world)}
    return [
        f"{topic!r} has acknowledged events, but is not in the catalogue"
        for topic in sorted(owed)
        if not any(
            topic in _names(by_topic[shard].log)
            for by_topic in reigns
            if (shard := _shard_of(topic)) in by_topic
        )
    ]


def _shard_of(topic: str) -> str:
    return f"$topics/{key_of(topic) >> 59:02x}"


def _names(log: TopicLog) -> set[str]:
    events = (event for run in log.runs() for event in Events.FromString(run.events).events)
    return {event.payload.decode() for event in events}
