"""`dynatops plan`, `approve`, `cancel` and `plans`: reconfigurations, from a proposal to what
they gained."""

from __future__ import annotations

import argparse
import math
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from dynatops.cli.common import Commands, add_command, finite, positive, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.managers.manager_client import (
    ManagerClient,
    ManagerProblem,
    UnreachableError,
    add_manager,
)
from dynatops.cli.managers.plan_text import (
    describe_plan,
    headline,
    is_computing,
    measurement_of,
    when,
)
from dynatops.cli.terminal import OVER_THE_LINE, write_control
from dynatops.kit.strict_json import write_json
from reconfig_manager.solvers import ALGORITHMS

_PATH = "/v1/reconfigurations"
_OVER = frozenset({"COMMITTED", "ROLLED_BACK", "REJECTED", "CANCELLED", "EXPIRED"})
# REJECTED is an answer: staying is better.
FINE = frozenset({"COMMITTED", "REJECTED"})
_POLL_S = 0.2
_WAIT_S = 600.0
# A plan goes on while another manager takes over; so does following it.
_UNREACHABLE_MAX_S = 30.0
_REASON_WIDTH = 40


def add_commands(commands: Commands) -> None:
    _add_plan(commands)
    for name, run, summary, description in (
        (
            "approve",
            run_approve,
            "execute a proposed plan",
            "Execute a plan that was proposed, and follow it to its end.",
        ),
        (
            "cancel",
            run_cancel,
            "drop a plan, or roll it back",
            "Drop a plan. One that is being executed is rolled back, until its commit point.",
        ),
    ):
        parser = add_command(
            commands,
            name,
            run,
            summary=summary,
            description=description,
            epilog="Exit code 1 if the plan ends otherwise than wanted.",
        )
        parser.add_argument("plan_id", metavar="ID")
        add_reason(parser)
        add_waiting(parser)
        add_manager(parser)
    plans = add_command(
        commands,
        "plans",
        run_plans,
        summary="list plans, or show one in full; list who commanded what",
        description="List plans, the newest first; or show one in full, with what was measured "
        "beside what was predicted; or list commands and how they ended.",
    )
    plans.add_argument("plan_id", metavar="ID", nargs="?", help="show this plan")
    plans.add_argument("--audit", action="store_true", help="list commands instead of plans")
    plans.add_argument(
        "--limit",
        type=positive(int),
        default=20,
        metavar="N",
        help="entries at most (default: 20)",
    )
    add_manager(plans)


def _add_plan(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plan",
        run_plan,
        summary="look for a better placement of a running network's brokers",
        description="Look for a better placement of brokers, and show what it would change, save "
        "and cost. Nothing moves, unless --execute is given and it is worth it.",
        epilog="Exit code 0 also if staying is better; 1 if an execution was rolled back. What is "
        "not said is as the policy has it.",
    )
    add_reason(parser)
    parser.add_argument(
        "--execute", action="store_true", help="execute it if it is worth it, and follow it"
    )
    parser.add_argument("--algorithm", choices=ALGORITHMS)
    parser.add_argument(
        "--budget", type=positive(float), metavar="S", help="seconds that the solver may take"
    )
    parser.add_argument(
        "--max-moves", type=positive(int), metavar="N", help="brokers that may move at most"
    )
    parser.add_argument(
        "--delay-weight", type=finite, metavar="W", help="what a unit of delay counts (w_d)"
    )
    parser.add_argument("--objective", choices=("net", "cost"), help="what to make small")
    parser.add_argument("--seed", type=int, metavar="N", help="of the solver's own dice")
    add_waiting(parser)
    add_manager(parser)


def add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="what for; it is kept in the audit log"
    )


def add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="return at once; `dynatops plans ID` shows more"
    )


# ---- commands ------------------------------------------------------------------------------------


def run_plan(arguments: argparse.Namespace) -> int:
    client = ManagerClient.of(arguments)
    plan = client.post(_PATH, _proposal(arguments), key=uuid.uuid4().hex)
    if not arguments.no_wait:
        plan = follow(client, plan, to_its_end=arguments.execute)
    show_plan(arguments, plan)
    if arguments.no_wait or not arguments.execute:
        return 0
    return 0 if plan["state"] in FINE else 1


def _proposal(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        "algorithm": arguments.algorithm,
        "budget_s": arguments.budget,
        "max_moves": arguments.max_moves,
        "objective": arguments.objective,
        "seed": arguments.seed,
    }
    body = {name: value for name, value in chosen.items() if value is not None}
    if arguments.delay_weight is not None:
        if not (math.isfinite(arguments.delay_weight) and arguments.delay_weight >= 0):
            raise UsageError(f"--delay-weight {arguments.delay_weight}: a number from 0 up")
        body["weights"] = {"delay": arguments.delay_weight}
    return {"reason": arguments.reason, "execute": arguments.execute, **body}


def run_approve(arguments: argparse.Namespace) -> int:
    return _command(arguments, "approve", wanted="COMMITTED")


def run_cancel(arguments: argparse.Namespace) -> int:
    return _command(arguments, "cancel", wanted="CANCELLED")


def _command(arguments: argparse.Namespace, action: str, wanted: str) -> int:
    client = ManagerClient.of(arguments)
    path = f"{_PATH}/{_quoted(arguments.plan_id)}/{action}"
    plan = client.post(path, {"reason": arguments.reason})
    if not arguments.no_wait:
        plan = follow(client, plan, to_its_end=True)
    show_plan(arguments, plan)
    fine = {wanted, "ROLLED_BACK"} if action == "cancel" else {wanted}
    return 0 if arguments.no_wait or plan["state"] in fine else 1


def _quoted(plan_id: str) -> str:
    from urllib.parse import quote

    return quote(plan_id, safe="")


def show_plan(arguments: argparse.Namespace, plan: Mapping[str, Any]) -> None:
    if arguments.json:
        print_json(plan)
        return
    print("\n".join(describe_plan(plan)))
    if plan["state"] == "PROPOSED" and not is_computing(plan):
        print(f"\nto execute it: dynatops approve {plan['id']} --reason TEXT")
    elif plan["state"] == "COMMITTED" and measurement_of(plan) is None:
        print(f"\nwhat it gains is being measured: dynatops plans {plan['id']}")


# ---- following a plan ----------------------------------------------------------------------------


def follow(
    client: ManagerClient, plan: Mapping[str, Any], *, to_its_end: bool, wait_s: float = _WAIT_S
) -> Mapping[str, Any]:
    """Until it is over, or (not `to_its_end`) computed. Raises CommandError."""
    progress = PlanProgress()
    path = f"{_PATH}/{_quoted(str(plan['id']))}"
    ends_s = time.monotonic() + wait_s
    heard_s = time.monotonic()
    try:
        while not _settled(plan, to_its_end=to_its_end):
            if time.monotonic() > ends_s:
                raise CommandError(
                    f"plan {plan['id']} is still {headline(plan)} after {wait_s:g} s; "
                    f"dynatops plans {plan['id']} shows what becomes of it"
                )
            progress.show(headline(plan))
            time.sleep(_POLL_S)
            try:
                plan = client.get(path)
                heard_s = time.monotonic()
            except (ManagerProblem, UnreachableError) as error:
                lasting = isinstance(error, ManagerProblem) and error.status != 503
                if lasting or time.monotonic() - heard_s > _UNREACHABLE_MAX_S:
                    raise
                progress.show("no manager answers; waiting for another to take over")
    finally:
        progress.clear()
    return plan


def _settled(plan: Mapping[str, Any], *, to_its_end: bool) -> bool:
    if plan["state"] in _OVER:
        return True
    computed = plan["state"] == "PROPOSED" and not is_computing(plan)
    return not to_its_end and computed


class PlanProgress:
    """One line that is written over; where that cannot be, a line for each change."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._shown = ""

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            line = f"{text} ({time.monotonic() - self._started_s:.0f} s)"
            write_control(OVER_THE_LINE, sys.stderr)
            print(line, end="", file=sys.stderr, flush=True)
        elif text != self._shown:
            print(text, file=sys.stderr, flush=True)
        self._shown = text

    def clear(self) -> None:
        if self._shown and sys.stderr.isatty():
            write_control(OVER_THE_LINE, sys.stderr)
            sys.stderr.flush()


# ---- plans ---------------------------------------------------------------------------------------


def run_plans(arguments: argparse.Namespace) -> int:
    client = ManagerClient.of(arguments)
    if arguments.audit:
        if arguments.plan_id is not None:
            raise UsageError("--audit lists all commands; leave out the plan")
        return _audit(arguments, client)
    if arguments.plan_id is not None:
        plan = client.get(f"{_PATH}/{_quoted(arguments.plan_id)}")
        show_plan(arguments, plan)
        return 0
    plans = list(client.pages(_PATH, arguments.limit))
    if arguments.json:
        print_json(plans)
    elif not plans:
        print("no plans yet: dynatops plan --reason TEXT")
    else:
        print_plans(plans)
    return 0


def print_plans(plans: list[Mapping[str, Any]]) -> None:
    headings = (
        "plan",
        "of",
        "created",
        "state",
        "moves",
        "benefit",
        "price",
        "measured",
        "by",
        "for",
    )
    print_table(headings, [_row(plan) for plan in plans])


def _row(plan: Mapping[str, Any]) -> tuple[object, ...]:
    state = str(plan["state"]) + (" !" if plan["flags"] else "")
    reason = str(plan["reason"]).replace("\n", " ")
    return (
        plan["id"],
        "stores" if plan["kind"] == "stores" else "brokers",
        when(plan["created_s"]),
        state,
        plan["moves"],
        _amount(plan["benefit"]),
        _amount(plan["moving_cost"]),
        _amount(plan["measured_benefit"]),
        plan["actor"] or "-",
        reason if len(reason) <= _REASON_WIDTH else reason[: _REASON_WIDTH - 1] + "…",
    )


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _audit(arguments: argparse.Namespace, client: ManagerClient) -> int:
    entries = list(client.pages("/v1/audit", arguments.limit))
    if arguments.json:
        print(write_json(entries))
        return 0
    rows = [
        (
            when(entry["at_s"]),
            entry["actor"] or "-",
            entry.get("role") or "-",
            entry["action"],
            entry["subject"] or "-",
            entry["outcome"],
            entry["reason"].replace("\n", " "),
        )
        for entry in entries
    ]
    print_table(("when", "who", "role", "did", "to", "outcome", "for"), rows)
    return 0
