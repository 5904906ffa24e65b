"""What a job is: which tables it takes in, what it keeps of them, and what it makes of that.

    rows of the lake --fold.part--> parts --settle--> state --results--> tables --advice--> Redis

`part` sees one batch of good rows, as many times as it takes; `settle` sees all parts since the
last time and the state of then, once; it must not matter how rows were divided into batches. All of
these only say what is to be computed; `runner` computes it, and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dynatops.lake.fields import Table

Frames = Mapping[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Fold:
    """How a table of the lake is taken in."""

    table: Table
    schema: StructType
    part: Callable[[DataFrame], DataFrame]
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
    # BROKER_CLUSTERS as the job `clusters` has them; None if it never ran.
    clusters: DataFrame | None
    # Into how many a large shuffle is divided.
    partitions: int


@dataclass(frozen=True, slots=True)
class Advice:
    """Tables of `field` and `value`, the most important entries first; fields of the head."""

    key: str
    tables: Frames
    # Under which name the head counts a table, where not under the table's own.
    counted_as: Mapping[str, str] = field(default_factory=dict)
    head: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    folds: tuple[Fold, ...]
    state: Mapping[str, StructType]
    settle: Callable[[Intake], Frames]
    results: Callable[[JobOutcome], Frames]
    advice: Callable[[Frames, Mapping[str, Clock]], Advice]
