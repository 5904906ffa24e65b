"""The door that gRPC clients come through: `ClientFrame`s in, `ServerFrame`s out.

Contents laid end to end are one frame. A content is framed around its serialised bodies, without
another message being built around them: nothing is copied twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from broker_agent.core.broker import Broker
from broker_agent.core.core_settings import CoreSettings
from broker_agent.core.effects import BrokerEffect, ConnectionId
from broker_agent.core.frame_bounds import LEAF, FrameError, Shape, check_parts, is_long
from broker_agent.core.sessions.content import Body, Content
from dynatops.v1.client_pb2 import ClientFrame, ServerFrame, ServerMessage

# Fields of ClientFrame that may be there many times, and those that such are in.
_CURSOR: Final[Shape] = {2: LEAF}
_SUBSCRIBE: Final[Shape] = {2: LEAF, 4: _CURSOR, 5: LEAF}
_UNSUBSCRIBE: Final[Shape] = {2: LEAF}
_RECEIVED: Final[Shape] = {2: LEAF, 3: LEAF}
_HELLO: Final[Shape] = {14: LEAF}
CLIENT_FRAME: Final[Shape] = {1: {1: _HELLO, 2: _SUBSCRIBE, 3: _UNSUBSCRIBE, 6: _RECEIVED}}

_LENGTH_DELIMITED = 2
_MESSAGES = bytes((ServerFrame.DESCRIPTOR.fields_by_name["messages"].number << 3 | 2,))
# How each kind of body is introduced in a ServerMessage.
_BODIES: Mapping[str, bytes] = MappingProxyType(
    {
        field.message_type.full_name: bytes((field.number << 3 | _LENGTH_DELIMITED,))
        for field in ServerMessage.DESCRIPTOR.oneofs_by_name["body"].fields
        if field.message_type is not None
    }
)


# ---- in ------------------------------------------------------------------------------------------


def on_client_bytes(
    broker: Broker, connection: ConnectionId, raw: bytes, reading_s: float
) -> list[BrokerEffect]:
    """What came from a client, whatever it is."""
    try:
        frame = read_client_frame(raw, broker.settings, is_named=broker.is_named(connection))
    except FrameError as error:
        return broker.on_refused_frame(connection, str(error), reading_s)
    return broker.on_client_frame(connection, frame, reading_s)


def read_client_frame(raw: bytes, settings: CoreSettings, *, is_named: bool) -> ClientFrame:
    """The frame that these bytes are. Raises FrameError."""
    if not is_named and len(raw) > settings.hello_frame_bytes_max:
        limit = f"{settings.hello_frame_bytes_max:,}"
        raise FrameError(f"the first frame has {len(raw):,} bytes; the limit is {limit}")
    if is_long(raw, settings.frame_parts_max):
        # Messages first: the sooner it is known, the less it costs.
        check_parts(raw, LEAF, settings.frame_messages_max)
        check_parts(raw, CLIENT_FRAME, settings.frame_parts_max)
    try:
        frame = ClientFrame.FromString(raw)
    except DecodeError:
        text = "that was not a ClientFrame (or contained text that is not UTF-8)"
        raise FrameError(text) from None
    if len(frame.messages) > settings.frame_messages_max:
        limit = f"{settings.frame_messages_max:,}"
        raise FrameError(f"a frame has {len(frame.messages):,} messages; the limit is {limit}")
    return frame


# ---- out -----------------------------------------------------------------------------------------


def take_output(broker: Broker, connection: ConnectionId, bytes_max: int) -> bytes:
    """What is to be said to the client now: a whole frame, empty if that is nothing."""
    return frame_of(broker.take_output(connection, bytes_max))


def frame_of(contents: Sequence[Content]) -> bytes:
    if len(contents) == 1:
        return contents[0].encoded(FRAMES)
    return b"".join([content.encoded(FRAMES) for content in contents])


class Frames:
    """Contents as frames of their own, which are also pieces of a longer one."""

    def encode(self, bodies: Sequence[Body]) -> bytes:
        if len(bodies) == 1:
            return _encode(bodies[0])
        return b"".join(map(_encode, bodies))

    def decode(self, raw: bytes) -> Sequence[Body]:
        """Raises DecodeError."""
        messages = ServerFrame.FromString(raw).messages
        kinds = ((message, message.WhichOneof("body")) for message in messages)
        return [getattr(message, kind) for message, kind in kinds if kind is not None]


FRAMES: Final = Frames()


def _encode(body: Body) -> bytes:
    raw = body.SerializeToString()
    introduced = _BODIES[body.DESCRIPTOR.full_name] + _varint(len(raw))
    return b"".join((_MESSAGES, _varint(len(introduced) + len(raw)), introduced, raw))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
