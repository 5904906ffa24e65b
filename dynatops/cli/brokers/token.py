"""`dynatops token create` and `check`: the tokens by which brokers and managers know who asks."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path
from typing import Any

from dynatops.cli.common import Commands, add_command, positive, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError

# So that it is known for what it is, and never looks like an option.
_PREFIX = "dyn_"
_BYTES = 32

_LIMITS = {
    "publish_events_per_s": (float, "events published a second"),
    "publish_bytes_per_s": (float, "bytes published a second"),
    "connections": (int, "connections at a time"),
    "sessions": (int, "sessions at a time, with those that are kept"),
    "subscriptions": (int, "subscriptions of a session"),
    "filters": (int, "subscriptions of all sessions"),
    "topics": (int, "topics that are published on"),
    "payload_bytes": (int, "bytes of one event"),
}


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "token",
        help="make and check the tokens by which brokers and managers know who asks",
        description="Make and check the tokens by which brokers and managers know who asks.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_create(kinds)
    check = add_command(
        kinds,
        "check",
        run_check,
        summary="check a tokens file, and list what it allows",
        description="Check a tokens file, and list what it allows. Exit code 1 if it is no good.",
    )
    check.add_argument("file", metavar="FILE")


def _add_create(kinds: Commands) -> None:
    parser = add_command(
        kinds,
        "create",
        run_create,
        summary="make a token, and its table for the tokens file",
        description="Make a token. It is printed once and kept nowhere: the tokens file has its "
        "hash. Brokers read the file when they start, and on SIGHUP.",
    )
    parser.add_argument("name", metavar="NAME", help="what the broker calls its holder")
    for option, meaning in (
        ("--publish", "topics that may be published on"),
        ("--subscribe", "topics that may be subscribed to"),
    ):
        parser.add_argument(
            option,
            metavar="PATTERN",
            action="append",
            default=[],
            help=f"{meaning}, with + and #; %%c stands for the client id; repeat for more",
        )
    parser.add_argument(
        "--client-id",
        metavar="PATTERN",
        action="append",
        default=[],
        dest="client_ids",
        help="client ids it is for, with * (default: any); repeat for more",
    )
    parser.add_argument(
        "--claim-client-ids",
        action="store_true",
        help="refuse the ids of --client-id to all tokens that do not claim them, on every broker",
    )
    parser.add_argument(
        "--inspect", action="store_true", help="allow looking into brokers: brokers, topics, …"
    )
    parser.add_argument(
        "--role",
        choices=("viewer", "operator", "admin"),
        help="at managers: look, reconfigure, or change the policy too",
    )
    for name, (kind, meaning) in _LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive(kind),
            metavar="N",
            help=f"limit of {meaning}, on each broker",
        )
    parser.add_argument(
        "--file", metavar="FILE", help="append the table to this file; standard output is the token"
    )


def run_create(arguments: argparse.Namespace) -> int:
    from dynatops.kit.security.tokens import hash_of
    from dynatops.kit.security.tokens_file import TokensError, parse_entries

    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    table = _table(arguments, hash_of(token))
    try:
        present = _present(arguments.file) if arguments.file else ""
        if present:
            parse_entries(present, arguments.file)
    except TokensError as error:
        raise CommandError(f"{error}; mend it first") from None
    separator = "" if not present or present.endswith("\n\n") else "\n"
    separator = "\n" + separator if present and not present.endswith("\n") else separator
    try:
        parse_entries(present + separator + table, arguments.file or "(new)")
    except TokensError as error:
        raise UsageError(error.problem) from None
    if arguments.file:
        try:
            with Path(arguments.file).open("a", encoding="utf-8") as file:
                file.write(separator + table)
        except OSError as error:
            problem = error.strerror
            raise CommandError(f"{arguments.file} cannot be written: {problem}") from None
    _show(arguments, token, table)
    return 0


def _present(path: str) -> str:
    from dynatops.kit.security.tokens_file import TokensError

    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        raise TokensError(path, "cannot be read as text") from None


def _table(arguments: argparse.Namespace, sha256: str) -> str:
    entries: dict[str, Any] = {"name": arguments.name, "sha256": sha256}
    if arguments.client_ids:
        entries["client_ids"] = arguments.client_ids
    if arguments.claim_client_ids:
        entries["claim_client_ids"] = True
    entries |= {"publish": arguments.publish, "subscribe": arguments.subscribe}
    if arguments.inspect:
        entries["inspect"] = True
    if arguments.role:
        entries["role"] = arguments.role
    lines = [f"{key} = {_toml(value)}" for key, value in entries.items()]
    limits = {name: getattr(arguments, name) for name in _LIMITS if getattr(arguments, name)}
    if limits:
        inside = ", ".join(f"{name} = {value}" for name, value in limits.items())
        lines.append(f"limits = {{ {inside} }}")
    return "\n".join(("[[token]]", *lines, ""))


def _toml(value: object) -> str:
    # What JSON and TOML write the same way: strings, arrays of them, truth.
    return json.dumps(value, ensure_ascii=False)


def _show(arguments: argparse.Namespace, token: str, table: str) -> None:
    if arguments.json:
        print_json({"name": arguments.name, "token": token, "table": table})
    elif arguments.file:
        print(token)
        print(
            f"dynatops: appended {arguments.name!r} to {arguments.file}; the token above is kept "
            "nowhere else. Brokers that run already read the file on SIGHUP.",
            file=sys.stderr,
        )
    else:
        print(f"The token, for the client; it is kept nowhere else:\n\n{token}\n")
        print(f"Its table, for the tokens file of the brokers:\n\n{table}", end="")


def run_check(arguments: argparse.Namespace) -> int:
    from dynatops.kit.security.tokens_file import TokensError, read_entries

    try:
        tokens = read_entries(arguments.file)
    except TokensError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print_json(
            [
                {
                    "name": rules.name,
                    "client_ids": rules.client_ids,
                    "claim_client_ids": rules.claim_client_ids,
                    "publish": rules.publish,
                    "subscribe": rules.subscribe,
                    "inspect": rules.inspect,
                    "role": rules.role,
                    "limits": {name: getattr(rules.limits, name) for name in _LIMITS},
                }
                for rules in tokens
            ]
        )
        return 0
    if not tokens:
        print("no tokens: with this file nobody gets in")
        return 0
    print_table(
        ("token", "client ids", "publish", "subscribe", "inspect", "role"),
        [
            (
                rules.name,
                " ".join(rules.client_ids) + (" (claimed)" if rules.claim_client_ids else ""),
                " ".join(rules.publish) or "-",
                " ".join(rules.subscribe) or "-",
                "yes" if rules.inspect else "no",
                rules.role or "-",
            )
            for rules in tokens
        ],
    )
    return 0
