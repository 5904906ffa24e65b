"""`dynatops up`: a cluster on this machine to play with."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dynatops.cli.common import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    Commands,
    add_command,
    positive,
    print_json,
    run_async,
)
from dynatops.cli.errors import UsageError
from dynatops.cli.managers.manager_client import DEFAULT_URL, MANAGER_VARIABLE
from dynatops.cli.placements.planning import require_manager
from dynatops.cli.terminal import visible
from dynatops.kit.background import until_one_ends

if TYPE_CHECKING:
    from dynatops.local.cluster import LocalCluster, ProcessCluster
    from dynatops.local.tree_cluster import LocalTree, PlacedTree, ProcessTree

    Cluster = LocalCluster | ProcessCluster | LocalTree | ProcessTree

_BROKERS = 8
_PORT = 7400
_PORT_MAX = 65_535
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
        "--brokers", type=positive(int), metavar="N", help=f"how many (default: {_BROKERS})"
    )
    parser.add_argument(
        "--topology",
        default="",
        metavar="FILE",
        help="all brokers of this file, in a tree, in place of a ring; they listen where it says, "
        "or, with --port, on ports of this machine",
    )
    parser.add_argument(
        "--port",
        type=int,
        help="port of the first broker, the others' follow (default: "
        f"{_PORT}, or as the topology says; 0 takes any)",
    )
    parser.add_argument(
        "--data-dir",
        default="",
        metavar="DIR",
        help="keep sessions there, a folder for each broker (default: in memory only)",
    )
    parser.add_argument(
        "--store",
        metavar="FILTER[,…]",
        action="append",
        default=[],
        help="have the first two brokers keep the events of these topics on disk, below "
        "--data-dir; repeat for more (default: none)",
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
    if arguments.topology:
        return _run_tree(arguments)
    arguments.brokers = _BROKERS if arguments.brokers is None else arguments.brokers
    arguments.port = _PORT if arguments.port is None else arguments.port
    _check_size(arguments.brokers, arguments.port)
    if not 0 <= arguments.managers <= MANAGERS_MAX:
        raise UsageError(f"--managers {arguments.managers}: from 0 to {MANAGERS_MAX}")
    if arguments.managers:
        require_manager()
    run_async(_run(arguments))
    return 0


def _check_size(brokers: int, port: int | None) -> None:
    if brokers > BROKERS_MAX:
        raise UsageError(f"{brokers} brokers: at most {BROKERS_MAX} on one machine")
    if port is not None and (port < 0 or port + brokers - 1 > _PORT_MAX):
        raise UsageError(f"--port {port}: ports end at {_PORT_MAX}")


def _run_tree(arguments: argparse.Namespace) -> int:
    from dynatops.local.tree_cluster import placed_tree
    from overlay.forwarding.tree.topology import TopologyError

    for option in ("brokers", "managers"):
        if getattr(arguments, option):
            why = "says how many there are" if option == "brokers" else "leaves nothing to plan"
            raise UsageError(f"--{option}: leave it out, as a topology {why}")
    port = arguments.port
    try:
        with placed_tree(arguments.topology, port) as tree:
            _check_size(len(tree.names), port)
            run_async(_run_placed(arguments, tree))
    except TopologyError as error:
        raise UsageError(f"--topology {arguments.topology}: {error}") from None
    return 0


async def _run_placed(arguments: argparse.Namespace, tree: PlacedTree) -> None:
    from dynatops.lake.lake_settings import LakeSettings
    from dynatops.local.tree_cluster import LocalTree, ProcessTree

    kind: type[LocalTree | ProcessTree] = ProcessTree if arguments.processes else LocalTree
    lake = LakeSettings(url=arguments.lake, file_age_max_s=LAKE_FILE_AGE_S)
    cluster = kind(tree, data_dir=arguments.data_dir, lake=lake, keep=_kept(arguments))
    announce = partial(_announce_tree, cluster, tree, as_json=arguments.json)
    await _serve(cluster, announce, as_json=arguments.json)


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
        keep=_kept(arguments),
    )
    announce = partial(_announce, cluster, arguments.lake, as_json=arguments.json)
    await _serve(cluster, announce, as_json=arguments.json)


def _kept(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Topics that stores are to keep."""
    from dynatops.kit.filters import Filter, FilterError

    keep = tuple(part for entry in arguments.store for part in entry.split(","))
    if keep and not arguments.data_dir:
        raise UsageError("--store: stores need a folder, name one with --data-dir")
    for pattern in keep:
        try:
            Filter.parse(pattern)
        except FilterError as error:
            raise UsageError(f"--store {pattern}: {error}") from None
    return keep


async def _serve(cluster: Cluster, announce: Callable[[], None], *, as_json: bool) -> None:
    """Until it is told to stop, or a broker fails."""
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    async with cluster:
        announce()
        await until_one_ends(stopping.wait(), cluster.failure())
        if not stopping.is_set():
            raise await cluster.failure()
        if not as_json:
            print("\nstopping", flush=True)


def _announce_tree(cluster: LocalTree | ProcessTree, tree: PlacedTree, *, as_json: bool) -> None:
    addresses = cluster.addresses
    if as_json:
        print_json(
            {"addresses": addresses, "ready_s": round(cluster.ready_s, 3), "topology": tree.path}
        )
        return
    from dynatops.cli.brokers.topology_text import drawn, headline

    print(f"{headline(tree.topology)}, ready after {cluster.ready_s:.1f} s")
    for line in drawn(tree.topology):
        print(visible(line))
    root = tree.topology.addresses[tree.topology.root]
    if root != DEFAULT_ADDRESS:
        print(f"For other commands: export {ADDRESS_VARIABLE}={root}")
    print("Ctrl-C stops them.", flush=True)


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
