"""The door that gRPC clients come through: `ClientFrame`s in, `ServerFrame`s out.

Encoded contents laid end to end are one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import BrokerEffect, ConnectionId
from broker_agent.core.base.frame_bounds import LEAF, FrameError, Shape, check_parts, is_long
from broker_agent.core.broker import Broker
from broker_agent.core.sessions.content import Content
from dynatops.v1.client_pb2 import ClientFrame, ServerFrame

# Fields of ClientFrame that may be there many times, and those that such are in.
_CURSOR: Final[Shape] = {2: LEAF}
_SUBSCRIBE: Final[Shape] = {2: LEAF, 4: _CURSOR, 5: LEAF}
_UNSUBSCRIBE: Final[Shape] = {2: LEAF}
_RECEIVED: Final[Shape] = {2: LEAF, 3: LEAF}
_HELLO: Final[Shape] = {14: LEAF}
_BUNDLE: Final[Shape] = {2: LEAF}
_HISTORY: Final[Shape] = {3: _CURSOR, 8: _CURSOR}
CLIENT_FRAME: Final[Shape] = {
    1: {1: _HELLO, 2: _SUBSCRIBE, 3: _UNSUBSCRIBE, 6: _RECEIVED, 7: _BUNDLE, 8: _HISTORY}
}


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

    def encode(self, frame: ServerFrame) -> bytes:
        return frame.SerializeToString()

    def decode(self, raw: bytes) -> ServerFrame:
        """Raises DecodeError."""
        return ServerFrame.FromString(raw)


FRAMES: Final = Frames()
