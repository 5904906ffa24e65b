"""`dynatops watch`: the network's reconfigurations while they happen.

A thread reads events; the screen is drawn again after each, and every other second. Where there is
no screen, each event is a line.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dynatops.cli.common import Commands, add_command, positive
from dynatops.cli.errors import CommandError
from dynatops.cli.managers.manager_client import ManagerClient, add_manager
from dynatops.cli.managers.network import describe_cluster
from dynatops.cli.managers.plan_text import headline, table, when
from dynatops.cli.terminal import CLEAR_SCREEN, visible, write_control
from dynatops.kit.strict_json import write_json

_POLL_S = 2.0
_DRAW_MIN_S = 0.2
_AGAIN_S = 1.0
_PLANS_SHOWN = 10
_EVENTS_SHOWN = 8
_TEXT_SHOWN = 100
_EVENTS_WAITING_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of the manager, or (kind `problem`) why there are none."""

    at_s: float
    kind: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        clock = datetime.fromtimestamp(self.at_s).astimezone().strftime("%H:%M:%S")
        return f"{clock}  {describe_event(self.kind, self.data)}"


def describe_event(kind: str, data: Mapping[str, Any]) -> str:
    try:
        return _DESCRIPTIONS[kind](data)
    except (KeyError, TypeError):
        # Of a newer manager.
        rest = ", ".join(f"{name} {_brief(value)}" for name, value in data.items())
        return f"{kind}: {rest}"


def _plan(data: Mapping[str, Any]) -> str:
    state = str(data["state"])
    if state == "EXECUTING" and data["phase"]:
        state += f", {data['phase'].lower().replace('_', ' ')}"
    if "measured_benefit" in data:
        flags = "".join(f", {flag.replace('_', ' ')}" for flag in data["flags"])
        measured, predicted = f"{data['measured_benefit']:,.0f}", f"{data['benefit']:,.0f}"
        return f"plan {data['plan']}: saves {measured} messages, {predicted} predicted{flags}"
    return f"plan {data['plan']}: {state}: {_brief(data['note'])}"


def _policy(data: Mapping[str, Any]) -> str:
    return f"policy: {data['policy']['mode']}, version {data['version']}"


_DESCRIPTIONS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "plan": _plan,
    "policy": _policy,
    "broker": lambda data: f"broker {data['broker']}: {data['state']}",
    "leader": lambda data: f"{data['manager']} leads (fence {data['fence']})",
    "deposed": lambda data: f"{data['manager']} leads no more",
    "check": lambda data: f"looked for better: {data['explanation']}",
    "problem": lambda data: f"! {data['message']}",
    "overflow": lambda data: f"! {data['message']}",
    "reset": lambda data: f"! {data['message']}",
    "ended": lambda data: f"! {data['message']}",
}


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else write_json(value)
    return text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 1]}…"


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "watch",
        run_watch,
        summary="watch the manager at work",
        description="Watch the manager at work: plans, phases, brokers that come and go. On a "
        "terminal the view is drawn again and again; elsewhere, and with --json, each event is a "
        "line.",
    )
    parser.add_argument(
        "--for",
        type=positive(float),
        dest="seconds",
        metavar="SECONDS",
        help="end after so long (default: with Ctrl-C)",
    )
    add_manager(parser)


def run_watch(arguments: argparse.Namespace) -> int:
    client = ManagerClient.of(arguments)
    # Whether there is a manager at all is told at once.
    cluster = client.get("/v1/cluster")
    happenings: queue.Queue[Happening] = queue.Queue(_EVENTS_WAITING_MAX)
    over = threading.Event()
    threading.Thread(target=_listen, args=(client, happenings, over), daemon=True).start()
    ends_s = time.monotonic() + arguments.seconds if arguments.seconds else None
    try:
        if arguments.json or not sys.stdout.isatty():
            if not arguments.json:
                print("\n".join(describe_cluster(cluster)), flush=True)
            _print_lines(happenings, ends_s, as_json=arguments.json)
        else:
            _draw(client, happenings, ends_s)
    finally:
        over.set()
    return 0


def _listen(
    client: ManagerClient, happenings: queue.Queue[Happening], over: threading.Event
) -> None:
    """Runs in a thread of its own, until the next word of a manager after it is over."""
    last_id = ""
    while not over.is_set():
        try:
            for number, kind, data in client.events(last_id):
                last_id = number or last_id
                if over.is_set():
                    return
                if kind:
                    _offer(happenings, Happening(time.time(), kind, json.loads(data)))
        except (CommandError, OSError, ValueError) as error:
            _offer(happenings, Happening(time.time(), "problem", {"message": str(error)}))
        over.wait(_AGAIN_S)


def _offer(happenings: queue.Queue[Happening], happening: Happening) -> None:
    """A terminal that prints slower than things happen sees the newest last."""
    try:
        happenings.put_nowait(happening)
    except queue.Full:
        return


def _print_lines(
    happenings: queue.Queue[Happening], ends_s: float | None, *, as_json: bool
) -> None:
    for happening in _until(happenings, ends_s):
        if happening is None:
            continue
        if as_json:
            line = write_json({"at_s": round(happening.at_s, 3), **happening.data})
        else:
            line = visible(happening.text)
        print(line, flush=True)


def _until(happenings: queue.Queue[Happening], ends_s: float | None) -> Iterator[Happening | None]:
    """None now and then while nothing happens."""
    while ends_s is None or time.monotonic() < ends_s:
        left_s = _POLL_S if ends_s is None else min(_POLL_S, ends_s - time.monotonic())
        try:
            yield happenings.get(timeout=max(left_s, 0.0))
        except queue.Empty:
            yield None


# ---- on a terminal -------------------------------------------------------------------------------


def _draw(client: ManagerClient, happenings: queue.Queue[Happening], ends_s: float | None) -> None:
    recent: list[Happening] = []
    drawn_s = 0.0
    write_control(CLEAR_SCREEN)
    _draw_once(client, recent)
    for happening in _until(happenings, ends_s):
        if happening is not None:
            recent = [*recent, happening][-_EVENTS_SHOWN:]
        # A burst of events is one picture.
        if happening is None or happenings.empty() or time.monotonic() - drawn_s > _POLL_S:
            time.sleep(_DRAW_MIN_S)
            _draw_once(client, recent)
            drawn_s = time.monotonic()


def _draw_once(client: ManagerClient, recent: list[Happening]) -> None:
    width = shutil.get_terminal_size().columns
    lines = [line[:width] for line in picture(client, recent)]
    write_control(CLEAR_SCREEN)
    print("\n".join(map(visible, lines)), flush=True)


def picture(client: ManagerClient, recent: list[Happening]) -> Iterator[str]:
    try:
        yield from describe_cluster(client.get("/v1/cluster"))
        yield ""
        plans = list(client.pages("/v1/reconfigurations", _PLANS_SHOWN))
    except CommandError as error:
        yield f"! {error}"
        plans = []
    if plans:
        rows = [
            (
                plan["id"],
                when(plan["created_s"]),
                headline({**plan, "prediction": plan["benefit"]}),
                f"{plan['moves']:,}",
                "-" if plan["benefit"] is None else f"{plan['benefit']:,.0f}",
                "-" if plan["moving_cost"] is None else f"{plan['moving_cost']:,.0f}",
            )
            for plan in plans
        ]
        yield from table(("plan", "created", "state", "moves", "benefit", "price"), rows)
    yield ""
    yield from (happening.text for happening in recent)
