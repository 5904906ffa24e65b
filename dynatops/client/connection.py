"""One stream from a client to one broker."""

from __future__ import annotations

import asyncio

import grpc
from google.protobuf.message import DecodeError

from dynatops.kit.security.tls import Tls, explain, open_channel
from dynatops.kit.serving.keepalive import keepalive_options
from dynatops.v1.client_pb2 import ServerFrame

METHOD = "/dynatops.v1.PubSub/Connect"
MESSAGE_BYTES_MAX = 32 << 20
# A broker that hangs is left after twice this.
_KEEPALIVE_S = 10.0


class ConnectionLostError(Exception):
    """The connection is gone; the message says why."""


class Connection:
    def __init__(self, address: str, tls: Tls | None) -> None:
        """Raises TlsFileError."""
        self._channel = open_channel(
            address,
            tls,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                *keepalive_options(_KEEPALIVE_S),
                # Each attempt stands for itself: when to try again is the client's business.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
            ],
        )
        # Frames come encoded.
        self._call: grpc.aio.StreamStreamCall[bytes, ServerFrame | None] = (
            self._channel.stream_stream(
                METHOD,
                response_deserializer=_parse,
            )()
        )

    async def write(self, raw: bytes) -> None:
        """Send an encoded ClientFrame."""
        try:
            await self._call.write(raw)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise ConnectionLostError(_reason(error)) from error

    async def read(self) -> ServerFrame:
        try:
            frame = await self._call.read()
        except grpc.RpcError as error:
            raise ConnectionLostError(_reason(error)) from error
        if not isinstance(frame, ServerFrame):
            raise ConnectionLostError("the broker closed the connection")
        return frame

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def _parse(raw: bytes) -> ServerFrame | None:
    try:
        return ServerFrame.FromString(raw)
    except DecodeError:
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return explain(error.details() or str(error.code()))
    return str(error)
