"""The gRPC server of a broker: links, sessions of gRPC clients, inspection and commands; as a
further door, with a name of its own, for sessions only.

The two streams are served as raw bytes: output is put together from pieces that are serialised
already, and input that cannot be parsed is answered, not dropped by the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from broker_agent.doors import frames
from broker_agent.runtime.administration import AdministrationService
from broker_agent.runtime.connections import ClientGoneError
from broker_agent.runtime.observing.inspection import InspectionService, OperatorGuard
from broker_agent.runtime.streams import unchanged
from dynatops.kit.security.peer_credentials import LinkCredentials, ServerCertificates
from dynatops.kit.serving.first_reads import NOTHING_COMPRESSED, host_of
from dynatops.kit.serving.keepalive import keepalive_options
from dynatops.v1.administration_pb2_grpc import add_AdministrationServicer_to_server
from dynatops.v1.inspection_pb2_grpc import add_InspectionServicer_to_server

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

STOP_GRACE_S = 0.5
_HANDSHAKE_TIMEOUT_MS = 10_000
# What gRPC says in the middle of a read or a write when there is nobody any more.
_GONE = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class GrpcWire:
    """A stream that a client opened."""

    __slots__ = ("_context", "host")

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self.host = host_of(context.peer())

    async def read(self) -> bytes | None:
        try:
            raw = await self._context.read()
        except _GONE as error:
            raise ClientGoneError from error
        return raw if isinstance(raw, bytes) else None

    async def write(self, output: bytes) -> None:
        try:
            await self._context.write(output)
        except _GONE as error:
            raise ClientGoneError from error

    async def close(self, reason: str) -> None:
        # In order, it ends with its handler.
        if reason:
            with contextlib.suppress(*_GONE):
                await self._context.abort(grpc.StatusCode.INTERNAL, reason)


class RpcServer:
    def __init__(self, agent: Agent, door: str = "") -> None:
        self._agent = agent
        self._door = door
        settings = agent.settings.runtime
        self._certificates: ServerCertificates | None = None
        options: list[tuple[str, Any]] = [
            # Two brokers on one port would each get some of the connections.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", settings.message_bytes_max),
            ("grpc.max_send_message_length", settings.message_bytes_max),
            NOTHING_COMPRESSED,
            # Connections without a stream: that never spoke HTTP/2, or have said all they had to.
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
            ("grpc.max_connection_idle_ms", round(settings.connection_idle_s * 1000)),
            # Peers and clients may check a quiet connection this often.
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            *keepalive_options(settings.client_keepalive_s),
        ]
        guards = () if door else (OperatorGuard(agent, agent.first_reads),)
        self._server = grpc.aio.server(options=options, interceptors=guards)
        streams = {"/dynatops.v1.PubSub/Connect": _stream(self._connect)}
        if not door:
            streams["/dynatops.v1.Peer/Link"] = _stream(self._link)
            add_InspectionServicer_to_server(InspectionService(agent), self._server)
            add_AdministrationServicer_to_server(AdministrationService(agent), self._server)
        self._server.add_generic_rpc_handlers((_Streams(streams),))

    def bind(self, address: str, credentials: LinkCredentials) -> int | None:
        """Take the address; the port, or None if it cannot be had."""
        certificates = self._certificates = self._certificates_of(credentials)
        try:
            if certificates is None:
                return self._server.add_insecure_port(address) or None
            return self._server.add_secure_port(address, certificates.credentials()) or None
        except RuntimeError:
            return None

    def _certificates_of(self, credentials: LinkCredentials) -> ServerCertificates | None:
        if credentials.tls is None:
            return None
        required = self._agent.settings.security.require_client_certificates
        return ServerCertificates(credentials.tls, require_client_certificates=required)

    def reload_certificates(self) -> None:
        """Show what the files hold now. Raises TlsFileError."""
        if self._certificates is not None:
            self._certificates.reload()

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)

    async def _link(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await self._agent.links.accept(context)

    async def _connect(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await self._agent.serve_client(GrpcWire(context), frames, self._door)


def _stream(handler: Callable[..., Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.stream_stream_rpc_method_handler(handler, unchanged, unchanged)


class _Streams(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)
