"""The two ends of a stream between brokers, behind one face."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from dynatops.tls import Tls, TlsFileError, open_channel
from dynatops.v1.peer_pb2 import LinkFrame

METHOD = "/dynatops.v1.Peer/Link"
_CLOSING: set[asyncio.Task[None]] = set()


class StreamBrokenError(Exception):
    """The stream has ended, for whatever reason."""


class Stream(Protocol):
    """One end of an open stream, whichever side opened it."""

    async def read(self) -> LinkFrame:
        """The next frame; StreamBrokenError at the end."""

    async def write(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


def _parse(raw: bytes) -> LinkFrame | None:
    try:
        return LinkFrame.FromString(raw)
    except DecodeError:
        return None


def unchanged(raw: bytes) -> bytes:
    return raw


class OutboundStream:
    """A stream that this broker opened."""

    def __init__(self, address: str, options: list[tuple[str, Any]], tls: Tls | None) -> None:
        try:
            self._channel = open_channel(address, tls, options)
        except TlsFileError as error:
            raise StreamBrokenError(str(error)) from error
        multicallable = self._channel.stream_stream(
            METHOD, request_serializer=unchanged, response_deserializer=_parse
        )
        self._call = multicallable()

    async def read(self) -> LinkFrame:
        try:
            frame = await self._call.read()
        except grpc.RpcError as error:
            raise StreamBrokenError(_reason(error)) from error
        if not isinstance(frame, LinkFrame):
            raise StreamBrokenError("closed by the other side")
        return frame

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise StreamBrokenError(_reason(error)) from error

    def close(self) -> None:
        self._call.cancel()
        closing = asyncio.get_running_loop().create_task(self._channel.close())
        # Nobody holds a stream that is closed, nor would the loop its task.
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)


class InboundStream:
    """A stream that another broker opened."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self._ended = asyncio.Event()

    async def read(self) -> LinkFrame:
        raw = await self._context.read()
        if not isinstance(raw, bytes):
            raise StreamBrokenError("closed by the other side")
        frame = _parse(raw)
        if frame is None:
            raise StreamBrokenError("the other side sent what is no LinkFrame")
        return frame

    async def write(self, frame: bytes) -> None:
        if self._ended.is_set():
            raise StreamBrokenError("closed")
        try:
            await self._context.write(frame)
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            raise StreamBrokenError(_reason(error)) from error

    def close(self) -> None:
        self._ended.set()

    async def ended(self) -> None:
        await self._ended.wait()


def _reason(error: BaseException) -> str:
    return (
        error.details() or str(error.code())
        if isinstance(error, grpc.aio.AioRpcError)
        else str(error)
    )
