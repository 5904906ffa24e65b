"""The same work on other brokers, in the same run: ratios, since absolute figures mean little here.

    python -m benchmarks.data_plane [--json] [--rounds N]

One publisher, one subscriber, one broker, each a process; 100-byte payloads, nothing acknowledged.
Measured are those that are installed: `nats-server` with nats-py, `mosquitto` with paho-mqtt, amqtt
with paho-mqtt; each publishes with the quickest call that its client has. Rounds go through all
systems in turn and the median of each counts, so that a disturbance does not hit one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import shutil
import socket
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dynatops.local.bench.processes import BenchWorker

_START_TIMEOUT_S = 20.0
_RUN_TIMEOUT_S = 120
# Slow ones get less to do; what counts is the rate.
EVENTS = {"dynatops": 1_000_000, "nats": 500_000, "mosquitto": 200_000, "amqtt": 20_000}
WINDOW = 20_000
PAYLOAD_BYTES = 100


def _dynatops(port: int, _: Path) -> list[str]:
    return [sys.executable, "-m", "dynatops", "broker", "--listen", f"127.0.0.1:{port}"]


def _nats(port: int, _: Path) -> list[str]:
    return ["nats-server", "--addr", "127.0.0.1", "--port", str(port)]


def _mosquitto(port: int, folder: Path) -> list[str]:
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
    )
    return [shutil.which("mosquitto") or "mosquitto", "-c", str(configuration)]


def _amqtt(port: int, folder: Path) -> list[str]:
    configuration = folder / "amqtt.yaml"
    configuration.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
        "    allow_anonymous: true\n"
    )
    return [str(Path(sys.executable).with_name("amqtt")), "-c", str(configuration)]


# How to start each, and the modules and programs that it takes.
_SYSTEMS: dict[str, tuple[Callable[[int, Path], list[str]], tuple[str, ...], tuple[str, ...]]] = {
    "dynatops": (_dynatops, (), ()),
    "nats": (_nats, ("nats",), ("nats-server",)),
    "mosquitto": (_mosquitto, ("paho",), ("mosquitto",)),
    "amqtt": (_amqtt, ("paho", "amqtt"), ()),
}


def missing(name: str) -> list[str]:
    """What must be installed before this system can be measured."""
    _, modules, programs = _SYSTEMS[name]
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return absent + [program for program in programs if shutil.which(program) is None]


@asynccontextmanager
async def _server(name: str) -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = _SYSTEMS[name][0](port, Path(folder))
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _listening(process, port)
            yield f"127.0.0.1:{port}"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(_START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"the server ended at once, exit code {process.returncode}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def measure(name: str, events: int) -> float:
    """Events a second."""
    plan = json.dumps(
        {
            "events": events,
            "payload_bytes": PAYLOAD_BYTES,
            "window": WINDOW,
            "timeout_s": _RUN_TIMEOUT_S,
        }
    )
    module = "benchmarks.data_plane_clients"
    async with _server(name) as address:
        subscriber = await BenchWorker.start(module, name, "subscribe", address, plan)
        await subscriber.line()
        publisher = await BenchWorker.start(module, name, "publish", address, plan)
        while "seconds" not in (report := await subscriber.line()):
            await publisher.tell(report)
        await publisher.finish()
        await subscriber.finish()
    return float(events / report["seconds"])


async def compare(rounds: int, scale: float) -> dict[str, Any]:
    absent = {name: missing(name) for name in _SYSTEMS}
    rates: dict[str, list[float]] = {name: [] for name in _SYSTEMS if not absent[name]}
    for _ in range(rounds):
        for name, measured in rates.items():
            measured.append(await measure(name, max(1_000, int(EVENTS[name] * scale))))
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    return {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "events_per_s": {name: round(rate, 1) for name, rate in medians.items()},
        "dynatops_times": {
            name: round(medians["dynatops"] / rate, 2)
            for name, rate in medians.items()
            if name != "dynatops"
        },
        "not_installed": {name: parts for name, parts in absent.items() if parts},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput beside other brokers, as ratios.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="times the usual number of events"
    )
    arguments = parser.parse_args()
    report = asyncio.run(compare(arguments.rounds, arguments.scale))
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    for name, rate in report["events_per_s"].items():
        times = report["dynatops_times"].get(name)
        beside = "" if times is None else f"   dynatops moves {times:.2f} times as many"
        print(f"{name:>10} {rate:>12,.0f} events/s{beside}")
    for name, parts in report["not_installed"].items():
        print(f"{name:>10} not measured: {', '.join(parts)} not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
