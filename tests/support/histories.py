"""The past, asked of a broker that runs, as a client says it on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from dynatops.kit.run_events import events_of
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Filter,
    Hello,
    History,
    HistoryEnd,
    ServerFrame,
)

TIMEOUT_S = 30.0


class PastRefusedError(Exception):
    def __init__(self, end: HistoryEnd) -> None:
        super().__init__(end.message)
        self.error = end.error


async def past_at(address: str, pattern: str, **wanted: Any) -> list[bytes]:
    """As a client of this broker is told of it. Raises PastRefusedError."""
    history = History(request=1, filter=Filter(pattern=pattern), credit_bytes=1 << 20, **wanted)
    said = [ClientMessage(hello=Hello(protocol=1)), ClientMessage(history=history)]
    payloads: list[bytes] = []
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(TIMEOUT_S):
        call: Any = channel.stream_stream("/dynatops.v1.PubSub/Connect")()
        await call.write(ClientFrame(messages=said).SerializeToString())
        while True:
            for message in ServerFrame.FromString(await call.read()).messages:
                if message.HasField("history_end"):
                    if message.history_end.error:
                        raise PastRefusedError(message.history_end)
                    return payloads
                for run in message.history_part.events.runs:
                    payloads += [event.payload for event in events_of(run) or ()]
