"""`dynatops leave`: have a broker of this machine leave its ring, and wait until it has.

What a pod's preStop hook runs. The broker's process stays until it is told to stop, so that
what started it sees it end when it wants it to.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

from dynatops.cli.common import Commands, add_command, positive, print_json
from dynatops.cli.errors import CommandError

_PERIOD_S = 0.05


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "leave",
        run,
        summary="have a broker of this machine leave its ring, and wait until it has",
        description="Have a broker of this machine leave its ring, and wait until it has: it is "
        "not ready any more, tells its clients to go elsewhere, hands its topics over, and leaves. "
        "Its process stays, and does nothing, until it is stopped.",
        epilog="Exit code 0 too if no broker is there: it has left.",
    )
    parser.add_argument(
        "--pid-file", metavar="FILE", required=True, help="that of `dynatops broker --pid-file`"
    )
    parser.add_argument(
        "--timeout",
        type=positive(float),
        default=30.0,
        metavar="SECONDS",
        help="give up after so long; the broker goes on leaving (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    started_s = time.monotonic()
    pid = _holder(arguments.pid_file)
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)
    while _holder(arguments.pid_file) is not None:
        if time.monotonic() - started_s > arguments.timeout:
            raise CommandError(
                f"broker process {pid} has not left within {arguments.timeout:g} s; its log says "
                "what it waits for"
            )
        time.sleep(_PERIOD_S)
    seconds = time.monotonic() - started_s
    if arguments.json:
        print_json({"left": pid is not None, "seconds": round(seconds, 3)})
    else:
        print(f"left after {seconds:.1f} s" if pid is not None else "no broker is there")
    return 0


def _holder(path: str) -> int | None:
    from dynatops.kit.serving.pid_file import PidFileError, holder

    try:
        return holder(path)
    except PidFileError as error:
        raise CommandError(str(error)) from None
