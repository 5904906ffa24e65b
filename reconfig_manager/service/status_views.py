"""Status as views, which are what REST answers. Pages and trees are put together here.

What takes long on large networks is split: what is handed in is taken on the event loop, where
nothing changes meanwhile, and what is handed back may be run anywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from dynatops.version import VERSION
from overlay.base.identifiers import key_of
from overlay.placement.geometry import RingGeometry
from reconfig_manager.model.network import Model, cost_figures
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy
from reconfig_manager.placement.decision import MovingCost, is_reconfigurable
from reconfig_manager.ports import Constants, Page
from reconfig_manager.rest.facade import PageRequest, UnknownTopicError
from reconfig_manager.rest.views import (
    BrokerView,
    ClusterView,
    ConstantsView,
    CostView,
    ExecutingView,
    ModelView,
    PlacementView,
    TopicView,
    TreeNodeView,
    TreeView,
)
from reconfig_manager.status import LeaderStatus, MemberStatus, TopicsStatus


@dataclass(frozen=True, slots=True)
class Topics:
    """What is known of topics at one moment, with their names in the order of their UTF-8."""

    status: TopicsStatus
    names: list[str]

    @classmethod
    def of(cls, status: TopicsStatus) -> Self:
        names = {*status.rates, *status.requests, *status.subscribers}
        return cls(status, sorted(names, key=_utf8))


def _utf8(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


# ---- at a glance ---------------------------------------------------------------------------------


def cluster_view(manager: str, leader: LeaderStatus, topics: Topics) -> ClusterView:
    status = topics.status
    return ClusterView(
        version=VERSION,
        manager=manager,
        fence=leader.fence,
        epoch=leader.placement.epoch,
        mode=leader.rules.mode,
        brokers=len(leader.brokers),
        brokers_attached=sum(broker.attached for broker in leader.brokers),
        topics=len(topics.names),
        subscriptions=sum(status.subscribers.values()),
        sessions=sum(broker.sessions for broker in leader.brokers),
        events_per_s=sum(status.rates.values()),
        model=ModelView(
            ready=not status.model_problem,
            problem=status.model_problem,
            completeness=status.completeness,
            periods=status.periods,
        ),
        executing=_executing(leader.executing),
        proposals=leader.open_proposals,
    )


def _executing(plan: Plan | None) -> ExecutingView | None:
    if plan is None or plan.execution is None or plan.state is not PlanState.EXECUTING:
        return None
    return ExecutingView(plan_id=plan.id, phase=plan.phase, since_s=plan.execution.started_s)


# ---- lists ---------------------------------------------------------------------------------------


def broker_page(leader: LeaderStatus, page: PageRequest) -> Page[BrokerView]:
    brokers = {broker.broker_id: broker for broker in leader.brokers}
    chosen, cursor = _after(sorted(brokers, key=_utf8), page)
    return Page([_broker_view(brokers[name], leader.at_s) for name in chosen], cursor)


def _broker_view(broker: MemberStatus, now_s: float) -> BrokerView:
    return BrokerView(
        broker_id=broker.broker_id,
        address=broker.placed.address,
        node=broker.placed.node,
        incarnation=broker.placed.incarnation,
        epoch=broker.epoch,
        labels=dict(broker.labels),
        attached=broker.attached,
        silent_s=max(0.0, now_s - broker.heard_s) if broker.heard_s is not None else None,
        sessions=broker.sessions,
        topics=broker.topics,
        subscriptions=broker.subscriptions,
        frozen_by=broker.frozen_by,
    )


def topic_page(
    leader: LeaderStatus, topics: Topics, page: PageRequest, prefix: str
) -> Page[TopicView]:
    names = topics.names
    if prefix:
        first = bisect_left(names, _utf8(prefix), key=_utf8)
        # No UTF-8 has this byte.
        last = bisect_left(names, _utf8(prefix) + b"\xff", key=_utf8)
        names = names[first:last]
    chosen, cursor = _after(names, page)
    ring = _Ring(leader.brokers)
    return Page([_topic_view(topics.status, ring, name) for name in chosen], cursor)


def _topic_view(topics: TopicsStatus, ring: _Ring, name: str) -> TopicView:
    root = ring.root_of(name)
    return TopicView(
        topic=name,
        rendezvous_point=root.broker_id if root else "",
        node=root.placed.node if root else "",
        events_per_s=topics.rates.get(name, 0.0),
        requests_per_s=topics.requests.get(name, 0.0),
        subscribing_brokers=topics.subscribers.get(name, 0),
    )


def _after(names: list[str], page: PageRequest) -> tuple[list[str], str | None]:
    """The names of a page, of all in order; the cursor is the last name before it."""
    first = 0 if page.cursor is None else bisect_right(names, _utf8(page.cursor), key=_utf8)
    chosen = names[first : first + page.limit]
    more = first + page.limit < len(names)
    return chosen, chosen[-1] if more and chosen else None


# ---- trees ---------------------------------------------------------------------------------------


class _Ring:
    """Which broker hosts which node. Of two that say the same, the first by name."""

    def __init__(self, brokers: Iterable[MemberStatus]) -> None:
        self.hosts: dict[int, MemberStatus] = {}
        for broker in brokers:
            self.hosts.setdefault(broker.node_id, broker)
        self.geometry = RingGeometry(self.hosts) if self.hosts else None

    def root_of(self, topic: str) -> MemberStatus | None:
        if self.geometry is None:
            return None
        return self.at(self.geometry.successor_of(key_of(topic)))

    def at(self, index: int) -> MemberStatus:
        assert self.geometry is not None
        return self.hosts[int(self.geometry.node_ids[index])]


def tree_work(
    leader: LeaderStatus, topics: TopicsStatus, topic: str, subscribers: frozenset[str]
) -> Callable[[], TreeView]:
    """What works the tree out. Raises UnknownTopicError."""
    if not topic or (topic not in topics.subscribers and topic not in topics.rates):
        raise UnknownTopicError(topic)
    ring, rate = _Ring(leader.brokers), topics.rates.get(topic, 0.0)
    return lambda: _tree_view(ring, topic, subscribers, rate)


def _tree_view(ring: _Ring, topic: str, subscribers: frozenset[str], rate: float) -> TreeView:
    geometry = ring.geometry
    if geometry is None:
        raise UnknownTopicError(topic)
    root = geometry.successor_of(key_of(topic))
    members = [
        geometry.index_of(node_id)
        for node_id, broker in ring.hosts.items()
        if broker.broker_id in subscribers
    ]
    shape = geometry.tree(root, members)
    nodes: list[TreeNodeView] = []
    waiting: list[tuple[int, str | None, int]] = [(root, None, 0)]
    for index, parent, hops in waiting:
        host = ring.at(index)
        nodes.append(
            TreeNodeView(
                broker_id=host.broker_id,
                node=host.placed.node,
                parent=parent,
                hops=hops,
                subscribes=index in shape.members,
                relay=index in shape.relays,
            )
        )
        waiting += [(child, host.broker_id, hops + 1) for child in shape.children(index)]
    return TreeView(
        topic=topic,
        events_per_s=rate,
        subscribing_brokers=len(shape.members),
        relays=len(shape.relays),
        depth=max(node.hops for node in nodes),
        nodes=nodes,
    )


# ---- placement and cost --------------------------------------------------------------------------


def placement_view(leader: LeaderStatus) -> PlacementView:
    return PlacementView(
        live=True,
        epoch=leader.placement.epoch,
        plan_id=leader.placement.plan_id,
        committed_s=leader.placement.committed_s,
        hosts=[broker.placed for broker in leader.brokers],
    )


def cost_work(leader: LeaderStatus, model: Model) -> Callable[[], CostView]:
    """What works the cost out: seconds, on large networks."""
    rules, constants = leader.rules, leader.constants
    return lambda: _cost_view(model, rules, constants)


def twice_hosted(leader: LeaderStatus) -> str:
    """Why a cost makes no sense now; empty if it does."""
    nodes = {broker.node_id for broker in leader.brokers}
    if len(nodes) == len(leader.brokers):
        return ""
    return "two brokers say that they host the same node; it is being mended"


def _cost_view(model: Model, rules: Policy, constants: Constants) -> CostView:
    moving: MovingCost = constants.moving()
    problem = model.problem(rules.t_free_s, rules.solver.delay_weight, moving)
    cost = problem.model.evaluate(problem.place)
    events = model.events_per_s * rules.t_free_s
    most = moving.most(problem.brokers, problem.topics)
    return CostView(
        t_free_s=rules.t_free_s,
        delay_weight=rules.solver.delay_weight,
        cost=cost_figures(cost),
        relays_per_event=cost.overhead / events if events else 0.0,
        threshold=rules.beta * most,
        reconfigurable=is_reconfigurable(
            cost.total, moving, problem.brokers, problem.topics, rules.beta
        ),
        moving_cost_max=most,
        constants=ConstantsView(**constants.model_dump()),
        model=model.facts,
    )
