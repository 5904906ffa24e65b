"""Figures made of runs: what is still to be measured is, side by side; then rows, and verdicts."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from experiments.figures.figure import (
    Claim,
    Figure,
    FigureRow,
    FigureTable,
    JudgedAs,
    Judgement,
    Measured,
    RunSpec,
)
from experiments.figures.measurements import measure
from experiments.results import Outcome, ResultsFile

# How many runs are done, of how many, and the one that was just finished.
Progress = Callable[[int, int, str], None]


class ScaleError(Exception):
    """At this scale a figure means nothing."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Check-ins in place of made-up visits; what is measured of them is kept by their contents."""

    path: Path
    digest: str

    @classmethod
    def of(cls, path: Path) -> TraceFile:
        return cls(path.resolve(), hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest())

    def as_json(self) -> dict[str, str]:
        return {"path": str(self.path), "digest": self.digest}


@dataclass(frozen=True, slots=True)
class Reproduced:
    figure: Figure
    scale: float
    seeds: tuple[int, ...]
    table: FigureTable
    judgements: tuple[tuple[Claim, Judgement], ...]
    # Of all its runs, as measured: one after the other.
    seconds: float
    trace: TraceFile | None = None

    @property
    def command(self) -> str:
        """What measures it again."""
        first = f" --seed {self.seeds[0]}" if self.seeds[0] != 1 else ""
        trace = f" --trace {self.trace.path.name}" if self.trace is not None else ""
        sizes = f"--scale {self.scale:g} --seeds {len(self.seeds)}"
        return f"dynatops reproduce {self.figure.name} {sizes}{first}{trace}"

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.figure.name,
            "scale": self.scale,
            "seeds": list(self.seeds),
            "rows": [_row_as_json(row, self.figure.metrics) for row in self.table.rows],
            "claims": [
                {
                    "text": claim.text,
                    "expected": claim.expected,
                    "measured": judgement.measured,
                    "verdict": str(judgement.verdict),
                    "reason": judgement.reason,
                }
                for claim, judgement in self.judgements
            ],
            "seconds": round(self.seconds, 1),
            "command": self.command,
            **({"trace": self.trace.as_json()} if self.trace is not None else {}),
        }

    @property
    def verdict(self) -> JudgedAs:
        """Of the paper's claims together: the worst of them, if any holds at all."""
        found = {judgement.verdict for claim, judgement in self.judgements if not claim.is_ours}
        if JudgedAs.OPEN in found:
            return JudgedAs.OPEN
        if found == {JudgedAs.HOLDS}:
            return JudgedAs.HOLDS
        return JudgedAs.FAILS if found == {JudgedAs.FAILS} else JudgedAs.PARTLY


def _row_as_json(row: FigureRow, metrics: Sequence[str]) -> dict[str, object]:
    cells: dict[str, object] = {"run": row.spec.kind, **dict(row.spec.parameters)}
    for metric in metrics:
        measured = row.metrics.get(metric)
        if measured is not None:
            cells[metric] = measured.mean
            cells[f"{metric}_std"] = measured.std
    return cells


def check_scale(figure: Figure, scale: float) -> None:
    if scale < figure.scale_min:
        raise ScaleError(
            f"{figure.name} means nothing at scale {scale:g}: {figure.scale_min_reason}; "
            f"the least that does is {figure.scale_min:g}"
        )


# Kinds of runs that are of a movement trace; in the latter users move by it.
_MOVING = frozenset({"location"})
_OF_VISITS = _MOVING | {"visits"}


def takes_trace(figure: Figure) -> bool:
    return any(spec.kind in _OF_VISITS for spec in figure.runs(1.0))


def moves_users(figure: Figure) -> bool:
    return any(spec.kind in _MOVING for spec in figure.runs(1.0))


def runs_of(
    figures: Iterable[Figure], scale: float, trace: TraceFile | None = None
) -> list[RunSpec]:
    """Each once, in order."""
    specs = dict.fromkeys(spec for figure in figures for spec in figure.runs(scale))
    return [_with_trace(spec, trace) for spec in specs]


def _with_trace(spec: RunSpec, trace: TraceFile | None) -> RunSpec:
    if trace is None or spec.kind not in _OF_VISITS:
        return spec
    of_trace = {"trace": str(trace.path), "trace_digest": trace.digest}
    return RunSpec.of(spec.kind, **dict(spec.parameters), **of_trace)


def measure_all(
    figures: Sequence[Figure],
    results: ResultsFile,
    seeds: Sequence[int],
    jobs: int,
    progress: Progress,
    trace: TraceFile | None = None,
) -> None:
    """What is not there yet. Cut off, all that was finished is kept."""
    specs = runs_of(figures, results.scale, trace)
    work = [(spec, seed) for seed in seeds for spec in specs]
    todo = [(spec, seed) for spec, seed in work if results.get(spec, seed) is None]
    done = len(work) - len(todo)
    progress(done, len(work), "")
    if jobs == 1:
        for spec, seed in todo:
            results.add(spec, seed, _timed(spec, results.scale, seed))
            done += 1
            progress(done, len(work), f"{spec.key} seed {seed}")
    elif todo:
        _measure_side_by_side(todo, results, jobs, progress, len(work))


def _measure_side_by_side(
    todo: Sequence[tuple[RunSpec, int]],
    results: ResultsFile,
    jobs: int,
    progress: Progress,
    total: int,
) -> None:
    done = total - len(todo)
    # Fresh processes: what compiled code and threads of the parent hold does not matter there.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(todo)), context, initializer=_ignore_interrupts)
    futures = {pool.submit(_timed, spec, results.scale, seed): (spec, seed) for spec, seed in todo}
    try:
        for future in as_completed(futures):
            spec, seed = futures[future]
            results.add(spec, seed, future.result())
            done += 1
            progress(done, total, f"{spec.key} seed {seed}")
    except BaseException:
        # Told again to end, it does not end sooner.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  # no other way
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        signal.signal(signal.SIGINT, before)
        raise
    pool.shutdown()


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole group; the parent ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _timed(spec: RunSpec, scale: float, seed: int) -> Outcome:
    began_s = time.process_time()
    metrics = measure(spec, scale, seed)
    return Outcome(metrics, time.process_time() - began_s)


def judge_figure(
    figure: Figure, results: ResultsFile, seeds: Sequence[int], trace: TraceFile | None = None
) -> Reproduced:
    """By what is in the results."""
    specs = runs_of([figure], results.scale, trace)
    rows, seconds = [], 0.0
    for spec in specs:
        outcomes = [found for seed in seeds if (found := results.get(spec, seed)) is not None]
        if len(outcomes) < len(seeds):
            continue
        seconds += sum(outcome.seconds for outcome in outcomes)
        names = set(outcomes[0].metrics).intersection(*(o.metrics for o in outcomes))
        metrics = {n: Measured.of([o.metrics[n] for o in outcomes]) for n in sorted(names)}
        rows.append(FigureRow(spec, metrics))
    table = FigureTable(tuple(rows))
    missing = len(specs) - len(rows)
    reason = f"{missing} of {len(specs)} runs have not been made"
    open_still = Judgement("", JudgedAs.OPEN, reason)
    judged = tuple(
        (claim, open_still if missing else claim.judge(table)) for claim in figure.claims
    )
    return Reproduced(figure, results.scale, tuple(seeds), table, judged, seconds, trace)
