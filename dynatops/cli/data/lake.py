"""`dynatops lake generate` and `describe`: a lake to try analytics with, and what is in one."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dynatops.cli.common import Commands, add_command, finite, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.terminal import OVER_THE_LINE, write_control

if TYPE_CHECKING:
    from dynatops.lake.describe import TableSummary
    from dynatops.lake.files import Lake
    from dynatops.local.made_up_lake.world import LakeSpec

# Option, field of the specification, meaning.
_COUNTS = (
    ("--users", "users", "users", "10000"),
    ("--brokers", "brokers", "brokers", "100"),
    ("--topics", "topics", "topics, in modes of ten", "3000"),
    ("--days", "days", "days, from --start on", "7"),
    ("--rows", "rows", "rows of publications, about; the other tables are what users do", "1e6"),
    ("--topics-per-user", "topics_per_user", "topics that a user follows", "5"),
)
_RATES = (
    ("--moves-per-day", "moves_per_day", "times a user goes to another broker, on average", "2"),
    ("--changes-per-day", "changes_per_day", "topics that a user changes, on average", "0.5"),
    ("--skew", "skew", "modes have weights of 1 / rank ** skew", "0.8"),
)


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "lake",
        help="make up a lake to try analytics with, and tell what is in one",
        description="Make up a lake to try analytics with, and tell what is in one. Brokers write "
        "theirs by themselves: `dynatops broker --lake URL`.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_generate(kinds)
    describe = add_command(
        kinds,
        "describe",
        run_describe,
        summary="tell what is in a lake: rows, bytes, time span",
        description="Tell what is in a lake: rows, bytes and time span of each table. Exit code 1 "
        "if there are files that nobody can read.",
    )
    describe.add_argument("url", metavar="URL", help="a folder, or a URL that pyarrow opens")


def _add_generate(kinds: Commands) -> None:
    parser = add_command(
        kinds,
        "generate",
        run_generate,
        summary="make up a lake: users with habits and interests, brokers, topics",
        description="Make up a lake. Users follow topics of a mode, go to work and home by the "
        "time of day where they live, and change their minds; topics are published on at rates of "
        "their own. The same options make the same rows.",
        epilog="Numbers may be written as 1e6.",
    )
    parser.add_argument("url", metavar="URL", help="where there is no lake yet")
    for option, name, meaning, default in _COUNTS:
        parser.add_argument(
            option, dest=name, type=_count, default=_count(default), metavar="N",
            help=f"{meaning} (default: {default})",
        )  # fmt: skip
    for option, name, meaning, default in _RATES:
        parser.add_argument(
            option, dest=name, type=finite, default=float(default), metavar="X",
            help=f"{meaning} (default: {default})",
        )  # fmt: skip
    parser.add_argument("--seed", type=_count, default=0, metavar="N", help="(default: 0)")
    parser.add_argument(
        "--start", type=_date, metavar="YYYY-MM-DD", default=_date("2026-01-01"),
        help="first day, in UTC (default: 2026-01-01)",
    )  # fmt: skip


def _count(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not (0 <= value <= 1e15 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text} is no count")
    return int(value)


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date: write YYYY-MM-DD") from None


def _open(url: str) -> Lake:
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("pyarrow is missing: pip install 'dynatops[lake]'")
    from dynatops.lake.files import Lake, LakeError

    try:
        return Lake.open(url)
    except LakeError as error:
        raise UsageError(str(error)) from None


def run_generate(arguments: argparse.Namespace) -> int:
    lake = _open(arguments.url)
    from dynatops.lake.files import LakeError
    from dynatops.local.made_up_lake.generate import generate
    from dynatops.local.made_up_lake.world import LakeSpec

    names = [name for _, name, _, _ in (*_COUNTS, *_RATES)]
    chosen = {name: getattr(arguments, name) for name in names}
    started_s = time.monotonic()
    try:
        spec: LakeSpec = LakeSpec(**chosen, seed=arguments.seed, start=arguments.start)
        rows = generate(lake, spec, None if arguments.json else _show_progress)
    except (LakeError, OSError) as error:
        raise CommandError(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    seconds = time.monotonic() - started_s
    if arguments.json:
        print_json({"rows": dict(rows), "seconds": round(seconds, 3)})
        return 0
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print_table(("table", "rows"), [(name, f"{count:,}") for name, count in rows.items()])
    total = rows.total()
    print(f"{total:,} rows in {seconds:.1f} s, {total / seconds:,.0f} a second")
    return 0


def _show_progress(done: int, hours: int, rows: Counter[str]) -> None:
    if sys.stderr.isatty():
        write_control(OVER_THE_LINE, sys.stderr)
        line = f"{done} of {hours} hours, {rows.total():,} rows"
        print(line, end="", file=sys.stderr, flush=True)


def run_describe(arguments: argparse.Namespace) -> int:
    lake = _open(arguments.url)
    from dynatops.lake.describe import describe

    try:
        tables = describe(lake)
        unfinished = len(lake.unfinished())
    except OSError as error:
        raise CommandError(str(error)) from None
    if not any(table.files or table.bad for table in tables):
        raise CommandError(f"there is no lake at {arguments.url}")
    bad = [entry for table in tables for entry in table.bad]
    if arguments.json:
        print_json({"tables": [_as_dict(table) for table in tables], "unfinished": unfinished})
    else:
        print_table(
            ("table", "files", "rows", "bytes", "from", "to"),
            [(t.name, t.files, t.rows, t.nbytes, _shown(t.first), _shown(t.last)) for t in tables],
        )
        if unfinished:
            print(f"{unfinished} files are being written, or were when their broker crashed")
        for path, reason in bad:
            print(f"cannot be read: {path}: {reason}")
    return 1 if bad else 0


def _shown(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at is not None else "-"


def _as_dict(table: TableSummary) -> dict[str, object]:
    return {
        "table": table.name,
        "files": table.files,
        "rows": table.rows,
        "bytes": table.nbytes,
        "from": table.first.isoformat() if table.first is not None else None,
        "to": table.last.isoformat() if table.last is not None else None,
        "bad": [{"path": path, "reason": reason} for path, reason in table.bad],
    }
