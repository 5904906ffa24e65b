"""How claims are judged, and what several of them share: gains, counts, and how they are said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.figures.figure import (
    Claim,
    FigureRow,
    FigureTable,
    JudgedAs,
    Judgement,
    Parameter,
)


def less_by(value: float, reference: float) -> float:
    """The share by which the value is below the reference; negative where it is above."""
    if not reference:
        return -math.inf if value > 0 else 0.0
    return 1.0 - value / reference


def by(gain: float) -> str:
    """Of `less_by`, in words."""
    if math.isinf(gain):
        return "more (the other has none)"
    return f"{percent(abs(gain))} {'less' if gain >= 0 else 'more'}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def judge_least(found: float, wanted: float, measured: str, reason: str) -> Judgement:
    """`holds` from the size of the claim on, `partly` in its direction."""
    if found >= wanted:
        return Judgement(measured, JudgedAs.HOLDS, reason)
    return Judgement(measured, JudgedAs.PARTLY if found > 0 else JudgedAs.FAILS, reason)


def judge_most(found: float, wanted: float, partly: float, measured: str, reason: str) -> Judgement:
    """`holds` up to the size of the claim, `partly` up to a larger one."""
    if found <= wanted:
        return Judgement(measured, JudgedAs.HOLDS, reason)
    return Judgement(measured, JudgedAs.PARTLY if found <= partly else JudgedAs.FAILS, reason)


def judge_count(found: int, total: int, measured: str, reason: str) -> Judgement:
    """`holds` if all do, `partly` if some do."""
    return judge_least(found / total, 1.0, measured, reason)


def least_of(table: FigureTable, metric: str, names: Sequence[str], **of: Parameter) -> FigureRow:
    """The best row of these systems."""
    return min((table.one(system=name, **of) for name in names), key=lambda row: row[metric])


def less_than(
    text: str,
    metric: str,
    wanted: float,
    names: Sequence[str],
    *,
    is_ours: bool = False,
    **varied: Parameter,
) -> Claim:
    """DYNATOPS has so much less of it than the best of others; `varied` is of an ablation."""

    def judge(table: FigureTable) -> Judgement:
        other, ours = least_of(table, metric, names), table.one(system="dynatops", **varied)
        gain = less_by(ours[metric], other[metric])
        reason = f"{ours[metric]:,.1f} against {other[metric]:,.1f} of {other.spec['system']}"
        return judge_least(gain, wanted, by(gain), reason)

    expected = f">= {percent(wanted)}" if wanted else "less"
    return Claim(text, expected, judge, is_ours or bool(varied))


def changed(
    text: str,
    metric: str,
    wanted: float,
    before: Mapping[str, Parameter],
    after: Mapping[str, Parameter],
) -> Claim:
    """Ours: one run has so much less of it than another."""

    def judge(table: FigureTable) -> Judgement:
        old, new = table.one(**before)[metric], table.one(**after)[metric]
        gain = less_by(new, old)
        return judge_least(gain, wanted, by(gain), f"{new:,.1f} against {old:,.1f}")

    return Claim(text, f">= {percent(wanted)}" if wanted else "less", judge, is_ours=True)


def refine_claim(metric: str, **parameters: Parameter) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        greedy = table.one(system="dynatops", **parameters)[metric]
        refined = table.one(system="dynatops-refine", **parameters)[metric]
        gain = less_by(refined, greedy)
        verdict = JudgedAs.HOLDS if gain > 0 else JudgedAs.FAILS
        reason = f"{refined:,.2f} against {greedy:,.2f}"
        return Judgement(f"{100 * gain:.1f}% less", verdict, reason)

    return Claim(f"`refine` gains over DYNATOPS-Greedy ({metric})", "> 0", judge, is_ours=True)
