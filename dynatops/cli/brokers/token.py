"""`dynatops token create` and `check`: the tokens by which brokers and managers know who asks."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from dynatops.cli.common import Commands, add_command, positive, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError
from dynatops.kit.security.token_rights import (
    DEFAULTS,
    LIMITS,
    RIGHTS,
    Right,
    RightKind,
    TokenRules,
)
from dynatops.kit.security.tokens import Role, hash_of

# So that it is known for what it is, and never looks like an option.
_PREFIX = "dyn_"
_BYTES = 32

_NUMBERS: Final = {RightKind.RATE: float, RightKind.COUNT: int, RightKind.COUNT_OR_ZERO: int}


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
    # What it is for comes first.
    for name in sorted(RIGHTS, key=lambda name: RIGHTS[name].kind is not RightKind.TOPICS):
        _add_right(parser, name, RIGHTS[name])
    for name, limit in LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive(_NUMBERS[limit.kind]),
            metavar="N",
            help=f"limit of {limit.help}, on each broker",
        )
    parser.add_argument(
        "--file", metavar="FILE", help="append the table to this file; standard output is the token"
    )


def _add_right(parser: argparse.ArgumentParser, name: str, right: Right) -> None:
    words = name.replace("_", "-")
    option = f"--{words}"
    match right.kind:
        case RightKind.TOPICS:
            parser.add_argument(
                option,
                metavar="PATTERN",
                action="append",
                default=[],
                help=f"{right.help}, with + and #; %%c stands for the client id; repeat for more",
            )
        case RightKind.CLIENT_IDS:
            parser.add_argument(
                option.removesuffix("s"),
                metavar="PATTERN",
                action="append",
                default=[],
                dest=name,
                help=f"{right.help}, with * (default: any); repeat for more",
            )
        case RightKind.YES_OR_NO:
            # What it does not have anyway.
            usual = bool(DEFAULTS[name])
            option = "--" + (f"no-{words}" if usual else words)
            action = "store_false" if usual else "store_true"
            parser.add_argument(option, dest=name, action=action, help=right.help)
        case RightKind.ROLE:
            parser.add_argument(option, choices=[role.value for role in Role], help=right.help)
        case _:
            raise ValueError(f"{name}: {right.kind} is of limits")


def run_create(arguments: argparse.Namespace) -> int:
    from dynatops.kit.security.tokens_file import TokensError, parse_tokens

    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    table = _table(arguments, hash_of(token))
    try:
        present = _present(arguments.file) if arguments.file else ""
        if present:
            parse_tokens(present, arguments.file)
    except TokensError as error:
        raise CommandError(f"{error}; mend it first") from None
    separator = "" if not present or present.endswith("\n\n") else "\n"
    separator = "\n" + separator if present and not present.endswith("\n") else separator
    try:
        parse_tokens(present + separator + table, arguments.file or "(new)")
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
    for name, right in RIGHTS.items():
        value = getattr(arguments, name)
        if right.kind is RightKind.TOPICS or value not in ([], None, DEFAULTS[name]):
            entries[name] = value
    lines = [f"{key} = {_toml(value)}" for key, value in entries.items()]
    limits = {name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name)}
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
    from dynatops.kit.security.tokens_file import TokensError, read_tokens

    try:
        tokens = read_tokens(arguments.file)
    except TokensError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print_json(
            [
                {"name": rules.name}
                | {name: getattr(rules, name) for name in RIGHTS}
                | {"limits": {name: getattr(rules.limits, name) for name in LIMITS}}
                for rules in tokens
            ]
        )
        return 0
    if not tokens:
        print("no tokens: with this file nobody gets in")
        return 0
    columns = [name for name, right in RIGHTS.items() if right.shown]
    print_table(
        ("token", *(name.replace("_", " ") for name in columns)),
        [(rules.name, *(_shown(rules, name) for name in columns)) for rules in tokens],
    )
    return 0


def _shown(rules: TokenRules, name: str) -> str:
    value = getattr(rules, name)
    match RIGHTS[name].kind:
        case RightKind.CLIENT_IDS:
            return " ".join(value) + (" (claimed)" if rules.claim_client_ids else "")
        case RightKind.TOPICS:
            return " ".join(value) or "-"
        case RightKind.YES_OR_NO:
            return "yes" if value else "no"
    return str(value or "-")
