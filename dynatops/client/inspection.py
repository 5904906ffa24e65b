"""A view of the whole network, put together by asking broker after broker.

It starts anywhere and follows successors, predecessors and fingers, so it needs no manager, and
what it shows is what the brokers themselves believe at this moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from dynatops.client.arguments import checked_addresses
from dynatops.client.errors import AccessError, ConnectError, DynatopsError
from dynatops.kit.security.tls import Tls, TlsFileError, explain, open_channel
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    DescribeBrokerRequest,
    DescribeSessionRequest,
    DescribeTablesRequest,
    DescribeTreeRequest,
    KnownUnit,
    ListSessionsRequest,
    ListStoresRequest,
    ListTopicsRequest,
    NodeReport,
    SessionDetails,
    SessionReport,
    TablesReport,
    TopicReport,
    TreeReport,
)
from dynatops.v1.inspection_pb2_grpc import InspectionStub
from dynatops.v1.overlay_pb2 import NodeRef

if TYPE_CHECKING:
    from dynatops.v1.inspection_pb2_grpc import InspectionAsyncStub

TIMEOUT_S = 5.0
# Of 100,000 filters each for many neighbours.
_TABLES_TIMEOUT_S = 60.0
_HOPS_MAX = 64
_AT_ONCE = 32


class InspectionError(DynatopsError):
    """The network could not be asked, or its answer makes no sense."""


@dataclass(slots=True)
class TreeNode:
    """One broker in a topic's tree, and those below it."""

    node: NodeRef
    subscribes: bool
    is_rendezvous_point: bool
    children: list[TreeNode] = field(default_factory=list)

    @property
    def is_relay(self) -> bool:
        """Passes events on without subscribing; the rendezvous point is none."""
        return not self.subscribes and not self.is_rendezvous_point

    def walk(self) -> Iterable[TreeNode]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def depth(self) -> int:
        """Hops from here to the farthest node below."""
        return 1 + max(child.depth for child in self.children) if self.children else 0


class Inspector:
    """Asks brokers about themselves. An async context manager."""

    def __init__(
        self, addresses: str | Iterable[str], *, token: str = "", tls: Tls | None = None
    ) -> None:
        """Raises ArgumentError if that are no addresses."""
        self.seeds = checked_addresses(addresses)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        """Raises ConnectError if certificates cannot be used."""
        if self._tls is not None:
            try:
                self._tls.check()
            except TlsFileError as error:
                raise ConnectError(self.seeds, str(error)) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._tls)
        return channel

    def _stub(self, address: str) -> InspectionAsyncStub:
        return InspectionStub(self.channel(address))

    async def broker(self, address: str) -> BrokerReport:
        async with self._gate:
            return await self._stub(address).DescribeBroker(
                DescribeBrokerRequest(), timeout=TIMEOUT_S, metadata=self.metadata
            )

    async def brokers(self) -> list[BrokerReport]:
        """Every broker that can be found, in ring order."""
        reports: dict[str, BrokerReport] = {}
        asked: set[str] = set()
        reasons: list[str] = []
        frontier = set(self.seeds)
        while frontier:
            asked |= frontier
            answers = await asyncio.gather(
                *(self.broker(address) for address in sorted(frontier)), return_exceptions=True
            )
            frontier = set()
            for answer in answers:
                if isinstance(answer, BrokerReport):
                    reports[answer.broker_id] = answer
                    frontier |= _neighbours(answer)
                elif isinstance(answer, grpc.aio.AioRpcError):
                    raise_if_not_let_in(answer)
                    reasons.append(explain(answer.details() or str(answer.code())))
                elif isinstance(answer, BaseException):
                    raise answer
            frontier -= asked
        if not reports:
            raise ConnectError(self.seeds, reasons[0] if reasons else "no answer")
        return sorted(reports.values(), key=_place_of)

    async def topics(self) -> list[tuple[BrokerReport, TopicReport]]:
        """Every topic with its rendezvous point's broker, by name."""
        brokers = await self.brokers()
        lists = await asyncio.gather(*(self._topics_of(report.address) for report in brokers))
        found = [
            (report, topic)
            for report, topics in zip(brokers, lists, strict=True)
            for topic in topics
        ]
        return sorted(found, key=lambda pair: pair[1].topic)

    async def _topics_of(self, address: str) -> list[TopicReport]:
        topics: list[TopicReport] = []
        while True:
            async with self._gate:
                request = ListTopicsRequest(after=topics[-1].topic if topics else "")
                page = await self._stub(address).ListTopics(
                    request, timeout=TIMEOUT_S, metadata=self.metadata
                )
            topics += page.topics
            if not page.more:
                return topics

    async def sessions(self, prefix: str = "") -> list[tuple[BrokerReport, SessionReport]]:
        """Every session with its broker, in the order of client ids, which begin with `prefix`."""
        brokers = await self.brokers()
        lists = await asyncio.gather(*(self._sessions_of(b.address, prefix) for b in brokers))
        found = [
            (report, session)
            for report, sessions in zip(brokers, lists, strict=True)
            for session in sessions
        ]
        return sorted(found, key=lambda pair: (pair[1].client_id, pair[0].broker_id))

    async def _sessions_of(self, address: str, prefix: str) -> list[SessionReport]:
        sessions: list[SessionReport] = []
        while True:
            after = sessions[-1].client_id if sessions else ""
            request = ListSessionsRequest(after=after, prefix=prefix)
            try:
                async with self._gate:
                    page = await self._stub(address).ListSessions(
                        request, timeout=TIMEOUT_S, metadata=self.metadata
                    )
            except grpc.aio.AioRpcError as error:
                raise _failure(address, error) from None
            sessions += page.sessions
            if not page.more:
                return sessions

    async def session(self, client_id: str) -> list[tuple[BrokerReport, SessionDetails]]:
        """The client's session, with its broker; a client that moves may have one more, where it
        was before."""
        brokers = await self.brokers()
        details = await asyncio.gather(
            *(self._describe_session(report.address, client_id) for report in brokers)
        )
        pairs = zip(brokers, details, strict=True)
        return [(report, found) for report, found in pairs if found.HasField("session")]

    async def _describe_session(self, address: str, client_id: str) -> SessionDetails:
        try:
            async with self._gate:
                request = DescribeSessionRequest(client_id=client_id)
                return await self._stub(address).DescribeSession(
                    request, timeout=TIMEOUT_S, metadata=self.metadata
                )
        except grpc.aio.AioRpcError as error:
            raise _failure(address, error) from None

    async def tables(
        self, address: str, pattern: str = "", where: str = "", limit: int = 0
    ) -> TablesReport:
        """What the broker's neighbours and clients want, and it wants of them; if a pattern is
        given, what meets that. Raises InspectionError."""
        request = DescribeTablesRequest(limit=limit)
        if pattern:
            request.about.pattern, request.about.where = pattern, where
        try:
            async with self._gate:
                return await self._stub(address).DescribeTables(
                    request, timeout=_TABLES_TIMEOUT_S, metadata=self.metadata
                )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise InspectionError(error.details() or "") from None
            raise _failure(address, error) from None

    async def stores(self, address: str, about: str = "") -> list[KnownUnit]:
        """What the broker knows of stores, of units that have a topic in common with this one.
        Raises InspectionError."""
        units: list[KnownUnit] = []
        while True:
            request = ListStoresRequest(about=about, after=units[-1].unit if units else "")
            try:
                async with self._gate:
                    page = await self._stub(address).ListStores(
                        request, timeout=TIMEOUT_S, metadata=self.metadata
                    )
            except grpc.aio.AioRpcError as error:
                raise _failure(address, error) from None
            units += page.units
            if not page.more:
                return units

    async def tree(self, topic: str) -> TreeNode:
        """The topic's tree, from its rendezvous point down."""
        report = await self._find_rendezvous_point(topic)
        return await self._subtree(topic, report, seen={report.node.node_id})

    async def _find_rendezvous_point(self, topic: str) -> TreeReport:
        (entry, *_) = await self.brokers()
        address = entry.address
        for _ in range(_HOPS_MAX):
            report = await self._describe_tree(address, topic)
            if not report.HasField("towards_rendezvous_point"):
                # In a tree of brokers there is none, and any broker is as good.
                return report
            hop = report.towards_rendezvous_point
            if report.is_rendezvous_point or hop.node_id == report.node.node_id:
                return report
            address = hop.address
        raise InspectionError(f"no rendezvous point of {topic!r} found: is the ring whole?")

    async def _describe_tree(self, address: str, topic: str) -> TreeReport:
        try:
            async with self._gate:
                request = DescribeTreeRequest(topic=topic)
                return await self._stub(address).DescribeTree(
                    request, timeout=TIMEOUT_S, metadata=self.metadata
                )
        except grpc.aio.AioRpcError as error:
            raise _failure(address, error) from None

    async def _subtree(self, topic: str, report: TreeReport, seen: set[int]) -> TreeNode:
        tree = TreeNode(report.node, report.subscribes, report.is_rendezvous_point)
        fresh = [child for child in report.children if child.node_id not in seen]
        seen.update(child.node_id for child in fresh)
        reports = await asyncio.gather(
            *(self._describe_tree(child.address, topic) for child in fresh)
        )
        for child in reports:
            tree.children.append(await self._subtree(topic, child, seen))
        return tree


def _failure(address: str, error: grpc.aio.AioRpcError) -> InspectionError:
    """What to raise for it; raises AccessError itself."""
    raise_if_not_let_in(error)
    reason = error.details() or str(error.code())
    return InspectionError(f"broker at {address} does not answer: {reason}")


def raise_if_not_let_in(error: grpc.aio.AioRpcError) -> None:
    """Raises AccessError if that is what it says."""
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        raise AccessError(f"not let in: {error.details()}") from None


def _first_node(report: BrokerReport) -> NodeReport:
    return report.nodes[0]


def is_in_tree(report: BrokerReport) -> bool:
    """Whether the broker forwards events in a tree, and is on no ring."""
    return report.HasField("forwarder")


def _place_of(report: BrokerReport) -> tuple[int, str]:
    """On the ring; in a tree brokers are in the order of their names."""
    place = 0 if is_in_tree(report) else _first_node(report).node.node_id
    return place, report.broker_id


def _neighbours(report: BrokerReport) -> set[str]:
    if is_in_tree(report):
        return {link.neighbour.address for link in report.forwarder.links}
    node = _first_node(report)
    references = [*node.successors, *node.fingers]
    if node.HasField("predecessor"):
        references.append(node.predecessor)
    return {reference.address for reference in references}


def ring_problems(reports: list[BrokerReport]) -> list[str]:
    """Where a node's neighbours are not those that follow from everyone's positions."""
    found: list[str] = []
    for i, report in enumerate(reports):
        node = _first_node(report)
        if node.status != "member":
            found.append(f"{report.broker_id} is {node.status}")
            continue
        if len(reports) == 1:
            continue
        after = reports[(i + 1) % len(reports)]
        successor = node.successors[0].broker_id if node.successors else "nobody"
        if successor != after.broker_id:
            found.append(
                f"{report.broker_id} takes {successor} for its successor, not {after.broker_id}"
            )
        before = reports[i - 1]
        predecessor = node.predecessor.broker_id if node.HasField("predecessor") else "nobody"
        if predecessor != before.broker_id:
            found.append(
                f"{report.broker_id} takes {predecessor} for its predecessor, "
                f"not {before.broker_id}"
            )
    return found


def draw_tree(tree: TreeNode) -> list[str]:
    """The tree as lines of text, relays marked."""
    return _draw(tree, "", "")


def _draw(tree: TreeNode, head: str, indent: str) -> list[str]:
    lines = [f"{head}{tree.node.broker_id}{_mark(tree)}"]
    for i, child in enumerate(tree.children):
        last = i == len(tree.children) - 1
        branch, below = ("└── ", "    ") if last else ("├── ", "│   ")
        lines += _draw(child, indent + branch, indent + below)
    return lines


def _mark(tree: TreeNode) -> str:
    if tree.is_rendezvous_point:
        return "  ◆ rendezvous point" + (", subscribes" if tree.subscribes else "")
    return "  ● subscribes" if tree.subscribes else "  ○ relay"
