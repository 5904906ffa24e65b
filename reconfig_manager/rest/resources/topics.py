"""Topics and their trees, as the leader knows them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from overlay.base.identifiers import key_of
from overlay.placement.geometry import RingGeometry
from reconfig_manager.rest.facade import UnknownTopicError
from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import (
    PAGED,
    Leading,
    Manager,
    PageOf,
    Viewing,
    page_of_names,
    paged,
)
from reconfig_manager.rest.views import PageView, RestView
from reconfig_manager.status import LeaderStatus, MemberStatus, TopicsStatus

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


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


# ---- the list ------------------------------------------------------------------------------------


class TopicView(RestView):
    topic: str
    rendezvous_point: str = Field(description="The broker at the root of the topic's tree.")
    node: str
    events_per_s: float
    requests_per_s: float
    subscribing_brokers: int


@router.get("/topics", responses={**PAGED, **problems(), **redirect()})
async def list_topics(
    request: Request,
    response: Response,
    manager: Manager,
    page: PageOf,
    prefix: Annotated[
        str, Query(max_length=1_024, description="Only topics whose names begin so.")
    ] = "",
) -> PageView[TopicView]:
    """Topics with subscribers, publications or requests, by name."""
    leader = manager.leader()
    topics = manager.topics(leader)
    ring = _Ring(leader.brokers)
    found = page_of_names(_beginning_with(prefix, topics.names), page)
    return paged(request, response, found, lambda name: _topic_view(topics, ring, name))


def _beginning_with(prefix: str, names: Sequence[str]) -> Sequence[str]:
    if not prefix:
        return names
    first = bisect_left(names, prefix)
    # No UTF-8 has this byte.
    last = bisect_left(names, _utf8(prefix) + b"\xff", key=_utf8)
    return names[first:last]


def _utf8(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


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


# ---- trees ---------------------------------------------------------------------------------------


class TreeNodeView(RestView):
    broker_id: str
    node: str
    parent: str | None = Field(description="The broker above; null for the rendezvous point.")
    hops: int
    subscribes: bool
    relay: bool


class TreeView(RestView):
    """By the geometry of the ring as the manager knows it; brokers may be in between."""

    topic: str
    events_per_s: float
    subscribing_brokers: int
    relays: int
    depth: int
    # Parents come before their children.
    nodes: list[TreeNodeView]


@router.get("/topics/{topic:path}/tree", responses={**problems(404), **redirect()})
async def get_tree(
    manager: Manager,
    topic: Annotated[str, Path(description="May contain `/`.")],
) -> TreeView:
    """How events of a topic travel."""
    leader = manager.leader()
    subscribers = manager.subscribers(topic)
    return await manager.computed(_tree_work(leader, manager.topics(leader), topic, subscribers))


def _tree_work(
    leader: LeaderStatus, topics: TopicsStatus, topic: str, subscribers: frozenset[str]
) -> Callable[[], TreeView]:
    """What works the tree out, which takes long on large networks. Raises UnknownTopicError."""
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
