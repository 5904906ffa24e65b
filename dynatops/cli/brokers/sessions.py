"""`dynatops sessions`: who is subscribed, who is away, and what waits for them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import (
    Commands,
    add_address,
    add_command,
    ask_network,
    print_json,
    print_table,
)
from dynatops.cli.durations import brief_duration
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from dynatops.v1.client_pb2 import Filter
    from dynatops.v1.inspection_pb2 import BrokerReport, SessionDetails, SessionReport

_HEADINGS = (
    "client", "broker", "state", "filters", "followed", "queued", "delivered", "dropped",
)  # fmt: skip
_NAMES_SHOWN = 10


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "sessions",
        run_sessions,
        summary="list clients' sessions, or show one in detail",
        description="List the sessions of all brokers, or show all about one client's.",
    )
    parser.add_argument("client_id", nargs="?", help="show the session of this client")
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="list only clients whose ids begin so"
    )
    add_address(parser)


def run_sessions(arguments: argparse.Namespace) -> int:
    if arguments.client_id is None:
        return _list(arguments)
    if arguments.prefix:
        raise UsageError("--prefix is for lists, not for one client's session")
    return _describe(arguments)


# ---- the list ------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    found: list[tuple[BrokerReport, SessionReport]] = ask_network(
        arguments, "sessions", arguments.prefix
    )
    if arguments.json:
        print_json([_as_json(broker.broker_id, session) for broker, session in found])
    elif not found:
        print("no sessions" + (f" of clients {arguments.prefix}…" if arguments.prefix else ""))
    else:
        print_sessions((broker.broker_id, session) for broker, session in found)
    return 0


def print_sessions(sessions: Iterable[tuple[str, SessionReport]]) -> None:
    """Of pairs of a broker and a session."""
    print_table(_HEADINGS, [_row(broker_id, session) for broker_id, session in sessions])


def _row(broker_id: str, session: SessionReport) -> tuple[object, ...]:
    return (
        session.client_id,
        broker_id,
        _state(session),
        session.filters,
        session.followed_topics,
        session.queued_events,
        session.delivered_events,
        session.dropped_events,
    )


def _state(session: SessionReport) -> str:
    if session.connected:
        return "connected"
    return f"absent for {brief_duration(session.absent_s)}"


def _as_json(broker_id: str, session: SessionReport) -> dict[str, Any]:
    return {
        "client_id": session.client_id,
        "broker_id": broker_id,
        "session_id": session.session_id,
        "connected": session.connected,
        "absent_s": round(session.absent_s, 3),
        "keep_s": session.keep_s,
        "expires_in_s": round(session.expires_in_s, 3),
        "filters": session.filters,
        "followed_topics": session.followed_topics,
        "queued_events": session.queued_events,
        "queued_bytes": session.queued_bytes,
        "untaken_bytes": session.untaken_bytes,
        "delivered_events": session.delivered_events,
        "dropped_events": session.dropped_events,
        "token": session.token or None,
    }


# ---- one session ---------------------------------------------------------------------------------


def _describe(arguments: argparse.Namespace) -> int:
    found: list[tuple[BrokerReport, SessionDetails]] = ask_network(
        arguments, "session", arguments.client_id
    )
    if arguments.json:
        print_json([_details_as_json(broker.broker_id, details) for broker, details in found])
        return 0 if found else 1
    if not found:
        raise CommandError(f"no broker has a session of {arguments.client_id!r}")
    for broker, details in found:
        for line in describe_session(broker.broker_id, details):
            print(visible(line))
    return 0


def _details_as_json(broker_id: str, details: SessionDetails) -> dict[str, Any]:
    return {
        **_as_json(broker_id, details.session),
        "filters": [{"pattern": f.pattern, "where": f.where} for f in details.filters],
        "filters_in_all": details.session.filters,
        "catching_up": list(details.catching_up),
    }


def describe_session(broker_id: str, details: SessionDetails) -> list[str]:
    session = details.session
    rows = [
        ("session", f"{session.session_id} on {broker_id}"),
        ("state", _state_in_full(session)),
        ("token", session.token or "none asked for"),
        ("queued", f"{_counted(session.queued_events, 'event')}, {session.queued_bytes:,} bytes"),
        ("sent", f"{session.untaken_bytes:,} bytes not taken by the application yet"),
        (
            "delivered",
            f"{_counted(session.delivered_events, 'event')}, {session.dropped_events:,} dropped",
        ),
        ("follows", f"{_counted(session.followed_topics, 'topic')} by its wildcards"),
        ("catching up", _names(list(details.catching_up)) or "no topic"),
        ("filters", f"{session.filters:,}"),
    ]
    lines = [session.client_id, *(f"  {name:<12} {text}" for name, text in rows)]
    lines += [f"    {_written(wanted)}" for wanted in details.filters]
    if len(details.filters) < session.filters:
        lines.append(f"    … and {session.filters - len(details.filters):,} more")
    return lines


def _state_in_full(session: SessionReport) -> str:
    kept = f"kept for {brief_duration(session.keep_s)}" if session.keep_s else "not kept"
    if session.connected:
        return f"connected; {kept} without a connection"
    return f"{_state(session)}; ends in {brief_duration(session.expires_in_s)}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _names(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _written(wanted: Filter) -> str:
    return f"{wanted.pattern} where {wanted.where}" if wanted.where else wanted.pattern
