"""The gRPC server of a broker: links, client sessions, inspection.

The two streams are served as raw bytes: output is put together from pieces that are serialised
already, and input that cannot be parsed is answered, not dropped by the transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from broker_agent.doors.frames import take_output
from broker_agent.process_settings import RuntimeSettings
from broker_agent.runtime.connections import ClientConnection
from broker_agent.runtime.observing.inspection import InspectionGuard, InspectionService
from broker_agent.runtime.streams import InputFailedError, unchanged
from dynatops.kit.security.peer_credentials import ServerCertificates
from dynatops.kit.serving.first_reads import NOTHING_COMPRESSED, FirstReads, host_of
from dynatops.kit.serving.keepalive import keepalive_options
from dynatops.v1.inspection_pb2_grpc import add_InspectionServicer_to_server

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

STOP_GRACE_S = 0.5
_HANDSHAKE_TIMEOUT_MS = 10_000


class RpcServer:
    def __init__(self, agent: Agent, settings: RuntimeSettings) -> None:
        self._agent = agent
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
        self._first_reads = FirstReads(
            settings.unnamed_bytes_max, settings.message_bytes_max, agent.on_place_lost
        )
        guard = InspectionGuard(agent, self._first_reads)
        self._server = grpc.aio.server(options=options, interceptors=(guard,))
        self._server.add_generic_rpc_handlers((self._streams(),))
        add_InspectionServicer_to_server(InspectionService(agent), self._server)

    def _streams(self) -> grpc.GenericRpcHandler:
        peer = grpc.stream_stream_rpc_method_handler(self._link, unchanged, unchanged)
        client = grpc.stream_stream_rpc_method_handler(self._connect, unchanged, unchanged)
        return _Streams({"/dynatops.v1.Peer/Link": peer, "/dynatops.v1.PubSub/Connect": client})

    def bind(self, address: str, certificates: ServerCertificates | None) -> int | None:
        """Take the address; the port, or None if it cannot be had."""
        self._certificates = certificates
        try:
            if certificates is None:
                return self._server.add_insecure_port(address) or None
            return self._server.add_secure_port(address, certificates.credentials()) or None
        except RuntimeError:
            return None

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
        agent = self._agent
        connection = ClientConnection(context, host_of(context.peer()))
        connection_id = agent.open_connection(connection)
        bytes_max = agent.settings.runtime.session_frame_bytes_max
        try:
            await connection.serve(
                lambda raw: agent.on_client_bytes(connection_id, raw),
                lambda: take_output(agent.core, connection_id, bytes_max),
                self._first_reads,
            )
        except InputFailedError:
            # It is logged; to the client the connection is broken.
            await context.abort(grpc.StatusCode.INTERNAL, "the broker failed on what was said")
        finally:
            agent.close_connection(connection_id)


class _Streams(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)
