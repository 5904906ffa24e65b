"""What somebody without any right costs a broker: memory, and how long others have to wait.

    python -m benchmarks.attacks [--json] [--only NAME …] [--strangers N] [--megabytes N]

For each attack a broker is started, a process of its own on loopback, and a client that behaves: it
publishes an event on a topic that it reads and waits until that is back, again and again. Then the
attack: so many strangers at once, who open a stream and say what nobody should say. What is told is
the highest resident memory of the broker, how much of that came with the attack, the longest that
the event took, and whether a client that came during the attack was let in.

Every attack ends by itself, after half a minute at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

import dynatops
from dynatops.local.cluster import BrokerProcess
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage, Hello

CLIENTS = "/dynatops.v1.PubSub/Connect"
PEERS = "/dynatops.v1.Peer/Link"
# An empty message, as it stands in a ClientFrame and in a LinkFrame.
EMPTY_MESSAGE = b"\x0a\x00"
EMPTY_FRAME = b"\x12\x00"
TOPIC = "attacked"
ATTACK_S = 30.0
QUIET_S = 1.0
# Streams that are silent, and connections that they share.
SILENT = 1_200
CHANNELS = 12

Attack = Callable[[str, "Size"], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Size:
    strangers: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class AttackOutcome:
    attack: str
    rest_mb: int
    peak_mb: int
    longest_echo_ms: int
    newcomer_ms: int
    alive: bool


# ---- attacks -------------------------------------------------------------------------------------


def _channel(address: str, *, zipped: bool = False) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ],
        compression=grpc.Compression.Gzip if zipped else None,
    )


async def _say(address: str, method: str, *frames: bytes, zipped: bool = False) -> None:
    """One stranger: frames, and whatever is answered until the stream is ended."""
    async with _channel(address, zipped=zipped) as channel:
        call: Any = channel.stream_stream(method)()
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(ATTACK_S):
                for raw in frames:
                    await call.write(raw)
                while isinstance(await call.read(), bytes):
                    pass
        call.cancel()


def _frames(method: str, message: bytes, *, zipped: bool) -> Attack:
    async def attack(address: str, size: Size) -> None:
        raw = message * (size.nbytes // len(message))
        strangers = [_say(address, method, raw, zipped=zipped) for _ in range(size.strangers)]
        await asyncio.gather(*strangers)

    return attack


async def _let_in(address: str, size: Size) -> None:
    """Clients that say hello first: where there are tokens, they need one."""
    raw = EMPTY_MESSAGE * (size.nbytes // len(EMPTY_MESSAGE))
    hello = ClientFrame(messages=[ClientMessage(hello=Hello(protocol=1))]).SerializeToString()
    await asyncio.gather(*(_say(address, CLIENTS, hello, raw) for _ in range(size.strangers)))


async def _silence(address: str, size: Size) -> None:
    """Streams on which nothing is said, from one address."""
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(_channel(address)) for _ in range(CHANNELS)]
        calls: list[Any] = [channels[i % CHANNELS].stream_stream(CLIENTS)() for i in range(SILENT)]
        await asyncio.sleep(3.0)
        for call in calls:
            call.cancel()


ATTACKS: dict[str, Attack] = {
    "clients, zipped": _frames(CLIENTS, EMPTY_MESSAGE, zipped=True),
    "clients, plain": _frames(CLIENTS, EMPTY_MESSAGE, zipped=False),
    "peers, zipped": _frames(PEERS, EMPTY_FRAME, zipped=True),
    "peers, plain": _frames(PEERS, EMPTY_FRAME, zipped=False),
    "clients, let in": _let_in,
    "silent streams": _silence,
}


# ---- what they cost ------------------------------------------------------------------------------


def _memory_mb(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) >> 10
    return 0


class WellBehaved:
    """A client that is there all the time, and its longest wait for an event of its own."""

    def __init__(self, address: str) -> None:
        self.longest_s = 0.0
        self._address = address

    async def run(self, ready: asyncio.Event) -> None:
        async with (
            dynatops.connect(self._address) as client,
            client.subscribe(TOPIC) as events,
        ):
            heard = aiter(events)
            while True:
                began_s = time.monotonic()
                await client.publish(TOPIC, b"x")
                await anext(heard)
                if ready.is_set():
                    self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                ready.set()
                await asyncio.sleep(0.01)


async def _newcomer(address: str) -> int:
    """How long it takes to be let in while the attack goes on; -1: it was not within 10 s."""
    await asyncio.sleep(0.2)
    began_s = time.monotonic()
    try:
        async with dynatops.connect(address, timeout_s=10.0) as client:
            await client.publish(TOPIC + "/newcomer", b"x")
    except (dynatops.ConnectError, dynatops.PublishError):
        return -1
    return round((time.monotonic() - began_s) * 1_000)


async def suffer(name: str, size: Size) -> AttackOutcome:
    broker = await BrokerProcess.start("b0")
    try:
        client, ready = WellBehaved(broker.address), asyncio.Event()
        behaving = asyncio.create_task(client.run(ready))
        await ready.wait()
        await asyncio.sleep(QUIET_S)
        rest_mb = _memory_mb(broker.process.pid, "VmRSS")
        client.longest_s = 0.0
        attacking = asyncio.create_task(ATTACKS[name](broker.address, size))
        newcomer_ms = await _newcomer(broker.address)
        await attacking
        await asyncio.sleep(QUIET_S)
        behaving.cancel()
        await asyncio.gather(behaving, return_exceptions=True)
        alive = broker.process.returncode is None
        peak_mb = _memory_mb(broker.process.pid, "VmHWM") if alive else -1
        longest_ms = round(client.longest_s * 1_000)
        return AttackOutcome(name, rest_mb, peak_mb, longest_ms, newcomer_ms, alive)
    finally:
        broker.kill()
        await broker.process.communicate()


async def measure(names: Sequence[str], size: Size) -> list[AttackOutcome]:
    return [await suffer(name, size) for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", choices=list(ATTACKS), metavar="NAME")
    parser.add_argument("--strangers", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=31)
    options = parser.parse_args(arguments)
    size = Size(options.strangers, options.megabytes << 20)
    outcomes = asyncio.run(measure(options.only or list(ATTACKS), size))
    if options.json:
        print(
            json.dumps(
                {
                    "python": platform.python_version(),
                    "strangers": size.strangers,
                    "bytes": size.nbytes,
                    "attacks": [asdict(o) for o in outcomes],
                }
            )
        )
        return 0
    python = platform.python_version()
    print(f"{size.strangers} strangers, {size.nbytes >> 20} MB each, Python {python}")
    print(f"{'attack':18} {'at rest':>8} {'peak':>8} {'longest echo':>13} {'newcomer':>10}")
    for o in outcomes:
        newcomer = f"{o.newcomer_ms} ms" if o.newcomer_ms >= 0 else "not let in"
        print(
            f"{o.attack:18} {o.rest_mb:5} MB {o.peak_mb:5} MB {o.longest_echo_ms:10} ms "
            f"{newcomer:>10}{'' if o.alive else '   the broker is dead'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
