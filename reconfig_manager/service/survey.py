"""What the leader knows, as views: worked out of the core's parts, at most every other second.

Everything here is read from `Office` without changing it; what takes long on large networks is
split into taking (on the event loop, where nothing changes meanwhile) and working out (anywhere).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dynatops.version import VERSION
from overlay.identifiers import key_of, show_node
from overlay.placement.geometry import RingGeometry
from reconfig_manager.leader.office import Office
from reconfig_manager.manager import Manager
from reconfig_manager.model.network import Model, figures
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy
from reconfig_manager.model.refusals import ModelTooThin, Refused
from reconfig_manager.monitor.members import Member
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

FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Survey:
    """Topics and the model, at one moment."""

    at_s: float
    # In the order of their UTF-8.
    names: list[str]
    rates: dict[str, float]
    requests: dict[str, float]
    subscribers: dict[str, int]
    model: ModelView


def survey(office: Office, now_s: float) -> Survey:
    monitor = office.monitor
    rates, requests = monitor.rates(), monitor.request_rates()
    subscribers = monitor.subscriptions_by_topic()
    names = sorted({*rates, *requests, *subscribers}, key=_utf8)
    return Survey(now_s, names, rates, requests, subscribers, _model_view(office, now_s))


def _model_view(office: Office, now_s: float) -> ModelView:
    problem = ""
    try:
        office.model(office.rules, now_s)
    except ModelTooThin as error:
        problem = str(error)
    return ModelView(
        ready=not problem,
        problem=problem,
        completeness=office.monitor.completeness(office.members, now_s),
        periods=office.monitor.periods,
    )


def _utf8(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


# ---- at a glance ---------------------------------------------------------------------------------


def cluster_view(manager: Manager, found: Survey) -> ClusterView:
    office = manager.office
    members = list(office.members)
    loads = [office.monitor.load(member.broker_id) for member in members]
    return ClusterView(
        version=VERSION,
        manager=manager.me,
        fence=office.fence,
        epoch=office.placement.epoch,
        mode=office.rules.mode,
        brokers=len(members),
        brokers_attached=sum(member.attached for member in members),
        topics=len(found.names),
        subscriptions=sum(found.subscribers.values()),
        sessions=sum(load.sessions for load in loads if load is not None),
        events_per_s=sum(found.rates.values()),
        model=found.model,
        executing=_executing(manager.executing),
        proposals=len(office.open_proposals()),
    )


def _executing(plan: Plan | None) -> ExecutingView | None:
    if plan is None or plan.execution is None or plan.state is not PlanState.EXECUTING:
        return None
    return ExecutingView(plan_id=plan.id, phase=plan.phase, since_s=plan.execution.started_s)


# ---- lists ---------------------------------------------------------------------------------------


def broker_page(office: Office, page: PageRequest, now_s: float) -> Page[BrokerView]:
    members = {member.broker_id: member for member in office.members}
    names = sorted(members, key=_utf8)
    chosen, cursor = _after(names, page)
    return Page([_broker_view(office, members[name], now_s) for name in chosen], cursor)


def _broker_view(office: Office, member: Member, now_s: float) -> BrokerView:
    load = office.monitor.load(member.broker_id)
    return BrokerView(
        broker_id=member.broker_id,
        address=member.address,
        node=show_node(member.node_id),
        incarnation=member.incarnation,
        epoch=member.epoch,
        labels=member.labels,
        attached=member.attached,
        silent_s=max(0.0, now_s - load.heard_s) if load else None,
        sessions=load.sessions if load else 0,
        topics=load.topics if load else 0,
        subscriptions=load.subscriptions if load else 0,
        frozen_by=member.frozen_by,
    )


def topic_page(office: Office, found: Survey, page: PageRequest, prefix: str) -> Page[TopicView]:
    names = found.names
    if prefix:
        first = bisect_left(names, _utf8(prefix), key=_utf8)
        # No UTF-8 has this byte.
        last = bisect_left(names, _utf8(prefix) + b"\xff", key=_utf8)
        names = names[first:last]
    chosen, cursor = _after(names, page)
    ring = _Ring(office.members)
    return Page([_topic_view(found, ring, name) for name in chosen], cursor)


def _topic_view(found: Survey, ring: _Ring, name: str) -> TopicView:
    root = ring.root_of(name)
    return TopicView(
        topic=name,
        rendezvous_point=root.broker_id if root else "",
        node=show_node(root.node_id) if root else "",
        events_per_s=found.rates.get(name, 0.0),
        requests_per_s=found.requests.get(name, 0.0),
        subscribing_brokers=found.subscribers.get(name, 0),
    )


def _after(names: list[str], page: PageRequest) -> tuple[list[str], str | None]:
    """The names of a page, of all in order; the cursor is the last name before it."""
    first = 0 if page.cursor is None else bisect_right(names, _utf8(page.cursor), key=_utf8)
    chosen = names[first : first + page.limit]
    more = first + page.limit < len(names)
    return chosen, chosen[-1] if more and chosen else None


# ---- trees ---------------------------------------------------------------------------------------


class _Ring:
    """Who hosts what. Of two that say the same, the first by name."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.hosts: dict[int, Member] = {}
        for member in members:
            self.hosts.setdefault(member.node_id, member)
        self.geometry = RingGeometry(self.hosts) if self.hosts else None

    def root_of(self, topic: str) -> Member | None:
        if self.geometry is None:
            return None
        return self.at(self.geometry.successor_of(key_of(topic)))

    def at(self, index: int) -> Member:
        assert self.geometry is not None
        return self.hosts[int(self.geometry.node_ids[index])]


def take_tree(office: Office, found: Survey, topic: str) -> Callable[[], TreeView]:
    """What works it out. Raises UnknownTopicError."""
    if not topic or (topic not in found.subscribers and topic not in found.rates):
        raise UnknownTopicError(topic)
    ring = _Ring(office.members)
    subscribers = frozenset(office.monitor.subscribers(topic))
    rate = found.rates.get(topic, 0.0)
    return lambda: _tree_view(ring, topic, subscribers, rate)


def _tree_view(ring: _Ring, topic: str, subscribers: frozenset[str], rate: float) -> TreeView:
    geometry = ring.geometry
    if geometry is None:
        raise UnknownTopicError(topic)
    root = geometry.successor_of(key_of(topic))
    members = [
        geometry.index_of(node_id)
        for node_id, member in ring.hosts.items()
        if member.broker_id in subscribers
    ]
    shape = geometry.tree(root, members)
    nodes: list[TreeNodeView] = []
    waiting: list[tuple[int, str | None, int]] = [(root, None, 0)]
    for index, parent, hops in waiting:
        host = ring.at(index)
        nodes.append(
            TreeNodeView(
                broker_id=host.broker_id,
                node=show_node(host.node_id),
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


def placement_view(office: Office) -> PlacementView:
    return PlacementView(
        live=True,
        epoch=office.placement.epoch,
        plan_id=office.placement.plan_id,
        committed_s=office.placement.committed_s,
        hosts=[member.placed for member in office.members],
    )


def take_cost(office: Office, now_s: float) -> Callable[[], CostView]:
    """What works it out: seconds, on large networks. Raises ModelTooThin."""
    if problem := _twice_hosted(office.members):
        raise Refused(problem)
    model = office.model(office.rules, now_s)
    rules, constants = office.rules, office.constants
    return lambda: _cost_view(model, rules, constants)


def _twice_hosted(members: Iterable[Member]) -> str:
    nodes = [member.node_id for member in members]
    if len(set(nodes)) == len(nodes):
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
        cost=figures(cost),
        relays_per_event=cost.overhead / events if events else 0.0,
        threshold=rules.beta * most,
        reconfigurable=is_reconfigurable(
            cost.total, moving, problem.brokers, problem.topics, rules.beta
        ),
        moving_cost_max=most,
        constants=ConstantsView(**constants.model_dump()),
        model=model.facts,
    )
