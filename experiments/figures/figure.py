"""What a figure or table of a paper is here: the runs behind it, what is claimed, what is drawn.

A *run* is the smallest thing that is measured, for a seed: figures that need the same run share it.
A figure makes rows of runs, and judges each claim by the rows, in the claim's direction and size.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

Parameter = str | int | float

# What only ablations vary: rows with these are found by naming them.
ABLATED = frozenset(
    {"friends", "update_h", "itself", "rtt", "mode_changes", "w_l"}
    | {"tree", "use", "rounded_up", "again", "asked"}
)


class JudgedAs(enum.StrEnum):
    HOLDS = "holds"
    PARTLY = "partly"
    FAILS = "does not hold"
    # The runs that it needs have not been made.
    OPEN = "not measured"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One measurement: what is measured (a name in `measurements.py`), and of what."""

    kind: str
    parameters: tuple[tuple[str, Parameter], ...] = ()

    @classmethod
    def of(cls, kind: str, **parameters: Parameter) -> RunSpec:
        return cls(kind, tuple(sorted(parameters.items())))

    @property
    def key(self) -> str:
        """One line, the same for ever: results are kept under it."""
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.parameters)])

    def __getitem__(self, name: str) -> Parameter:
        return dict(self.parameters)[name]


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric over the seeds."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        mean = sum(values) / len(values)
        return cls(mean, float((sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5))


@dataclass(frozen=True, slots=True)
class FigureRow:
    spec: RunSpec
    metrics: Mapping[str, Measured]

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric].mean


@dataclass(frozen=True, slots=True)
class FigureTable:
    """All rows of a figure."""

    rows: tuple[FigureRow, ...]

    def where(self, **parameters: Parameter) -> list[FigureRow]:
        return self.among(parameters)

    def among(
        self, wanted: Mapping[str, Parameter], varied: Collection[str] = ()
    ) -> list[FigureRow]:
        """Rows with these parameters; `varied` may be anything, even if they are of an ablation."""
        unwanted = ABLATED - wanted.keys() - set(varied)
        return [
            row
            for row in self.rows
            if wanted.items() <= (found := dict(row.spec.parameters)).items()
            and not unwanted & found.keys()
        ]

    def one(self, **parameters: Parameter) -> FigureRow:
        rows = self.where(**parameters)
        if not rows:
            raise KeyError(f"no row with {parameters}")
        return rows[0]


@dataclass(frozen=True, slots=True)
class Judgement:
    measured: str
    verdict: JudgedAs
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says, in what size, and how it is judged."""

    text: str
    expected: str
    judge: Callable[[FigureTable], Judgement]
    # Ours and not the paper's: a gain beside it.
    is_ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines of a metric over a parameter, a line for each value of another; or bars, without x."""

    metric: str
    title: str
    label: str
    x: str | None = None
    x_label: str = ""
    # The parameter whose values are lines; bars are of all rows.
    lines: str = "system"
    # Rows with these parameters only; none of an ablation.
    only: tuple[tuple[str, Parameter], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    title: str
    paper: str
    runs: Callable[[float], Sequence[RunSpec]]
    claims: tuple[Claim, ...]
    metrics: tuple[str, ...]
    plots: tuple[Plot, ...]
    # Below this scale it means nothing, and why.
    scale_min: float = 0.01
    scale_min_reason: str = "there would be fewer than ten brokers"
    # What was taken where the paper is silent, and what to know when reading it.
    notes: tuple[str, ...] = field(default=())
