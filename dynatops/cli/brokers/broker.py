"""`dynatops broker`: run one broker process."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
from collections.abc import Iterable
from typing import Any

from dynatops.cli.assignments import explain_settings
from dynatops.cli.common import Commands, add_command, add_logging, run_async
from dynatops.cli.errors import CommandError, UsageError
from dynatops.kit.background import EXIT_CODE, BackgroundError, end_now, end_within
from dynatops.kit.observing.logs import configure
from dynatops.kit.redis_access import exposed_password
from dynatops.kit.serving.file_watch import watched

_FAILED_END_S = 10.0

log = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "broker",
        run,
        summary="run one broker, until it is told to stop",
        description="Run one broker: it founds a ring, or joins the one of the brokers named. "
        "SIGTERM or Ctrl-C makes it leave the ring, hand over its topics and tell its clients; "
        "SIGUSR1 (`dynatops leave`) too, but its process stays until SIGTERM; SIGHUP makes it read "
        "its tokens and certificates again; SIGUSR2 has what it has recorded (`record.dir`) "
        "on disk.",
        epilog="With --json the first line printed is the broker's address, once it is a member. "
        f"Exit code {EXIT_CODE}: something in it has failed that it cannot do without, and its log "
        "says what; its supervisor should start it again.",
    )
    _add_place(parser)
    _add_others(parser)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting, such as overlay.stabilise_period_s=0.2; see `dynatops settings`",
    )
    add_logging(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Who the broker is, where it is, and whose ring it joins."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:7400; port 0 takes any)",
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="address that others reach this broker at"
    )
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a broker of the ring to join; repeat for more; without it a new ring is founded",
    )
    parser.add_argument(
        "--found-if-alone",
        action="store_true",
        help="if no broker of --join has a ring, the first of them founds one: for brokers that "
        "are all started with the same --join, which names them all",
    )
    parser.add_argument(
        "--topology",
        metavar="FILE",
        help="forward events in the tree of brokers that this file describes (YAML), in place of a "
        "ring; this broker is in it",
    )
    parser.add_argument(
        "--broker-id",
        metavar="NAME",
        help="stable name of the broker (default: host name and port)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="keep sessions there, for the broker's next start (default: in memory only)",
    )
    parser.add_argument(
        "--store",
        metavar="FILTER[,…]",
        action="append",
        default=[],
        help="keep the events of these topics on disk, below --data-dir; repeat for more (default: "
        "none)",
    )
    parser.add_argument(
        "--pid-file", metavar="FILE", help="for `dynatops leave` to find this broker by"
    )


def _add_others(parser: argparse.ArgumentParser) -> None:
    """Whom it talks to besides: managers, the lake, operators."""
    parser.add_argument(
        "--manager",
        metavar="HOST:PORT[,…]",
        action="append",
        default=[],
        help="a reconfiguration manager to attend to; repeat for more (default: none)",
    )
    parser.add_argument(
        "--lake",
        metavar="URL",
        help="write what happens here to this lake, for analytics; a folder, or a URL that pyarrow "
        "opens (default: nowhere)",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="answer probes and metrics there: /livez, /readyz, /metrics; without a token "
        "(default: nowhere)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback although not everyone is authenticated",
    )
    parser.add_argument(
        "--label",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="what is known of the broker, such as region=eu or latitude=52.5; repeat for more",
    )


def settings_from(arguments: argparse.Namespace) -> Any:
    """The broker's settings; UsageError names what is wrong with them."""
    from pydantic import ValidationError

    from broker_agent.process_settings import SETTING_GROUPS, BrokerSettings, describe_settings

    values: dict[str, Any] = nested(arguments.set, SETTING_GROUPS)
    for name in ("listen", "advertise", "broker_id", "topology", "data_dir", "pid_file"):
        if getattr(arguments, name):
            values[name] = getattr(arguments, name)
    if arguments.topology and not (arguments.listen or arguments.advertise):
        values |= _place_in(arguments.topology, arguments.broker_id)
    values["join"] = tuple(part for entry in arguments.join for part in entry.split(","))
    managers = tuple(part for entry in arguments.manager for part in entry.split(","))
    if managers:
        values.setdefault("manager", {})["addresses"] = managers
    if keep := tuple(part for entry in arguments.store for part in entry.split(",")):
        values.setdefault("store", {})["keep"] = keep
    if arguments.http:
        values.setdefault("http", {})["listen"] = arguments.http
    if arguments.lake:
        values.setdefault("lake", {})["url"] = arguments.lake
    values["found_if_alone"] = arguments.found_if_alone
    values["insecure"] = arguments.insecure
    values["labels"] = dict(_label(entry) for entry in arguments.label)
    try:
        return BrokerSettings.model_validate(values)
    except ValidationError as error:
        known = [name for name, _, _ in describe_settings()]
        raise UsageError(explain_settings(error, known)) from None


def _place_in(topology: str, broker_id: str | None) -> dict[str, str]:
    """Where the broker listens, if it is not said: where others are told to find it."""
    from broker_agent.runtime.peers.topology_file import read_topology
    from overlay.forwarding.tree.topology import TopologyError

    try:
        address = read_topology(topology).addresses.get(broker_id or "")
    except TopologyError as error:
        raise UsageError(f"--topology {topology}: {error}") from None
    return {"listen": address} if address else {}


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"--label {text}: write NAME=VALUE")
    return name, value


def nested(assignments: Iterable[str], groups: Iterable[str]) -> dict[str, Any]:
    """{"overlay": {"lease_s": "4"}} from "overlay.lease_s=4"."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        group, dot, field = name.partition(".")
        if not (equals and dot and group and field):
            raise UsageError(f"--set {assignment}: write GROUP.NAME=VALUE")
        if group not in groups:
            raise UsageError(f"--set {name}: there is no group {group!r} of settings")
        values.setdefault(group, {})[field] = value
    return values


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    configure(arguments.log_format, arguments.log_level, broker=settings.broker_id)
    values = [assignment.partition("=")[2] for assignment in arguments.set]
    if warning := exposed_password(values, "advice.password"):
        log.warning("%s", warning)
    if run_async(_serve(settings, as_json=arguments.json)):
        # As it ends, the interpreter would wait for the store's client, which waits for the store.
        end_now()
    return 0


async def _serve(settings: Any, *, as_json: bool) -> bool:
    """Whether a thread is left behind, which waits for a lake that hangs."""
    from broker_agent.runtime.agent import Agent
    from dynatops.kit.serving.pid_file import PidFile, PidFileError

    agent = Agent(settings)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    loop.add_signal_handler(signal.SIGUSR2, agent.save_recording)
    leaving, stopping = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, leaving.set)

    def stop() -> None:
        leaving.set()
        stopping.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    try:
        pid_file = PidFile(settings.pid_file) if settings.pid_file else None
    except PidFileError as error:
        raise CommandError(str(error)) from None
    try:
        await _serve_until(leaving, agent, as_json=as_json)
    finally:
        if pid_file is not None:
            pid_file.release()
    await stopping.wait()
    return bool(agent.lake_hangs)


async def _serve_until(leaving: asyncio.Event, agent: Any, *, as_json: bool) -> None:
    """Raises BackgroundError if the broker fails."""
    starting = asyncio.create_task(agent.start())
    left = asyncio.create_task(leaving.wait())
    running = asyncio.create_task(_run_until_stopped(agent))
    await asyncio.wait((starting, left, running), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if running.done():
            running.result()
        running.cancel()
        if agent.started_s:
            await agent.kill()
        return
    starting.result()
    if as_json:
        document: dict[str, Any] = {"broker_id": agent.broker_id, "address": agent.address}
        if agent.listeners.others:
            document["doors"] = agent.listeners.others
        if agent.http is not None:
            document["http"] = agent.http.address
        print(json.dumps(document), flush=True)
    else:
        print(f"{_place_of(agent)}; Ctrl-C to leave it", flush=True)
    security = agent.settings.security
    files = (security.tls_cert, security.tls_key, security.tokens)
    async with watched(files, security.watch_s, agent.reload, agent.supervisor):
        await asyncio.wait((left, running), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    await agent.stop()
    await running


def _place_of(agent: Any) -> str:
    here = f"broker {agent.broker_id} at {agent.address}"
    if agent.settings.topology:
        return f"{here} is in the tree of {agent.settings.topology}"
    joined = any(address != agent.address for address in agent.settings.join)
    return f"{here} {'joined' if joined else 'founded'} a ring"


async def _run_until_stopped(agent: Any) -> None:
    try:
        await agent.run_until_stopped()
    except BackgroundError:
        # A thread that waits for a disk would hold the process up.
        end_within(_FAILED_END_S)
        raise
