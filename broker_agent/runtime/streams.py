"""The ends of streams: between brokers, and to a manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from broker_agent.core.base.frame_bounds import LINK_FRAME, FrameError, check_parts
from dynatops.kit.background import finish
from dynatops.kit.security.tls import Tls, TlsFileError, open_channel
from dynatops.kit.serving.first_reads import FIRST_FRAME_BYTES_MAX
from dynatops.v1.peer_pb2 import LinkFrame

METHOD = "/dynatops.v1.Peer/Link"
# Of another broker: as many frames and messages as fit into two MiB are not counted.
LINK_PARTS_MAX = 1 << 20

Frame = TypeVar("Frame", bound=Message)

# What gRPC says in the middle of a read or a write when the other side, or the server, is no more.
_GONE = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class StreamBrokenError(Exception):
    """The stream has ended, for whatever reason."""


class InputFailedError(StreamBrokenError):
    """What came on the stream made this broker fail, which is a bug of its own; it is logged. The
    stream is ended: whatever its other side wants of it, it must begin anew."""


class PeerRefusedError(Exception):
    """The other side will not talk with this one, and said why."""


class Stream(Protocol):
    """One end of an open stream, whichever side opened it."""

    async def read(self) -> LinkFrame:
        """The next frame; StreamBrokenError at the end."""

    async def write(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


def _parser_of(kind: type[Frame]) -> Callable[[bytes], Frame | None]:
    def parse(raw: bytes) -> Frame | None:
        try:
            return kind.FromString(raw)
        except DecodeError:
            return None

    return parse


_parse = _parser_of(LinkFrame)


def unchanged(raw: bytes) -> bytes:
    return raw


class OutboundStream(Generic[Frame]):
    """A stream that this broker opened; frames of one kind come back on it."""

    def __init__(
        self,
        address: str,
        options: list[tuple[str, Any]],
        tls: Tls | None,
        method: str,
        kind: type[Frame],
    ) -> None:
        try:
            self._channel = open_channel(address, tls, options)
        except TlsFileError as error:
            raise StreamBrokenError(str(error)) from error
        self._kind = kind
        multicallable = self._channel.stream_stream(
            method, request_serializer=unchanged, response_deserializer=_parser_of(kind)
        )
        self._call = multicallable()

    async def read(self) -> Frame:
        try:
            frame = await self._call.read()
        except _GONE as error:
            raise StreamBrokenError(_reason(error)) from error
        if not isinstance(frame, self._kind):
            raise StreamBrokenError("closed by the other side")
        return frame

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except _GONE as error:
            raise StreamBrokenError(_reason(error)) from error

    def close(self) -> None:
        self._call.cancel()
        finish("closing a channel", self._channel.close())


def _first_link_frame(raw: bytes) -> LinkFrame | str:
    if len(raw) > FIRST_FRAME_BYTES_MAX:
        return "the other side sent too much before it said who it is"
    return _link_frame(raw)


def _link_frame(raw: bytes) -> LinkFrame | str:
    """The frame, or why it is none: an error that is raised holds on to what is large."""
    try:
        check_parts(raw, LINK_FRAME, LINK_PARTS_MAX)
    except FrameError as error:
        return str(error)
    return _parse(raw) or "the other side sent what is no LinkFrame"


def _required(outcome: LinkFrame | str) -> LinkFrame:
    if isinstance(outcome, str):
        raise StreamBrokenError(outcome)
    return outcome


class InboundStream:
    """A stream that another broker opened."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self._ended = asyncio.Event()

    async def read(self) -> LinkFrame:
        return _required(_link_frame(await self._read()))

    async def read_first(self) -> LinkFrame:
        """What a stranger says: no more than a hello."""
        return _required(_first_link_frame(await self._read()))

    async def _read(self) -> bytes:
        try:
            raw = await self._context.read()
        except _GONE as error:
            raise StreamBrokenError(_reason(error)) from error
        if not isinstance(raw, bytes):
            raise StreamBrokenError("closed by the other side")
        return raw

    async def write(self, frame: bytes) -> None:
        if self._ended.is_set():
            raise StreamBrokenError("closed")
        try:
            await self._context.write(frame)
        except _GONE as error:
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
