"""What a broker tells operators and the manager about itself: questions of gRPC, which the core
answers; and who may ask them, or command it (`runtime/administration.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message

from broker_agent.core.rights.access import Refusal, RefusalReason
from broker_agent.runtime.observing.bearer import token_in
from broker_agent.runtime.observing.counter_sets import present_counters
from broker_agent.runtime.observing.readings import readings_of
from dynatops.kit.filters import Filter, FilterError
from dynatops.kit.serving.first_reads import FirstReads, host_of
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    DescribeBrokerRequest,
    DescribeSessionRequest,
    DescribeTablesRequest,
    DescribeTopologyRequest,
    DescribeTreeRequest,
    ListSessionsRequest,
    ListStoresRequest,
    ListTopicsRequest,
    SessionDetails,
    SessionsReport,
    StoresReport,
    TablesReport,
    TopicsReport,
    TopologyReport,
    TreeReport,
)
from dynatops.v1.inspection_pb2_grpc import InspectionServicer
from dynatops.version import VERSION
from overlay.forwarding.tables.table_reports import describe_tables

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

_NO_TABLES = "this broker is on a ring: brokers in a tree have subscription tables"
_INSPECTION = "/dynatops.v1.Inspection/"
_ADMINISTRATION = "/dynatops.v1.Administration/"


class OperatorGuard(grpc.aio.ServerInterceptor):
    """Lets those inspect, and those command, whose token says that they may."""

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
        method = handler_call_details.method
        if handler is None or not method.startswith((_INSPECTION, _ADMINISTRATION)):
            return handler
        core, token = self._agent.core, token_in(handler_call_details.invocation_metadata)
        if method.startswith(_INSPECTION):
            refusal = core.admit_inspector(token)
        else:
            refusal = core.admit_administrator(token)
        return self._reading_in_turn(handler) if refusal is None else _refusing(refusal)

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


def _refusing(refusal: Refusal) -> grpc.RpcMethodHandler[Any, Any]:
    code = grpc.StatusCode.UNAUTHENTICATED
    if refusal.reason in (RefusalReason.MAY_NOT_INSPECT, RefusalReason.MAY_NOT_ADMINISTER):
        code = grpc.StatusCode.PERMISSION_DENIED

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, refusal.message)

    # Of a stream nothing is read for it.
    return grpc.stream_unary_rpc_method_handler(refuse)


class InspectionService(InspectionServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        # Looking through large tables takes a processor for a second: one at a time.
        self._tables_gate = asyncio.Lock()

    async def DescribeBroker(self, request: DescribeBrokerRequest, context: Any) -> BrokerReport:
        agent, readings = self._agent, readings_of(self._agent)
        report = agent.core.describe()
        report.version = VERSION
        report.uptime_s = asyncio.get_running_loop().time() - agent.started_s
        for name, count in present_counters(readings):
            report.counters[name] = count
        report.counters["broker_subscription_changes"] = readings.status.subscription_changes
        return report

    async def ListTopics(self, request: ListTopicsRequest, context: Any) -> TopicsReport:
        return self._agent.core.list_topics(request)

    async def DescribeTree(self, request: DescribeTreeRequest, context: Any) -> TreeReport:
        return self._agent.core.describe_tree(request)

    async def DescribeTopology(
        self, request: DescribeTopologyRequest, context: Any
    ) -> TopologyReport:
        return self._agent.core.describe_topology()

    async def DescribeTables(self, request: DescribeTablesRequest, context: Any) -> TablesReport:
        about = None
        try:
            if request.HasField("about"):
                about = Filter.from_wire(request.about)
        except FilterError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no filter: {error}")
        async with self._tables_gate:
            entries = self._agent.core.table_entries()
            if entries is None:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _NO_TABLES)
                raise AssertionError("unreachable")
            report = await asyncio.to_thread(describe_tables, entries, about, request.limit)
        report.broker_id = self._agent.broker_id
        return report

    async def ListStores(self, request: ListStoresRequest, context: Any) -> StoresReport:
        try:
            return self._agent.core.list_stores(request)
        except FilterError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no topic or pattern: {error}")
            raise AssertionError("unreachable") from None

    async def ListSessions(self, request: ListSessionsRequest, context: Any) -> SessionsReport:
        return self._agent.core.list_sessions(request)

    async def DescribeSession(
        self, request: DescribeSessionRequest, context: Any
    ) -> SessionDetails:
        return self._agent.core.describe_session(request)
