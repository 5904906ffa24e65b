"""Routing along a ring: topics have rendezvous points, and trees that lead from there.

The broker hosts a node, which is the part that a reconfiguration moves (`hosting`, `plans`). What
clients publish goes to rendezvous points, and is sent again until one has acknowledged it
(`publishing`); what they subscribe to is read, each topic once (`reading`).

Parts are made with one context, and say what is to be done with the node in one outbox beside the
broker's. After every input that is emptied, in this order, until nothing is left:

    take_in     announcements that are due again
                what the node wants done: frames sent, runs delivered, acknowledgements taken in
                topics that are to be announced
    send_out    topics that the node is to join or leave, unless a plan freezes it
                publications, to their rendezvous points
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import NodeReady, Stopped
from broker_agent.core.routing.rendezvous.handlers import (
    broker_handlers,
    node_effect_handlers,
)
from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.plans.reconfiguration import Reconfiguration
from broker_agent.core.routing.rendezvous.publishing.announcing import Announcing
from broker_agent.core.routing.rendezvous.publishing.publishing import Publishing
from broker_agent.core.routing.rendezvous.publishing.ring_stamping import RingStamping
from broker_agent.core.routing.rendezvous.reading.subscriptions import Subscriptions
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.rendezvous.ring_invariants import check_ring_state
from broker_agent.core.routing.routing import PeerHandler, RoutingFactory
from broker_agent.core.sessions.session import Session
from dynatops.v1.inspection_pb2 import BrokerReport, TopicsReport, TopologyReport, TreeReport
from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, PeerMessage
from overlay.base.catalogue import CATALOGUE_SHARDS
from overlay.base.effects import (
    Accepted,
    Announce,
    Deliver,
    DeliverBeats,
    DeliverBundle,
    InTree,
    Notice,
    Repaired,
    Send,
    Superseded,
)
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.tree.topology import Topology
from overlay.node import Node
from overlay.status.node_status import NodeStatus

if TYPE_CHECKING:
    from broker_agent.core.broker import Broker


class Rendezvous:
    def __init__(self, context: BrokerContext, overlay: OverlaySettings) -> None:
        ring = RingContext.within(context)
        self.hosting = NodeHosting(ring, overlay)
        self.publishing = Publishing(ring, self.hosting)
        self.stamping = RingStamping(ring, self.hosting)
        self.announcing = Announcing(context.settings, context.counters)
        self.plans = Reconfiguration(ring, self.hosting, self.publishing)
        names_max = overlay.catalogue_names_max // CATALOGUE_SHARDS
        self.subscriptions = Subscriptions(ring, self.hosting, names_max)
        self._counters = context.counters
        self._outbox = context.outbox
        self._timings = context.timings
        self._ring = ring.ring
        # What is said to the broker, and not to its node.
        self._broker_handlers = broker_handlers(self.plans, {})
        self._node_effect_handlers = node_effect_handlers(self)

    @property
    def node(self) -> Node:
        """The node that is hosted here now."""
        return self.hosting.node

    @property
    def brokers(self) -> NodeHosting:
        return self.hosting

    @property
    def measures(self) -> NodeHosting:
        return self.hosting

    # ---- inputs ---------------------------------------------------------------------------------

    def heed_also(self, handlers: Mapping[str, PeerHandler]) -> None:
        self._broker_handlers = broker_handlers(self.plans, handlers)

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool) -> None:
        self.hosting.start(seeds, now_s, founding=founding)

    def on_frame(self, frame: PeerFrame, now_s: float) -> None:
        node = self.hosting.node
        if frame.HasField("to") and frame.to != node.me.node_id:
            self._pass_on(frame)
            return
        handlers = self._broker_handlers
        for message in frame.messages:
            if message.WhichOneof("body") in handlers:
                frame = self._heed(frame, now_s)
                break
        # To heed it may have changed nodes.
        self._ring.from_node(self.hosting.node.handle(frame, now_s))

    def _heed(self, frame: PeerFrame, now_s: float) -> PeerFrame:
        """What is said to the broker, in whichever place; what is left is for its node."""
        left = PeerFrame()
        left.CopyFrom(frame)
        del left.messages[:]
        for message in frame.messages:
            kind = message.WhichOneof("body")
            handler = self._broker_handlers.get(kind) if kind is not None else None
            if handler is not None:
                handler(frame.sender, getattr(message, kind or ""), now_s)
            else:
                left.messages.append(message)
        return left

    def _pass_on(self, frame: PeerFrame) -> None:
        """The node that this is meant for is not here: it went to another broker, will come, or is
        gone, which its sender should know, once."""
        host = self.hosting.forward_to(frame)
        if host is not None:
            self._outbox.send(host, frame)
            return
        if self.plans.awaits(frame.to):
            return
        self._counters.frames_not_here += 1
        if frame.sender.address and not any(m.HasField("not_here") for m in frame.messages):
            not_here = PeerMessage(not_here=NotHere(node_id=frame.to))
            refusal = PeerFrame(
                sender=self.hosting.me, to=frame.sender.node_id, messages=[not_here]
            )
            self._outbox.send(frame.sender.address, refusal)

    def tick(self, now_s: float) -> None:
        self._ring.from_node(self.hosting.node.tick(now_s))
        if not self.plans.is_frozen:
            self.subscriptions.readers.tick(now_s)
            self.publishing.tick(now_s)
        for announcement in self.announcing.due(now_s):
            self.hosting.rendezvous.forget_topic(announcement.topic)
            self._ring.announcements.append(announcement)

    def unreachable(self, address: str, now_s: float) -> None:
        self.hosting.unreachable(address, now_s)

    def change_topology(self, topology: Topology, now_s: float) -> None:
        """A ring has none."""

    def leave(self, now_s: float) -> None:
        self.plans.leave(now_s)
        self.hosting.leave(now_s)

    # ---- after each input -----------------------------------------------------------------------

    def take_in(self, now_s: float) -> None:
        ring, handlers = self._ring, self._node_effect_handlers
        if ring.announcements:
            ring.publish_announcements()
        while ring.node_effects:
            effect = ring.node_effects.popleft()
            handlers[type(effect)](effect, now_s)
        if self.announcing.waiting:
            ring.publications.add_all(self.announcing.fresh(now_s))

    def send_out(self, now_s: float) -> bool:
        ring = self._ring
        if ring.wishes and not self.plans.is_frozen:
            for topic, wanted in ring.take_wishes():
                self.hosting.wish(topic, now_s, wanted=wanted)
        if ring.publications:
            self.hosting.publish(ring.publications.take(), now_s)
        return bool(ring.node_effects)

    def left_over(self) -> Iterator[str]:
        return self._ring.left_over(is_frozen=self.plans.is_frozen)

    # ---- what the node wants done ---------------------------------------------------------------

    def on_send(self, effect: Send, now_s: float) -> None:
        self._outbox.send(effect.to.address, effect.frame)

    def on_deliver(self, effect: Deliver, now_s: float) -> None:
        self._timings.note_run(effect.run, now_s)
        self.subscriptions.on_run(effect.run, now_s)

    def on_deliver_bundle(self, effect: DeliverBundle, now_s: float) -> None:
        self._timings.note_bundle(effect.bundle, now_s)
        self.subscriptions.readers.on_bundle(effect.bundle, now_s)

    def on_deliver_beats(self, effect: DeliverBeats, now_s: float) -> None:
        self.subscriptions.on_beats(effect.beats, now_s)

    def on_in_tree(self, effect: InTree, now_s: float) -> None:
        self.subscriptions.observe(effect.topic, effect.position, now_s)

    def on_accepted(self, effect: Accepted, now_s: float) -> None:
        acks = effect.ack.acknowledged
        for acknowledged in acks:
            self.hosting.rendezvous.found(acknowledged.topic, effect.by)
            self.publishing.acknowledged(acknowledged, now_s)
        for columns in effect.ack.columns:
            self.publishing.acknowledged_columns(columns, effect.by, now_s)
        for returned in effect.ack.returned:
            self.publishing.returned(returned, now_s)
        if announced := self.announcing.acknowledged(acks):
            self.hosting.announced(announced, now_s)

    def on_announce(self, effect: Announce, now_s: float) -> None:
        self.announcing.announce(effect, self.node.reigns.began(effect.topic))

    def on_repaired(self, effect: Repaired, now_s: float) -> None:
        self.hosting.rendezvous.found(effect.answer.topic, effect.by)
        self.subscriptions.on_repair(effect.answer, now_s)

    def on_ready(self, effect: object, now_s: float) -> None:
        self._outbox.do(NodeReady())

    def on_departed(self, effect: object, now_s: float) -> None:
        self._outbox.do(Stopped())

    def on_superseded(self, effect: Superseded, now_s: float) -> None:
        self.plans.superseded(effect.by, now_s)

    def on_notice(self, notice: Notice, now_s: float) -> None:
        self._outbox.do(notice)

    # ---- what others may know -------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        return self.node.ring.status is Status.JOINING

    @property
    def is_member(self) -> bool:
        return self.node.ring.status is Status.MEMBER

    @property
    def unready(self) -> str:
        ring = self.node.ring.status
        if ring in (Status.LEAVING, Status.LEFT):
            return "the broker is leaving the ring"
        if ring is Status.JOINING:
            return "the broker has not joined the ring yet"
        if not self.node.reigns.ready:
            return "the broker is taking over its range of the ring"
        return ""

    def node_status(self) -> NodeStatus:
        return self.node.status()

    def tree_status(self) -> None:
        return None

    def count_in_steps(self, counts: BrokerCounts, at_once: int) -> Iterator[None]:
        counts.node = yield from self.node.count_in_steps(at_once)
        yield from self.subscriptions.readers.count_in_steps(counts, at_once)

    def violations(self, clients: Iterable[Session]) -> Iterator[str]:
        return check_ring_state(self, clients)

    # ---- what operators ask ---------------------------------------------------------------------

    def describe(self, report: BrokerReport) -> None:
        report.nodes.append(self.node.describe())
        report.subscribed_topics = len(self.subscriptions)

    def describe_topology(self) -> TopologyReport:
        return TopologyReport()

    def table_entries(self) -> None:
        return None

    def topology_problem(self, topology: Topology) -> str:
        return (
            "this broker is on a ring, which has no topology: brokers that are started with "
            "`dynatops broker --topology` are in a tree"
        )

    def list_topics(self, after: str, limit: int) -> TopicsReport:
        return self.node.list_topics(after, limit)

    def describe_tree(self, topic: str) -> TreeReport:
        report = self.node.describe_tree(topic)
        report.subscribes = topic in self.subscriptions
        return report


def on_ring(overlay: OverlaySettings) -> RoutingFactory:
    """What makes this the routing of a broker."""
    return partial(Rendezvous, overlay=overlay)


def ring_of(broker: Broker) -> Rendezvous:
    """What is behind the seam, for those who look into brokers on a ring: checkers and tests."""
    assert isinstance(broker.routing, Rendezvous)
    return broker.routing
