"""`dynatops analytics`: from the lake to advice, on Spark; and how that goes."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from dynatops.cli.common import Commands, add_command, print_json, print_table
from dynatops.cli.durations import brief_duration
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.managers.manager_client import ManagerClient, add_manager


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
    add_manager(
        add_command(
            actions,
            "status",
            show_status,
            summary="show how jobs ran last, what they counted, and how old their advice is",
            description="Show how jobs ran last, what all their runs counted, and how old their "
            "advice is, as a manager reads it from Redis. Exit code 1 if the last run of a job "
            "failed.",
        )
    )
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


# Of the half minute that Kubernetes gives a pod.
_ENDING_S = 20.0


def _give_up(number: int, _: object) -> NoReturn:
    """What was asked of a cluster is given back, before Kubernetes' patience ends."""
    raise SystemExit(128 + number)


def run_jobs(arguments: argparse.Namespace) -> int:
    from analytics import command, errors

    signal.signal(signal.SIGTERM, _give_up)
    try:
        return command.run(arguments)
    except SystemExit:
        command.await_end(_ENDING_S)
        raise
    except errors.AnalyticsUsageError as error:
        raise UsageError(str(error)) from None
    except errors.AnalyticsError as error:
        raise CommandError(str(error)) from None


def show_status(arguments: argparse.Namespace) -> int:
    found = ManagerClient.of(arguments).get("/v1/analytics")
    jobs = found["jobs"]
    if arguments.json:
        print_json(found)
    elif not found["watched"]:
        raise CommandError(
            "the manager has no Redis to look into: set its advice.redis_url to the server that "
            "jobs write to (--redis)"
        )
    else:
        now_s = time.time()
        print_table(
            ("job", "last run", "ended", "took", "succeeded", "rows", "late", "dropped",
             "quarantined", "advice"),
            [_row(job, now_s) for job in jobs],
        )  # fmt: skip
        for job in jobs:
            if job["reason"]:
                print(f"{job['job']} failed: {job['reason']}")
    return 1 if any(job["last_run"] == "failed" for job in jobs) else 0


def _row(job: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    counts, advice = job["counts"], job["advice"]
    quarantined = f"{counts['quarantined']:,}"
    if files := counts["quarantined_files"]:
        quarantined += f", {files:,} files"
    return (
        job["job"],
        (job["last_run"] or "never").replace("_", " "),
        _ago(job["ended_s"], now_s),
        brief_duration(job["seconds"]) if job["seconds"] is not None else "-",
        _ago(job["succeeded_s"], now_s),
        f"{counts['rows']:,}",
        f"{counts['late']:,}",
        f"{counts['dropped']:,}",
        quarantined,
        _ago(advice["computed_s"] if advice else None, now_s),
    )


def _ago(at_s: float | None, now_s: float) -> str:
    return f"{brief_duration(max(now_s - at_s, 0.0))} ago" if at_s is not None else "-"
