"""What must hold, said without the code that is to make it hold.

Checkers read the state of simulated brokers and the histories of simulated clients, compare them
with the static geometry and with each other, and return violations as sentences. They change
nothing.

`check_listed` holds whenever a publisher is told that an event is safe. `check_deliveries` and
`check_catalogue` hold at the end of every run. `check_ring` holds whenever the ring has had no
partition for a while (Zave's invariant; her proof assumes that no node loses all its successors at
once). `check_rest` holds once the network has been whole and nobody has died for long enough. What
holds of each broker by itself, whatever the network does, is in `broker_agent.core.invariants`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from broker_agent.core.invariants import check_invariants
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.overlay_pb2 import Events
from overlay.base.identifiers import NodeId, distance, key_of, show_node, show_term
from overlay.base.membership import Status
from overlay.history.topic_log import TopicLog
from overlay.node import Node
from overlay.placement.geometry import RingGeometry
from simulator.clients import HeardEvent, PublishedEvent, SimulatedSubscription
from simulator.world import SimulatedBroker, World

# An acknowledgement may have been on its way for so long.
_ACKNOWLEDGING_S = 1.0
# Names that were lost with a part of the catalogue are back within this (`catalogue_check_s`), and
# what was announced before may be acknowledged meanwhile.
_ANNOUNCING_AGAIN_S = 15.0


def _members(brokers: Iterable[SimulatedBroker]) -> dict[NodeId, Node]:
    nodes = (ring_of(broker.core).node for broker in brokers if broker.alive)
    return {node.me.node_id: node for node in nodes if node.ring.status is Status.MEMBER}


# ---- each broker by itself -----------------------------------------------------------------------


def check_brokers(brokers: Iterable[SimulatedBroker]) -> list[str]:
    """INV-16: a broker's parts agree about its sessions, topics and publications."""
    return [
        f"{broker.broker_id}: {violation}"
        for broker in brokers
        if broker.alive
        for violation in check_invariants(broker.core)
    ]


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


# ---- deliveries ----------------------------------------------------------------------------------


def check_deliveries(world: World) -> list[str]:
    """Acknowledged events reach whoever stayed subscribed: once, and in order."""
    return [
        *_check_stamps(world.subscriptions),
        *(violation for s in world.subscriptions for violation in _check_order(s)),
        *_check_completeness(world),
        *_check_acknowledgements(world.published),
    ]


def _check_stamps(subscriptions: Iterable[SimulatedSubscription]) -> Iterable[str]:
    """INV-3: one stamp is one event, whoever heard it."""
    stamped: dict[tuple[str, int, int], tuple[int, int]] = {}
    ambiguous: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for subscription in subscriptions:
        for heard in subscription.heard:
            event = (heard.publisher, heard.number)
            first = stamped.setdefault((heard.topic, heard.term, heard.seq), event)
            if first != event:
                ambiguous[heard.topic, heard.term].add(heard.seq)
    for (topic, term), seqs in ambiguous.items():
        more = f", and so do {len(seqs) - 1} more of the term" if len(seqs) > 1 else ""
        yield f"{topic!r} {show_term(term)}/{min(seqs)} stands for two events{more}"


def _check_order(subscription: SimulatedSubscription) -> Iterable[str]:
    """INV-4: each event once; those of one publisher, and those of one term, in order.

    Where a partition leaves both copies of a topic's history on the other side, subscribers are
    told that it is broken. What was stamped over there then comes when it is known, if need be
    late. So it does when a publisher goes to the other side of a partition: the events that it
    leaves behind are said to be missing. A client that has forgotten everything may get again what
    it had not confirmed.
    """
    lives: defaultdict[tuple[str, int], list[HeardEvent]] = defaultdict(list)
    for heard in subscription.heard:
        lives[heard.topic, heard.life].append(heard)
    for (topic, _), events in lives.items():
        who = f"{subscription.client} on {topic!r}"
        yield from _check_order_of(who, events, subscription.broken_s.get(topic))


def _check_order_of(who: str, events: list[HeardEvent], broken_s: float | None) -> Iterable[str]:
    repeats = Counter((heard.publisher, heard.number) for heard in events)
    for (publisher, number), times in repeats.items():
        if times > 1:
            yield f"{who}: event {number} of {publisher:x} came {times} times"
    last_number: dict[int, int] = {}
    last_seq: dict[int, int] = {}
    for heard in events:
        publisher, number, at_s = heard.publisher, heard.number, heard.at_s
        told = heard.is_late or (broken_s is not None and broken_s <= at_s)
        if number <= last_number.get(publisher, 0) and not told:
            yield f"{who}: event {number} of {publisher:x} came after a later one, at {at_s:.3f} s"
        last_number[publisher] = max(number, last_number.get(publisher, 0))
        if heard.seq <= last_seq.get(heard.term, 0):
            stamp = f"{show_term(heard.term)}/{heard.seq}"
            yield f"{who}: {stamp} came after a later one, at {at_s:.3f} s"
        last_seq[heard.term] = heard.seq


def _check_completeness(world: World) -> Iterable[str]:
    """INV-5: a subscription that lasted until the end heard all published since it began.

    It lasts through whatever happens to its connections. What a fault took away for good need not
    be heard; that something is missing must have been told, after it was published.
    """
    acknowledged = [event for event in world.published if event.acknowledged_s is not None]
    for subscription in world.subscriptions:
        if subscription.until_s is not None:
            continue
        heard = {(event.topic, event.publisher, event.number) for event in subscription.heard}
        wanted = subscription.filter
        owed = [
            event
            for event in acknowledged
            if event.at_s > subscription.since_s and wanted.matches(event.topic, event.attributes)
        ]
        lost = [e for e in owed if (e.topic, e.publisher, e.number) not in heard]
        kept = [event for event in lost if not _may_be_gone(event, world)]
        untold = [event for event in lost if not _is_told(event, subscription)]
        if kept:
            yield _describe_lost("lost", kept, owed, subscription)
        if untold:
            yield _describe_lost("lost, and it was not told", untold, owed, subscription)


def _describe_lost(
    what: str,
    lost: Sequence[PublishedEvent],
    owed: Sequence[PublishedEvent],
    subscription: SimulatedSubscription,
) -> str:
    first = lost[0]
    return (
        f"{subscription.client} on {str(subscription.filter)!r}"
        f" since {subscription.since_s:.3f} s: {len(lost)} of {len(owed)} events {what},"
        f" first number {first.number} of {first.publisher:x} on {first.topic!r},"
        f" published at {first.at_s:.3f} s"
    )


def _may_be_gone(event: PublishedEvent, world: World, patience_s: float = _ACKNOWLEDGING_S) -> bool:
    """Whether a fault may have taken away all that there was of it."""
    acknowledged_s = event.acknowledged_s or event.at_s
    return any(acknowledged_s <= at_s + patience_s for at_s in world.taken_away)


def _is_told(event: PublishedEvent, subscription: SimulatedSubscription) -> bool:
    """Whether the subscriber was told of a gap when the event was one of those that are missing."""
    told_s = subscription.told_s
    newest_s = max(told_s.get(event.topic, 0.0), told_s.get(subscription.filter.pattern, 0.0))
    return newest_s >= event.at_s


def _check_acknowledgements(published: Iterable[PublishedEvent]) -> Iterable[str]:
    """In the end every publication is acknowledged: publishers do not give up in a simulation."""
    open_events = [event for event in published if event.acknowledged_s is None]
    if open_events:
        first = open_events[0]
        yield (
            f"{len(open_events)} publications were never acknowledged, first number {first.number}"
            f" of {first.publisher:x} on {first.topic!r}, at {first.at_s:.3f} s"
        )


# ---- the catalogue -------------------------------------------------------------------------------


def check_listed(world: World, event: PublishedEvent) -> list[str]:
    """INV-13, while it runs: somebody alive has the name of the topic of an event that has just
    been acknowledged, if nothing has been taken away lately."""
    topic = event.topic
    if _may_be_gone(event, world, _ANNOUNCING_AGAIN_S):
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
    owed = {event.topic for event in acknowledged if not _may_be_gone(event, world)}
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
