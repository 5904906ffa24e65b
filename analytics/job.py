"""What a job is: which tables it takes in, what it keeps of them, and what it makes of that.

Each module of `analytics.jobs` declares one as `JOB`, a JobKind; help, settings, documentation, the
chart and what managers look for in Redis follow from it.

    rows of the lake --fold.part--> parts --settle--> state --results--> tables --advice--> Redis

`part` sees one batch of good rows, as many times as it takes; `settle` sees all parts since the
last time and the state of then, once; it must not matter how rows were divided into batches. All of
these only say what is to be computed; `runner` computes it, and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from dynatops.lake.fields import Table

Frames = Mapping[str, DataFrame]
Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class RowSums:
    """Rows of a table that are summed up when they are taken in; those without keys are left out.

    What is counted of rows is then counted with their sums: row by row that costs as much as to
    read them.
    """

    # By name: of a row, keys and what is summed up.
    columns: Callable[[], Mapping[str, Column]]
    keys: tuple[str, ...]
    sums: Callable[[], Sequence[Column]]

    def __call__(self, rows: DataFrame) -> DataFrame:
        keyed = rows.withColumns(dict(self.columns())).filter(fn.col(self.keys[0]).isNotNull())
        return keyed.groupBy(*self.keys).agg(*self.sums())


@dataclass(frozen=True, slots=True)
class Fold:
    """How a table of the lake is taken in."""

    table: Table
    schema: StructType
    part: Callable[[DataFrame], DataFrame] | RowSums
    # Rows may come so long after newer ones.
    late_s: float
    # What is closed ends at a multiple of this.
    align_us: int = 1


@dataclass(frozen=True, slots=True)
class Clock:
    """Of one table: rows before `closed_us` are complete; `before_us`: those that were before."""

    before_us: int | None
    closed_us: int | None
    seen_us: int | None


@dataclass(frozen=True, slots=True)
class Intake:
    """What `settle` is given."""

    parts: Frames
    state: Frames
    clocks: Mapping[str, Clock]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What `results` is given."""

    state: Frames
    # Newest results of other jobs, as `JobKind.uses` names them; None of a job that never ran.
    others: Mapping[str, DataFrame | None]


@dataclass(frozen=True, slots=True)
class UsedResult:
    """A table of another job's results."""

    job: str
    table: str
    schema: StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Generic[Settings]):
    """All that is to be known of a job without running it."""

    # That of its module.
    name: str
    # What its results say, in words for operators.
    says: str
    settings: type[Settings]
    make: Callable[[Settings], Job]
    # Tables of its results.
    results: tuple[str, ...]
    # Of its state: what there is a row for, and until when.
    keeps: str
    until: str
    # Tables of its advice, each with the name that the head counts it under.
    advice_tables: Mapping[str, str]
    # Fields and values of these.
    advises: str
    # Other processes that follow its advice.
    followed_by: str = ""
    # What it reads of other jobs; these come before it in the catalogue.
    uses: Mapping[str, UsedResult] = field(default_factory=dict)
    # In the chart, of a cron; jobs that begin together share the machine.
    schedule: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Tables of `field` and `value`, the most important entries first; fields of the head."""

    kind: JobKind[Any]
    tables: Frames
    head: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    kind: JobKind[Any]
    folds: tuple[Fold, ...]
    state: Mapping[str, StructType]
    settle: Callable[[Intake], Frames]
    results: Callable[[JobOutcome], Frames]
    advice: Callable[[Frames, Mapping[str, Clock]], Advice]

    @property
    def name(self) -> str:
        return self.kind.name
