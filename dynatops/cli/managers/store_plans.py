"""`dynatops stores list`, `plan`, `assign`: stores as the manager knows them, and plans of them."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Mapping
from typing import Any

from dynatops.cli.common import Commands, add_command, positive, print_json, print_table
from dynatops.cli.managers.manager_client import ManagerClient, add_manager
from dynatops.cli.managers.reconfigure import FINE, add_reason, add_waiting, follow, show_plan
from reconfig_manager.storing import STORE_ALGORITHMS

_PATH = "/v1/stores"
_STORES_MAX = 10_000
_TOPICS_SHOWN = 4


def add_store_plans(kinds: Commands) -> None:
    listed = add_command(
        kinds,
        "list",
        run_list,
        summary="list brokers that are stores, and what each keeps",
        description="List brokers that are stores, or that a manager may have be one: what each "
        "keeps, and how much of that it serves already.",
    )
    add_manager(listed)
    plan = add_command(
        kinds,
        "plan",
        run_plan,
        summary="look for who had better keep which topics: a dry run",
        description="Look for who had better keep which topics, by who asks for their past, and "
        "show what that would save, and what it takes to get there. Nobody is told anything.",
        epilog="`dynatops approve ID` carries it out. Exit code 0 also if staying is better.",
    )
    _add_options(plan)
    assign = add_command(
        kinds,
        "assign",
        run_assign,
        summary="have topics kept where they are asked for, if that is worth it",
        description="Look for who had better keep which topics, and carry it out if it is worth "
        "it: new stores catch up before former ones go. `dynatops cancel ID` undoes it until then.",
        epilog="Exit code 0 also if staying is better; 1 if it was rolled back.",
    )
    _add_options(assign)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_reason(parser)
    parser.add_argument("--planner", choices=STORE_ALGORITHMS)
    parser.add_argument(
        "--stores", type=positive(int), metavar="M", help="brokers that are stores (default: all)"
    )
    parser.add_argument(
        "--replicas", type=positive(int), metavar="K", help="stores that a topic is on (default: 2)"
    )
    parser.add_argument(
        "--replicas-max",
        type=positive(int),
        metavar="K",
        help="stores that the most popular topics are on (default: as the others)",
    )
    parser.add_argument(
        "--period",
        type=positive(float),
        metavar="S",
        help="seconds that it is expected to last (default: a day)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the planner's own dice")
    add_waiting(parser)
    add_manager(parser)


# ---- commands ------------------------------------------------------------------------------------


def run_list(arguments: argparse.Namespace) -> int:
    client = ManagerClient.of(arguments)
    stores = list(client.pages(_PATH, _STORES_MAX))
    if arguments.json:
        print_json(stores)
    elif not stores:
        print("no broker is a store, or may be one: see store.keep and store.capacity")
    else:
        headings = ("broker", "keeps", "of", "ready", "assignment", "topics")
        print_table(headings, [_row(store) for store in stores])
    return 0


def _row(store: Mapping[str, Any]) -> tuple[object, ...]:
    keeps = store["keeps"]
    names = [unit["topics"] for unit in keeps]
    shown = ", ".join(names[:_TOPICS_SHOWN])
    if len(names) > _TOPICS_SHOWN:
        shown = f"{shown}, and {len(names) - _TOPICS_SHOWN:,} more"
    if store["failure"]:
        shown = f"its disk has failed: {store['failure']}"
    return (
        store["broker_id"],
        len(keeps),
        store["capacity"] or "-",
        sum(unit["ready"] for unit in keeps),
        store["epoch"] or "-",
        shown or "-",
    )


def run_plan(arguments: argparse.Namespace) -> int:
    plan = _propose(arguments, execute=False)
    show_plan(arguments, plan)
    return 0


def run_assign(arguments: argparse.Namespace) -> int:
    plan = _propose(arguments, execute=True)
    show_plan(arguments, plan)
    return 0 if arguments.no_wait or plan["state"] in FINE else 1


def _propose(arguments: argparse.Namespace, *, execute: bool) -> Mapping[str, Any]:
    client = ManagerClient.of(arguments)
    chosen = {
        "planner": arguments.planner,
        "stores": arguments.stores,
        "replicas": arguments.replicas,
        "replicas_max": arguments.replicas_max,
        "period_s": arguments.period,
        "seed": arguments.seed,
    }
    body = {name: value for name, value in chosen.items() if value is not None}
    said = {"reason": arguments.reason, "execute": execute, **body}
    plan: Mapping[str, Any] = client.post(f"{_PATH}/plans", said, key=uuid.uuid4().hex)
    return plan if arguments.no_wait else follow(client, plan, to_its_end=execute)
