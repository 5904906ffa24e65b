"""What a broker tells operators and the manager about itself, straight from the core's state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message

from broker_agent.core.rights.access import Refusal, RefusalReason
from broker_agent.core.session_reports import SessionReports
from broker_agent.runtime.observing.counter_sets import present_counters
from dynatops.kit.serving.first_reads import FirstReads, host_of
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    DescribeBrokerRequest,
    DescribeSessionRequest,
    DescribeTreeRequest,
    ListSessionsRequest,
    ListTopicsRequest,
    NodeReport,
    SessionDetails,
    SessionsReport,
    TopicReport,
    TopicsReport,
    TreeReport,
)
from dynatops.v1.inspection_pb2_grpc import InspectionServicer
from dynatops.version import VERSION
from overlay.catalogue import is_system
from overlay.identifiers import key_of
from overlay.node import Node

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

TOPICS_PER_PAGE = 1_000
_METHODS = "/dynatops.v1.Inspection/"
_SCHEME = "Bearer "


class InspectionGuard(grpc.aio.ServerInterceptor):
    """Lets those inspect whose token says that they may."""

    def __init__(self, agent: Agent, first_reads: FirstReads) -> None:
        self._agent = agent
        self._first_reads = first_reads

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is not None and handler_call_details.method.startswith(_METHODS):
            token = _token_of(handler_call_details)
            refusal = self._agent.core.gate.access.inspector(token)
            if refusal is not None:
                self._agent.core.counters.inspect_refused += 1
                return _refusing(refusal)
            return self._reading_in_turn(handler)
        return handler

    def _reading_in_turn(
        self, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The same, but what is asked is read when there is room for it. To gRPC a stream of one
        message and a message are the same, but for when it reads."""
        answer: Any = handler.unary_unary

        async def serve(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async def read() -> Any:
                return await context.read()

            said = await self._first_reads.read(host_of(context.peer()), read)
            if not isinstance(said, Message):
                await context.abort(grpc.StatusCode.CANCELLED, "nothing was asked in time")
            return await answer(said, context)

        return grpc.stream_unary_rpc_method_handler(
            serve, handler.request_deserializer, handler.response_serializer
        )


def _token_of(details: grpc.HandlerCallDetails) -> str:
    for key, value in details.invocation_metadata or ():
        if key == "authorization" and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return ""


def _refusing(refusal: Refusal) -> grpc.RpcMethodHandler[Any, Any]:
    code = grpc.StatusCode.UNAUTHENTICATED
    if refusal.reason is RefusalReason.MAY_NOT_INSPECT:
        code = grpc.StatusCode.PERMISSION_DENIED

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, refusal.message)

    # Of a stream nothing is read for it.
    return grpc.stream_unary_rpc_method_handler(refuse)


class InspectionService(InspectionServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        # Made when first asked: by then the broker runs.
        self._sessions: SessionReports | None = None

    async def DescribeBroker(self, request: DescribeBrokerRequest, context: Any) -> BrokerReport:
        agent, core = self._agent, self._agent.core
        counters = {
            **dict(present_counters(agent)),
            "broker_subscription_changes": core.cluster.selection.local.changes,
        }
        return BrokerReport(
            broker_id=agent.broker_id,
            address=agent.address,
            version=VERSION,
            uptime_s=asyncio.get_running_loop().time() - agent.started_s,
            nodes=[_report_on(core.node)],
            sessions=len(core.registry),
            subscribed_topics=len(core.subscriptions),
            counters=counters,
        )

    async def ListTopics(self, request: ListTopicsRequest, context: Any) -> TopicsReport:
        node = self._agent.core.node
        limit = request.limit or TOPICS_PER_PAGE
        names = sorted(t for t in _ordinary(node.reigns.by_topic) if t > request.after)
        return TopicsReport(
            topics=[_report_on_topic(node, topic) for topic in names[:limit]],
            more=len(names) > limit,
        )

    async def DescribeTree(self, request: DescribeTreeRequest, context: Any) -> TreeReport:
        core = self._agent.core
        node = core.node
        tree = node.trees.topics.get(request.topic)
        children = tree.delegates.values() if tree is not None else ()
        distinct = {child.node_id: child for child in children if child is not None}
        hop = node.ring.next_hop(key_of(request.topic)) or node.me
        return TreeReport(
            node=node.me.ref,
            is_rendezvous_point=request.topic in node.reigns.by_topic,
            subscribes=request.topic in core.subscriptions,
            children=[distinct[node_id].ref for node_id in sorted(distinct)],
            position=tree.position_message() if tree is not None else None,
            towards_rendezvous_point=hop.ref,
        )

    async def ListSessions(self, request: ListSessionsRequest, context: Any) -> SessionsReport:
        return self._session_reports().page(request)

    async def DescribeSession(
        self, request: DescribeSessionRequest, context: Any
    ) -> SessionDetails:
        return self._session_reports().describe(request)

    def _session_reports(self) -> SessionReports:
        if self._sessions is None:
            self._sessions = SessionReports(self._agent.core)
        return self._sessions


def _report_on(node: Node) -> NodeReport:
    ring = node.ring
    return NodeReport(
        node=node.me.ref,
        status=ring.status.value,
        ready=node.reigns.ready,
        predecessor=ring.predecessor.ref if ring.predecessor is not None else None,
        successors=[peer.ref for peer in ring.successors],
        fingers=[peer.ref for peer in ring.fingers.routes.targets],
        topics=len(_ordinary(node.reigns.by_topic)),
        replicas=len(_ordinary(node.replication.copies)),
    )


def _ordinary(topics: Iterable[str]) -> list[str]:
    """Without those of the system itself, of which `DescribeTree` tells whoever names them."""
    return [topic for topic in topics if not is_system(topic)]


def _report_on_topic(node: Node, topic: str) -> TopicReport:
    reign = node.reigns.by_topic[topic]
    return TopicReport(
        topic=topic,
        position=reign.log.position_message(),
        members=len(node.trees.members(topic)),
        published=reign.published,
        retained_events=reign.log.events,
    )
