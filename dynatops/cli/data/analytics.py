"""`dynatops analytics`: from the lake to advice, on Spark."""

from __future__ import annotations

import argparse
import signal
from typing import NoReturn

from dynatops.cli.common import Commands, add_command
from dynatops.cli.errors import CommandError, UsageError


def add_commands(commands: Commands) -> None:
    from analytics.command import DESCRIPTION, EPILOG, add_options

    parser = commands.add_parser("analytics", help="turn the lake into advice, on Spark")
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = add_command(
        actions,
        "run",
        run_jobs,
        summary="run jobs on what is new in the lake",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_options(command)
    add_command(
        actions,
        "executor",
        become_executor,
        summary="be an executor, where Spark on Kubernetes starts one",
        description="Be an executor of Spark on Kubernetes: what Spark says in the environment of "
        "the container that it asked for.",
    )


def become_executor(_: argparse.Namespace) -> int:
    from analytics import errors, executor

    try:
        return executor.become_executor()
    except errors.AnalyticsUsageError as error:
        raise UsageError(str(error)) from None
    except errors.AnalyticsError as error:
        raise CommandError(str(error)) from None


def _give_up(number: int, _: object) -> NoReturn:
    """What was asked of a cluster is given back, before Kubernetes' patience ends."""
    raise SystemExit(128 + number)


def run_jobs(arguments: argparse.Namespace) -> int:
    from analytics import command, errors

    signal.signal(signal.SIGTERM, _give_up)
    try:
        return command.run(arguments)
    except errors.AnalyticsUsageError as error:
        raise UsageError(str(error)) from None
    except errors.AnalyticsError as error:
        raise CommandError(str(error)) from None
    finally:
        command.end_spark()
