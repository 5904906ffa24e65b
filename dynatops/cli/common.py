"""What commands share: common options, output, and running asynchronous work."""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dynatops.cli.access import access_options, add_access
from dynatops.cli.errors import CommandError, UsageError, explain_filter
from dynatops.cli.terminal import visible
from dynatops.kit.observing.logs import FORMATS
from dynatops.kit.strict_json import write_json

# Objects made until Python looks for those that only know each other, of the youngest, and how
# often it looks at older ones: a broker has millions, few of which ever go that way, and looking
# took a quarter of its time.
_GC_THRESHOLDS = (5_000, 5, 100)

Commands = Any  # argparse has no public name for what add_subparsers returns
ADDRESS_VARIABLE = "DYNATOPS_BROKER"
DEFAULT_ADDRESS = "127.0.0.1:7400"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    *,
    summary: str,
    description: str = "",
    epilog: str = "",
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT[,…]",
        default=os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS),
        help=f"a broker of the network, or several (default: ${ADDRESS_VARIABLE}, or %(default)s)",
    )
    add_access(parser)


def add_logging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="what to say on standard error; operations are `info` (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=FORMATS,
        help="text for people, or a line of JSON each (default: %(default)s)",
    )


def positive(kind: type[int | float]) -> Callable[[str], int | float]:
    """An argparse type: a number above zero."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above zero, and finite")
        return value

    return parse


def finite(text: str) -> float:
    """An argparse type: any number that is one."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return value


def print_json(document: object) -> None:
    """One document; numbers that JSON does not have are null."""
    print(write_json(document, indent=2 if sys.stdout.isatty() else None))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they must be; numbers to the right."""
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[i]) for row in cells)) if cells else len(heading)
        for i, heading in enumerate(headings)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(headings))
    ]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(parts).rstrip()

    print(line(headings))
    print(line(["-" * width for width in widths]))
    for row in cells:
        print(line(row))


def ask_network(arguments: argparse.Namespace, question: str, *details: object) -> Any:
    """What `Inspector` answers to one of its questions."""
    from dynatops.client.inspection import Inspector

    access = access_options(arguments)

    async def ask() -> Any:
        async with Inspector(arguments.broker, **access) as inspector:
            return await getattr(inspector, question)(*details)

    return run_async(ask())


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run until done; failures of the client and of brokers become messages."""
    from dynatops.client.errors import ArgumentError, DynatopsError
    from dynatops.kit.filters import AttributesError, FilterError
    from dynatops.kit.serving.start_errors import StartError
    from dynatops.kit.topics import TopicError

    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        return asyncio.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except FilterError as error:
        raise UsageError(explain_filter(error)) from None
    except (ArgumentError, AttributesError, TopicError) as error:
        raise UsageError(str(error)) from None
    except (DynatopsError, StartError) as error:
        raise CommandError(str(error)) from None


async def _interruptible(work: Coroutine[Any, Any, Any]) -> Any:
    """Ctrl-C cancels the work, whichever thread the signal meets.

    `asyncio.run` alone wakes the loop only if it meets the main thread; gRPC has others.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await work
