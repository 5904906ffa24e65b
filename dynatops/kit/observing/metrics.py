"""Figures for Prometheus, declared once: what is exposed and what is documented are one table.

    SESSIONS = gauge("dynatops_broker_sessions", "Sessions.", lambda agent: len(agent.sessions))
    render(metric.of(agent) for metric in METRICS)

Nothing is kept here but histograms: a figure is read, when somebody asks, from what its owner
counts anyway. Names end in their unit; counters in `_total`. Labels have few values, all known in
advance: never a topic, a client or an address.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    # Of a histogram's parts.
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]


class Histogram:
    """How often values lay below each bound. A few additions for a value, so that it can be told of
    every batch; never of every event."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        # Between bounds; the last one is above all of them.
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += times * value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            below += count
            yield Sample(below, {**labels, "le": _number(bound)}, "_bucket")
        yield Sample(self.sum, labels, "_sum")
        yield Sample(below, labels, "_count")


# What a reader answers: a number, a histogram, or one of these for each value of the label (or each
# combination of values, where there are several labels).
One = float | Histogram
Reading = (
    One | Mapping[str, One] | Mapping[tuple[str, str], One] | Mapping[tuple[str, str, str], One]
)


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """One name: what it means, and where its value is found."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Source], Reading]
    labels: tuple[str, ...] = ()

    def of(self, source: Source) -> Family:
        reading = self.read(source)
        if isinstance(reading, Mapping):
            samples = [
                sample for values, one in reading.items() for sample in self._samples(values, one)
            ]
        else:
            samples = self._samples((), reading)
        return Family(self.name, self.kind, self.help, tuple(samples))

    def _samples(self, values: str | tuple[str, ...], one: One) -> list[Sample]:
        values = (values,) if isinstance(values, str) else values
        labels = dict(zip(self.labels, values, strict=True))
        return list(one.samples(labels)) if isinstance(one, Histogram) else [Sample(one, labels)]


def gauge(name: str, text: str, read: Callable[[Source], Reading], *labels: str) -> Metric[Source]:
    return Metric(name, "gauge", text, read, labels)


def counter(
    name: str, text: str, read: Callable[[Source], Reading], *labels: str
) -> Metric[Source]:
    return Metric(name, "counter", text, read, labels)


def histogram(
    name: str, text: str, read: Callable[[Source], Reading], *labels: str
) -> Metric[Source]:
    return Metric(name, "histogram", text, read, labels)


def counters_of(
    kind: type[Any], prefix: str, find: Callable[[Source], Any], *, but: Iterable[str] = ()
) -> list[Metric[Source]]:
    """A metric for each counter of a dataclass whose fields say what they count."""

    def one(name: str, text: str) -> Metric[Source]:
        return counter(f"{prefix}{name}_total", text, lambda source: getattr(find(source), name))

    left_out = frozenset(but)
    return [one(f.name, f.metadata["doc"]) for f in fields(kind) if f.name not in left_out]


def one_of(names: Iterable[str], present: str) -> dict[str, float]:
    """A state as Prometheus likes it: each value a series, 1 for the one that it is."""
    return {name: float(name == present) for name in names}


def families(metrics: Iterable[Metric[Source]], source: Source) -> list[Family]:
    return [metric.of(source) for metric in metrics]


# ---- text ----------------------------------------------------------------------------------------


def render(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {help_text}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
        name = family.name + sample.suffix
        yield f"{name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
