"""Many sessions on one broker: memory, and how fast they come, are missed, and come back.

    python -m benchmarks.sessions [--json] [--sessions N] [--topics T] [--distinct N] [--streams N]

The broker is a process of its own, reached over gRPC. Each session says hello, subscribes to
five topics drawn at random, waits for the confirmation, and goes; the broker keeps it. Sessions
confirm nothing, so the broker also keeps what it told them: where their topics begin. Then events
are published, and a sample of sessions comes back and must get just those of its topics.

`distinct`: the same with a topic of its own for every subscription. `streams`: clients that stay
connected, each over a connection of its own, and subscribe to nothing. Memory is resident memory
of the broker's process; what one of something takes is growth divided by their number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc

import dynatops
from dynatops.local.cluster import BrokerProcess
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Filter,
    Hello,
    ServerFrame,
    ServerMessage,
    Subscribe,
)
from dynatops.v1.overlay_pb2 import Events

TOPICS_PER_SESSION = 5
EXPIRY_S = 3_600
# Streams that are opened at once, and the connections that they share.
AT_ONCE = 64
CHANNELS = 8
PUBLISHED_TOPICS = 200
SAMPLE = 1_000
PATIENCE_S = 60.0
# Once nothing happens any more, the broker frees what was in flight.
QUIET_S = 2.0


@dataclass(frozen=True, slots=True)
class SessionPlan:
    sessions: int
    # 0: every subscription has a topic of its own.
    topics: int

    def topics_of(self, session: int) -> list[str]:
        first = session * TOPICS_PER_SESSION
        numbers: Iterable[int] = range(first, first + TOPICS_PER_SESSION)
        if self.topics:
            numbers = Random(session).sample(range(self.topics), TOPICS_PER_SESSION)
        return [f"bench/sessions/{number:06d}" for number in numbers]


# ---- one stream ----------------------------------------------------------------------------------


class SessionStream:
    """A client's connection, spoken to in frames."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        connect: Any = channel.stream_stream("/dynatops.v1.PubSub/Connect")
        self._call = connect()

    async def say(self, *messages: ClientMessage) -> None:
        await self._call.write(ClientFrame(messages=messages).SerializeToString())

    async def hear_until(self, is_last: Callable[[ServerMessage], bool]) -> list[ServerMessage]:
        """Everything up to such a message. Raises RuntimeError if the broker ends the stream."""
        heard: list[ServerMessage] = []
        async with asyncio.timeout(PATIENCE_S):
            while not (heard and is_last(heard[-1])):
                raw = await self._call.read()
                if not isinstance(raw, bytes):
                    raise RuntimeError("the broker ended a stream")
                for message in ServerFrame.FromString(raw).messages:
                    heard.append(message)
                    if is_last(message):
                        break
        return heard

    async def end(self) -> None:
        """Close, and wait until the broker has noticed."""
        async with asyncio.timeout(PATIENCE_S):
            await self._call.done_writing()
            while isinstance(await self._call.read(), bytes):
                pass


def hello(session: int, *, kept: bool = True) -> ClientMessage:
    expiry_s = EXPIRY_S if kept else 0
    return ClientMessage(hello=Hello(protocol=1, client_id=f"session-{session}", expiry_s=expiry_s))


async def open_session(channel: grpc.aio.Channel, plan: SessionPlan, session: int) -> None:
    stream = SessionStream(channel)
    filters = [Filter(pattern=topic) for topic in plan.topics_of(session)]
    subscribe = ClientMessage(subscribe=Subscribe(request=1, filters=filters))
    await stream.say(hello(session), subscribe)
    await stream.hear_until(lambda message: message.HasField("subscribed"))
    await stream.end()


async def come_back(
    channel: grpc.aio.Channel, plan: SessionPlan, session: int, published: frozenset[str]
) -> None:
    """Raises RuntimeError unless the session gets what was published on its topics, once."""
    expected = sorted(published.intersection(plan.topics_of(session)))
    waiting_for = set(expected)
    stream = SessionStream(channel)
    await stream.say(hello(session))

    def is_last(message: ServerMessage) -> bool:
        if message.HasField("run") and message.run.count:
            waiting_for.discard(message.run.topic)
        return not waiting_for

    heard = await stream.hear_until(is_last)
    if not heard[0].welcome.resumed:
        raise RuntimeError(f"session {session} was not kept")
    runs = [message.run for message in heard if message.HasField("run") and message.run.count]
    got = sorted(run.topic for run in runs for _ in Events.FromString(run.events).events)
    if got != expected:
        raise RuntimeError(f"session {session} got {got}, not {expected}")
    await stream.end()


# ---- many ----------------------------------------------------------------------------------------


@asynccontextmanager
async def channels_to(address: str, count: int) -> AsyncIterator[Sequence[grpc.aio.Channel]]:
    """Each with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(count)]
    try:
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def each_a_second(
    address: str, items: Sequence[int], work: Callable[[grpc.aio.Channel, int], Awaitable[None]]
) -> float:
    """Do this for each, many at once; how many a second."""
    remaining = iter(items)

    async def go_on(channel: grpc.aio.Channel) -> None:
        for item in remaining:
            await work(channel, item)

    started_s = time.perf_counter()
    async with channels_to(address, CHANNELS) as channels:
        await asyncio.gather(*(go_on(channels[i % CHANNELS]) for i in range(AT_ONCE)))
    return len(items) / (time.perf_counter() - started_s)


async def publish(address: str, topics: Iterable[str]) -> None:
    async with dynatops.connect(address, timeout_s=PATIENCE_S) as client:
        await asyncio.gather(*(client.publish(topic, b"an event") for topic in topics))


async def resident_bytes(broker: BrokerProcess) -> int:
    await asyncio.sleep(QUIET_S)
    return _resident_bytes(broker.process.pid)


def _resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(resident.split()[1]) << 10


@asynccontextmanager
async def a_broker() -> AsyncIterator[BrokerProcess]:
    broker = await BrokerProcess.start("sessions")
    try:
        yield broker
    finally:
        # There is nothing to say goodbye to.
        broker.kill()
        await broker.stop()


async def measure_sessions(plan: SessionPlan) -> dict[str, Any]:
    async with a_broker() as broker:
        address = broker.address
        empty = await resident_bytes(broker)
        opened = await each_a_second(
            address, range(plan.sessions), lambda channel, i: open_session(channel, plan, i)
        )
        full = await resident_bytes(broker)
        rng = Random(1)
        sample = rng.sample(range(plan.sessions), min(SAMPLE, plan.sessions))
        wanted = sorted({topic for i in sample for topic in plan.topics_of(i)})
        published = frozenset(rng.sample(wanted, min(PUBLISHED_TOPICS, len(wanted))))
        await publish(address, published)
        back = await each_a_second(
            address, sample, lambda channel, i: come_back(channel, plan, i, published)
        )
    return {
        "sessions": plan.sessions,
        "subscriptions": plan.sessions * TOPICS_PER_SESSION,
        "topics": plan.topics or plan.sessions * TOPICS_PER_SESSION,
        "empty_mb": empty / 1e6,
        "resident_mb": full / 1e6,
        "bytes_a_session": (full - empty) / plan.sessions,
        "opened_a_second": opened,
        "came_back": len(sample),
        "came_back_a_second": back,
    }


async def measure_streams(count: int) -> dict[str, Any]:
    async with a_broker() as broker:
        empty = await resident_bytes(broker)
        async with channels_to(broker.address, count) as channels:
            # A call that nobody holds is cancelled.
            streams: list[SessionStream] = []
            for i, channel in enumerate(channels):
                stream = SessionStream(channel)
                streams.append(stream)
                await stream.say(hello(i, kept=False))
                await stream.hear_until(lambda message: message.HasField("welcome"))
            full = await resident_bytes(broker)
    return {
        "streams": count,
        "empty_mb": empty / 1e6,
        "resident_mb": full / 1e6,
        "bytes_a_stream": (full - empty) / count,
    }


# ---- report --------------------------------------------------------------------------------------


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    plans = [SessionPlan(arguments.sessions, arguments.topics), SessionPlan(arguments.distinct, 0)]
    return {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "sessions": [await measure_sessions(plan) for plan in plans if plan.sessions],
        "streams": [await measure_streams(count) for count in [arguments.streams] if count],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument(
        "--distinct", type=int, default=100_000, help="sessions whose topics nobody shares; 0: none"
    )
    parser.add_argument("--streams", type=int, default=2_000, help="connected clients; 0: none")
    arguments = parser.parse_args()
    report = asyncio.run(measure(arguments))
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    print("| sessions | topics | resident MB | bytes a session | opened a second | back a second |")
    print("|---:|---:|---:|---:|---:|---:|")
    for point in report["sessions"]:
        print(
            f"| {point['sessions']:,} | {point['topics']:,} | {point['resident_mb']:,.0f}"
            f" | {point['bytes_a_session']:,.0f} | {point['opened_a_second']:,.0f}"
            f" | {point['came_back_a_second']:,.0f} |"
        )
    for point in report["streams"]:
        print(
            f"\n{point['streams']:,} connected streams: {point['resident_mb']:,.0f} MB,"
            f" {point['bytes_a_stream']:,.0f} bytes each; an empty broker has"
            f" {point['empty_mb']:,.0f} MB"
        )


if __name__ == "__main__":
    sys.exit(main())
