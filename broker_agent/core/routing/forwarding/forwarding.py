"""Routing in a tree of brokers: filters go to those that publish, events come back along them.

    clients --subscribe--> subscriptions --want--> forwarder --tables--> neighbours
            --publish----> publishing ---numbered--> forwarder --runs--> neighbours that want them
    sessions <-- audiences <----------- deliver ---- forwarder <--runs-- neighbours

The forwarder (`overlay/forwarding`) is what a node is on a ring; the topology says who is next to
whom. After every input what it wants done is done, in order, until nothing is left: frames sent,
events delivered, acknowledgements taken in; then publications go to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import NodeReady, Stopped
from broker_agent.core.base.notices import (
    PlaceGone,
    TopologyChanged,
    TopologyContested,
    TreeLinkDown,
    TreeLinkUp,
)
from broker_agent.core.routing.forwarding.forwarding_context import (
    ForwardingContext,
    GoesOnDue,
    PlacesDue,
)
from broker_agent.core.routing.forwarding.tree_brokers import TreeBrokers
from broker_agent.core.routing.forwarding.tree_measures import TreeMeasures
from broker_agent.core.routing.forwarding.tree_plans import TreePlans
from broker_agent.core.routing.forwarding.tree_publishing import TreePublishing
from broker_agent.core.routing.forwarding.tree_stamping import TreeStamping
from broker_agent.core.routing.forwarding.tree_subscriptions import TreeSubscriptions
from broker_agent.core.routing.routing import PeerHandler, RoutingFactory
from broker_agent.core.sessions.session import Session
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    ForwarderReport,
    TopicsReport,
    TopologyReport,
    TreeReport,
)
from dynatops.v1.overlay_pb2 import NodeRef, PeerFrame
from overlay.base.effects import Accepted, Deliver, DeliverBundle, Ready, Send
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import (
    FetchedPart,
    FilterInPlace,
    NeighbourDown,
    NeighbourUp,
    StreamLost,
    TakenOut,
    TopologyConflict,
    TopologyLearned,
)
from overlay.forwarding.tables.table_reports import TableEntries
from overlay.forwarding.tree.topology import Topology
from overlay.forwarding.tree.topology_changes import why_not_after
from overlay.forwarding.tree_status import TreeStatus
from overlay.status.node_status import NodeStatus

if TYPE_CHECKING:
    from broker_agent.core.broker import Broker


class Forwarding:
    def __init__(
        self, context: BrokerContext, topology: Topology, settings: ForwardingSettings
    ) -> None:
        identity = context.identity
        self.forwarder = Forwarder(
            identity.broker_id, identity.address, identity.incarnation, topology, settings, 0.0
        )
        tree = ForwardingContext.within(context, self.forwarder)
        self.subscriptions = TreeSubscriptions(tree)
        self.publishing = TreePublishing(tree, self.subscriptions.measures)
        self.brokers = TreeBrokers(tree)
        self.stamping = TreeStamping(tree)
        self.plans = TreePlans(tree)
        self._outbox = context.outbox
        self._timings = context.timings
        self._tree = tree.tree
        self._others: Mapping[str, PeerHandler] = {}
        self._is_leaving = False
        # The newest topology without this broker, and who has another one: told once each.
        self._gone_in_version = 0
        self._contested: set[TopologyConflict] = set()
        self._handlers: Mapping[type, Callable[[Any, float], None]] = {
            Send: self.on_send,
            Deliver: self.on_deliver,
            DeliverBundle: self.on_deliver_bundle,
            Accepted: self.publishing.on_accepted,
            FilterInPlace: self.subscriptions.on_in_place,
            FetchedPart: self.subscriptions.on_fetched,
            StreamLost: self.subscriptions.on_lost,
            PlacesDue: self.subscriptions.on_places_due,
            GoesOnDue: self.subscriptions.on_goes_on_due,
            Ready: self.on_ready,
            TopologyLearned: self.on_topology_learned,
            TakenOut: self.on_taken_out,
            TopologyConflict: self.on_topology_conflict,
            NeighbourUp: self.on_neighbour_up,
            NeighbourDown: self.on_neighbour_down,
        }

    @property
    def measures(self) -> TreeMeasures:
        return self.subscriptions.measures

    # ---- inputs ---------------------------------------------------------------------------------

    def heed_also(self, handlers: Mapping[str, PeerHandler]) -> None:
        self._others = {**handlers, "to_stamper": self.stamping.on_to_stamper}

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool) -> None:
        self._tree.from_forwarder(self.forwarder.start(now_s))

    def on_frame(self, frame: PeerFrame, now_s: float) -> None:
        others = self._others
        if any(message.WhichOneof("body") in others for message in frame.messages):
            frame = self._heed(frame, now_s)
            if not frame.messages:
                return
        self._tree.from_forwarder(self.forwarder.handle(frame, now_s))

    def _heed(self, frame: PeerFrame, now_s: float) -> PeerFrame:
        """What is not the forwarder's to deal with; what is left is."""
        left = PeerFrame(sender=frame.sender)
        for message in frame.messages:
            kind = message.WhichOneof("body") or ""
            handler = self._others.get(kind)
            if handler is not None:
                handler(frame.sender, getattr(message, kind), now_s)
            else:
                left.messages.append(message)
        return left

    def tick(self, now_s: float) -> None:
        self._tree.from_forwarder(self.forwarder.tick(now_s))
        self.subscriptions.tick(now_s)
        self.publishing.tick(now_s)

    def unreachable(self, address: str, now_s: float) -> None:
        """Links find out by themselves."""

    def change_topology(self, topology: Topology, now_s: float) -> None:
        self._tree.from_forwarder(self.forwarder.set_topology(topology, now_s))

    def leave(self, now_s: float) -> None:
        """Neighbours keep its place in the tree: whoever goes for good leaves the topology."""
        self._is_leaving = True
        self._outbox.do(Stopped())

    # ---- after each input -----------------------------------------------------------------------

    def take_in(self, now_s: float) -> None:
        effects, handlers = self._tree.effects, self._handlers
        while effects:
            effect = effects.popleft()
            handlers[type(effect)](effect, now_s)

    def send_out(self, now_s: float) -> bool:
        if self._tree.publications:
            self.publishing.send_out(now_s)
        return bool(self._tree.effects)

    def left_over(self) -> Iterator[str]:
        return self._tree.left_over()

    # ---- what the forwarder wants done ----------------------------------------------------------

    def on_send(self, effect: Send, now_s: float) -> None:
        self._outbox.send(effect.to.address, effect.frame)

    def on_deliver(self, effect: Deliver, now_s: float) -> None:
        self._timings.note_run(effect.run, now_s)
        self.subscriptions.on_portion(effect.run, now_s)

    def on_deliver_bundle(self, effect: DeliverBundle, now_s: float) -> None:
        self._timings.note_bundle(effect.bundle, now_s)
        self.subscriptions.on_portion(effect.bundle, now_s)

    def on_ready(self, effect: Ready, now_s: float) -> None:
        self._outbox.do(NodeReady())

    def on_topology_learned(self, learned: TopologyLearned, now_s: float) -> None:
        topology = learned.topology
        self._contested.clear()
        text = topology.to_text()
        self._outbox.do(TopologyChanged(topology.version, learned.source, text))

    def on_taken_out(self, effect: TakenOut, now_s: float) -> None:
        version = effect.topology.version
        if version > self._gone_in_version:
            self._gone_in_version = version
            self._outbox.do(PlaceGone(version, effect.topology.to_text()))

    def on_topology_conflict(self, conflict: TopologyConflict, now_s: float) -> None:
        if conflict not in self._contested:
            self._contested.add(conflict)
            self._outbox.do(TopologyContested(conflict.broker_id, conflict.version))

    def on_neighbour_up(self, effect: NeighbourUp, now_s: float) -> None:
        self._outbox.do(TreeLinkUp(effect.broker_id))

    def on_neighbour_down(self, effect: NeighbourDown, now_s: float) -> None:
        self._outbox.do(TreeLinkDown(effect.broker_id))

    # ---- what others may know -------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        return not (self.forwarder.is_ready or self._gone_in_version)

    @property
    def is_member(self) -> bool:
        return self.forwarder.is_ready and not self._is_leaving

    @property
    def unready(self) -> str:
        if self._is_leaving:
            return "the broker is leaving"
        if self._gone_in_version:
            return "a newer topology has no place for this broker"
        if not self.forwarder.is_ready:
            return "the broker asks its neighbours what it published before it was restarted"
        return ""

    def node_status(self) -> NodeStatus | None:
        return None

    def tree_status(self) -> TreeStatus:
        return self.forwarder.status()

    def count_in_steps(self, counts: BrokerCounts, at_once: int) -> Iterator[None]:
        yield from ()

    def violations(self, clients: Iterable[Session]) -> Iterator[str]:
        return self.publishing.miscounts()

    # ---- what operators ask ---------------------------------------------------------------------

    def describe(self, report: BrokerReport) -> None:
        report.subscribed_topics = len(self.subscriptions)
        report.forwarder.CopyFrom(describe_forwarder(self.forwarder))

    def describe_topology(self) -> TopologyReport:
        topology = self.forwarder.topology
        return TopologyReport(topology=topology.to_text(), digest=topology.digest)

    def table_entries(self) -> TableEntries:
        return self.forwarder.table_entries()

    def topology_problem(self, topology: Topology) -> str:
        me = self.forwarder.me
        return why_not_after(self.forwarder.topology, topology, me.broker_id, me.address)

    def list_topics(self, after: str, limit: int) -> TopicsReport:
        """There are no histories of topics."""
        return TopicsReport()

    def describe_tree(self, topic: str) -> TreeReport:
        wanting = self.forwarder.wanted_by_neighbours(topic)
        return TreeReport(
            node=self.forwarder.me.ref,
            subscribes=self.subscriptions.is_wanted(topic),
            children=[peer.ref for peer in wanting],
        )


def describe_forwarder(forwarder: Forwarder) -> ForwarderReport:
    topology, tables = forwarder.topology, forwarder.tables.status()
    report = ForwarderReport(
        topology_version=topology.version,
        mode=topology.mode.value,
        ready=forwarder.is_ready,
        keeper=forwarder.keeper or "",
        topology_digest=topology.digest,
    )
    for name, state in forwarder.neighbour_states().items():
        report.links.add(
            neighbour=NodeRef(broker_id=name, address=topology.addresses[name]),
            state=state.value,
            wanted=tables.held[name],
            told=tables.told[name],
        )
    return report


def in_tree(topology: Topology, settings: ForwardingSettings | None = None) -> RoutingFactory:
    """What makes this the routing of a broker."""
    return partial(Forwarding, topology=topology, settings=settings or ForwardingSettings())


def tree_of(broker: Broker) -> Forwarding:
    """What is behind the seam, for those who look into brokers in a tree: checkers and tests."""
    assert isinstance(broker.routing, Forwarding)
    return broker.routing
