"""`dynatops reproduce`: the figures and tables of the papers, measured again, with verdicts."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from dynatops.cli.common import Commands, add_command, positive, print_json
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.terminal import OVER_THE_LINE, write_control

if TYPE_CHECKING:
    from experiments.figures.figure import Figure
    from experiments.reproduction import Reproduced, TraceFile

DEFAULT_FOLDER = "reproduced"
_BAR_CHARACTERS = 24


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "reproduce",
        run,
        summary="measure the figures of the papers again, and judge their claims",
        description="Measure figures and tables of the DYNATOPS paper again, on the code that "
        "ships, beside the systems that it was compared with; print what was measured, and "
        "whether each claim holds. What has been measured is kept: a run that was cut off goes on "
        "where it was.",
        epilog="examples:\n"
        "dynatops reproduce --list\n"
        "dynatops reproduce fig5\n"
        "dynatops reproduce fig7a --scale 0.1 --seeds 3 --jobs 2\n"
        "dynatops reproduce --all --scale 0.1 --report evaluation",
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="such as fig7a; see --list")
    parser.add_argument("--list", action="store_true", help="what there is, and the last verdicts")
    parser.add_argument("--all", action="store_true", help="every figure and table")
    parser.add_argument(
        "--scale",
        type=positive(float),
        default=1.0,
        metavar="S",
        help="of the paper's sizes, at most 1 (default: 1, which takes hours)",
    )
    parser.add_argument(
        "--seeds", type=positive(int), default=1, metavar="N", help="how many (default: 1)"
    )
    parser.add_argument("--seed", type=positive(int), default=1, help="the first (default: 1)")
    parser.add_argument(
        "--jobs", type=positive(int), default=1, metavar="J", help="runs side by side"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="check-ins in place of the made-up trace, for figures of the location workload: CSV "
        "with user,time,lat,lon, or SNAP's layout, plain or gzipped; rows that cannot be used are "
        "counted and named",
    )
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="write pages in HTML and Markdown, plots and JSON there, too; figures that were "
        "reported there before stay, each with its scale and seeds; what has been measured is "
        f"kept there (otherwise in {DEFAULT_FOLDER}/)",
    )


def run(arguments: argparse.Namespace) -> int:
    _require_packages(arguments)
    from experiments.figures.catalogue import FIGURES

    folder = Path(arguments.report or DEFAULT_FOLDER)
    if arguments.list:
        _list(tuple(FIGURES.values()), folder, as_json=arguments.json)
        return 0
    if arguments.all == bool(arguments.figures):
        raise UsageError("name figures (--list shows them), or say --all")
    unknown = [name for name in arguments.figures if name not in FIGURES]
    if unknown:
        raise UsageError(f"no figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
    if arguments.scale > 1:
        raise UsageError("--scale: at most 1, the paper's sizes")
    names = list(FIGURES) if arguments.all else list(dict.fromkeys(arguments.figures))
    return _reproduce([FIGURES[name] for name in names], folder, arguments)


def _require_packages(arguments: argparse.Namespace) -> None:
    wanted = ["numba", "scipy", *(["matplotlib"] if arguments.report else [])]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing and not arguments.list:
        raise CommandError(
            f"{missing[0]} is not installed; experiments need: pip install 'dynatops[experiments]'"
        )


def _reproduce(figures: Sequence[Figure], folder: Path, arguments: argparse.Namespace) -> int:
    from experiments.report import check_report_folder, write_report
    from experiments.reproduction import ScaleError, check_scale, judge_figure, measure_all
    from experiments.results import ResultsError, ResultsFile

    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    trace = _trace(figures, arguments)
    try:
        for figure in figures:
            check_scale(figure, arguments.scale)
        if arguments.report:
            check_report_folder(folder)
        results = ResultsFile(folder, arguments.scale)
        if results.torn:
            print(f"dynatops: {results.path}: half a line at its end is left out", file=sys.stderr)
        try:
            measure_all(figures, results, seeds, arguments.jobs, _show_progress, trace)
        except KeyboardInterrupt:
            print(f"\ndynatops: what was measured is in {results.path}", file=sys.stderr)
            raise
        finally:
            _end_progress()
        reproduced = [judge_figure(figure, results, seeds, trace) for figure in figures]
        if arguments.report:
            pages = write_report(folder, reproduced)
    except ScaleError as error:
        raise UsageError(f"--scale: {error}") from None
    except BrokenProcessPool:
        raise CommandError(
            f"a run was killed, perhaps for want of memory; what was measured is in {folder}; "
            "go on with fewer --jobs"
        ) from None
    except ResultsError as error:
        raise UsageError(str(error)) from None
    if arguments.json:
        print_json([found.as_json() for found in reproduced])
        return 0
    for found in reproduced:
        _print_figure(found)
    if arguments.report:
        print(f"report: {', '.join(map(str, pages))}")
    return 0


def _trace(figures: Sequence[Figure], arguments: argparse.Namespace) -> TraceFile | None:
    """Read once before anything is measured, so that what is wrong with it is said at once."""
    from experiments.reproduction import TraceFile, moves_users, takes_trace
    from experiments.workloads.checkins import CheckinError, visits_of_file
    from experiments.workloads.grid import Grid
    from experiments.workloads.location import check_length

    if arguments.trace is None:
        return None
    others = [figure.name for figure in figures if not takes_trace(figure)]
    if others:
        raise UsageError(f"--trace: {others[0]} is not of the location workload")
    path = Path(arguments.trace)
    try:
        found = visits_of_file(path, Grid())
        if found.bad.count:
            print(f"dynatops: {path}: {found.bad}", file=sys.stderr)
        if any(moves_users(figure) for figure in figures):
            check_length(found.visits, path)
        return TraceFile.of(path)
    except CheckinError as error:
        raise UsageError(f"--trace: {error}") from None


# ---- what is printed -----------------------------------------------------------------------------


def _show_progress(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        write_control(OVER_THE_LINE, sys.stderr)
        full = _BAR_CHARACTERS * done // total
        bar = "#" * full + "." * (_BAR_CHARACTERS - full)
        print(f"[{bar}] {done} of {total} runs  {what[:60]}", end="", file=sys.stderr, flush=True)


def _end_progress() -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)


def _list(figures: Sequence[Figure], folder: Path, *, as_json: bool) -> None:
    from experiments.report import last_verdicts

    verdicts = last_verdicts(folder)
    rows = [
        {
            "name": figure.name,
            "paper": figure.paper,
            "title": figure.title,
            "claims": [claim.text for claim in figure.claims if not claim.is_ours],
            "command": f"dynatops reproduce {figure.name}",
            "verdict": verdicts.get(figure.name),
        }
        for figure in figures
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(f"{row['name']:14} {row['title']} ({row['paper']})")
        for claim in row["claims"] or ():
            print(f"  claim        {claim}")
        print(f"  command      {row['command']}")
        print(f"  last verdict {row['verdict'] or '- (none in ' + str(folder) + ')'}")


def _print_figure(found: Reproduced) -> None:
    figure = found.figure
    seeds = ", ".join(map(str, found.seeds))
    print(f"{figure.name}: {figure.title} ({figure.paper}), scale {found.scale:g}, seeds {seeds}")
    for row in found.table.rows:
        parameters = " ".join(f"{name}={value}" for name, value in row.spec.parameters)
        metrics = "  ".join(
            f"{name} {row.metrics[name].mean:,.4g} ± {row.metrics[name].std:,.2g}"
            for name in figure.metrics
            if name in row.metrics
        )
        print(f"  {parameters or row.spec.kind}: {metrics}")
    for claim, judgement in found.judgements:
        whose = " (ours)" if claim.is_ours else ""
        print(f"  claim{whose}: {claim.text}; expected {claim.expected}")
        print(f"    measured {judgement.measured or '-'}: {judgement.verdict}; {judgement.reason}")
    print()
