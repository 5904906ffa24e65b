"""`dynatops up`: a cluster on this machine to play with."""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import TYPE_CHECKING

from dynatops.cli.common import (
    ADDRESS_VARIABLE,
    Commands,
    add_command,
    positive,
    print_json,
    run_async,
)
from dynatops.cli.errors import UsageError
from dynatops.cli.managers.manager_client import DEFAULT_URL, MANAGER_VARIABLE
from dynatops.cli.placements.planning import require_manager
from dynatops.kit.background import until_one_ends

if TYPE_CHECKING:
    from dynatops.local.cluster import LocalCluster, ProcessCluster

BROKERS_MAX = 500
MANAGERS_MAX = 10
MANAGER_PORT = 7480
LAKE_FILE_AGE_S = 10.0


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "up",
        run,
        summary="run a cluster on this machine, until Ctrl-C",
        description="Run a cluster of brokers on this machine until Ctrl-C. Its first broker "
        "listens where all other commands look by default.",
    )
    parser.add_argument(
        "--brokers", type=positive(int), default=8, metavar="N", help="how many (default: 8)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=7400,
        help="port of the first broker, the others' follow (default: 7400; 0 takes any)",
    )
    parser.add_argument(
        "--data-dir",
        default="",
        metavar="DIR",
        help="keep sessions there, a folder for each broker (default: in memory only)",
    )
    parser.add_argument(
        "--lake",
        default="",
        metavar="URL",
        help="write what happens to this lake, for analytics (default: nowhere)",
    )
    parser.add_argument(
        "--managers",
        type=int,
        default=0,
        metavar="N",
        help="reconfiguration managers beside them, the first at http://127.0.0.1:7480, or where "
        "there is room if something else listens there (default: none)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--in-process", action="store_true", help="all in this process (the default)"
    )
    where.add_argument(
        "--processes", action="store_true", help="each broker in a process of its own"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.brokers > BROKERS_MAX:
        raise UsageError(f"--brokers {arguments.brokers}: at most {BROKERS_MAX} on one machine")
    last_port = arguments.port + arguments.brokers - 1
    if arguments.port < 0 or last_port > 65_535:
        raise UsageError(f"--port {arguments.port}: ports end at 65535")
    if not 0 <= arguments.managers <= MANAGERS_MAX:
        raise UsageError(f"--managers {arguments.managers}: from 0 to {MANAGERS_MAX}")
    if arguments.managers:
        require_manager()
    run_async(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    from dynatops.lake.lake_settings import LakeSettings
    from dynatops.local.cluster import LocalCluster, ProcessCluster

    kind: type[LocalCluster | ProcessCluster] = LocalCluster
    if arguments.processes:
        kind = ProcessCluster
    cluster = kind(
        arguments.brokers,
        port=arguments.port,
        data_dir=arguments.data_dir,
        # The user looks soon.
        lake=LakeSettings(url=arguments.lake, file_age_max_s=LAKE_FILE_AGE_S),
        managers=arguments.managers,
        # Where any port will do for brokers, it will for managers.
        http_port=MANAGER_PORT if arguments.port else 0,
    )
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    async with cluster:
        _announce(cluster, arguments.lake, as_json=arguments.json)
        await until_one_ends(stopping.wait(), cluster.failure())
        if not stopping.is_set():
            raise await cluster.failure()
        if not arguments.json:
            print("\nstopping", flush=True)


def _announce(cluster: LocalCluster | ProcessCluster, lake: str, *, as_json: bool) -> None:
    addresses = cluster.addresses
    if as_json:
        document = {"addresses": addresses, "ready_s": round(cluster.ready_s, 3)}
        managers = cluster.managers
        print_json({**document, "managers": managers.urls, "redis": managers.store_url})
        return
    # Those that join are listed as they got ready.
    first, last = addresses[0], max(addresses, key=lambda address: int(address.rpartition(":")[2]))
    where = first if len(addresses) == 1 else f"{first} to {last}"
    print(f"{len(addresses)} brokers, ready after {cluster.ready_s:.1f} s: {where}")
    if first != "127.0.0.1:7400":
        print(f"For other commands: export {ADDRESS_VARIABLE}={first}")
    if cluster.managers.urls:
        print(f"{len(cluster.managers.urls)} managers: {', '.join(cluster.managers.urls)}")
        if cluster.managers.urls[0] != DEFAULT_URL:
            # Something else is there, another network perhaps.
            print(f"For their commands: export {MANAGER_VARIABLE}={cluster.managers.urls[0]}")
    if lake:
        redis = f" --redis {cluster.managers.store_url}" if cluster.managers.urls else ""
        print(f"For advice: dynatops analytics run all --lake {lake} --output DIR{redis}")
    print("Ctrl-C stops them.", flush=True)
