"""A client's core, with a broker that is just what it hears."""

from __future__ import annotations

from dynatops.client.core.client_core import ClientCore, Item
from dynatops.v1.client_pb2 import ClientFrame, ServerFrame, ServerMessage, Welcome

TOPIC = "quake/ca"


def connected(core: ClientCore, publisher: int = 6) -> ClientCore:
    core.connected()
    welcome = Welcome(broker_id="b0", session_id="b0/1", serial=1, publisher=publisher)
    hear(core, welcome=welcome)
    return core


def new_core() -> ClientCore:
    return connected(ClientCore("ann", b"s" * 16))


def hear(core: ClientCore, **body: object) -> list[Item]:
    frame = ServerFrame(messages=[ServerMessage(**body)])  # type: ignore[arg-type]
    return list(core.on_frame(frame))


def take(core: ClientCore) -> ClientFrame:
    return core.take_frame(1 << 20) or ClientFrame()
