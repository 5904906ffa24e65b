"""`dynatops`: reads the command line, runs the command, turns failures into messages and exit
codes.

Exit codes: 0 done, 1 it could not be done, 2 the command line or input is wrong, 70 a broker or
manager has failed (its log says how: a bug), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from dynatops.cli.common import Commands
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.terminal import plain_output
from dynatops.kit.background import EXIT_CODE, BackgroundError
from dynatops.version import VERSION, build_kind

_DESCRIPTION = """\
Topic publish/subscribe on a network of brokers that rearranges itself.

Try it:
  dynatops demo                      a cluster, users and load, for a few seconds
  dynatops up --brokers 8            a cluster to play with, until Ctrl-C
  dynatops sub quake/ca              in a second terminal: listen
  dynatops pub quake/ca "M5.1"       in a third: publish
  dynatops tree quake/ca             how events of the topic travel"""


# Every module with commands, below `dynatops.cli`, in the order of `--help`: a line registers one.
_MODULES = (
    "local.demo",
    "local.up",
    "brokers.broker",
    "brokers.leave",
    "brokers.replay",
    "brokers.topology",
    "brokers.tables",
    "brokers.stores",
    "managers.manager",
    "brokers.token",
    "messages.pubsub",
    "brokers.inspect",
    "brokers.sessions",
    "managers.network",
    "managers.reconfigure",
    "managers.policy",
    "managers.watch",
    "placements.solve",
    "placements.instance",
    "placements.compare",
    "local.simulate",
    "local.reproduce",
    "data.lake",
    "data.analytics",
    "local.bench",
    "settings",
)


class CommandModule(Protocol):
    """What a module with commands has."""

    @staticmethod
    def add_commands(commands: Commands) -> None: ...


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dynatops",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"dynatops {VERSION} ({build_kind()})"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _MODULES:
        command_module(name).add_commands(commands)
    return parser


def command_module(name: str) -> CommandModule:
    return cast("CommandModule", import_module(f"dynatops.cli.{name}"))


def main(argv: Sequence[str] | None = None) -> int:
    # gRPC writes its own view of broken connections to stderr; ours is enough.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with plain_output():
            return _run(argv)
    except BrokenPipeError:
        # The program that read our output has seen enough.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # lives as long as the process
        return 0


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except UsageError as error:
        print(f"dynatops: {error}", file=sys.stderr)
        return 2
    except CommandError as error:
        print(f"dynatops: {error}", file=sys.stderr)
        return 1
    except BackgroundError as error:
        print(f"dynatops: {error}", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        return 130
