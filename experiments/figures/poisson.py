"""Runs and claims of DYNATOPS figures 7 to 9: the Poisson workload, and T_free."""

from __future__ import annotations

from experiments.figures.figure import Claim, FigureTable, Judgement, Parameter, RunSpec
from experiments.figures.judging import (
    by,
    judge_count,
    judge_least,
    judge_most,
    least_of,
    less_by,
    mean,
    percent,
)
from experiments.figures.location import CLUSTER_SIZE as LOCATION_CLUSTER_SIZE
from experiments.figures.location import location_run
from experiments.systems.catalogue import SYSTEMS

RATES = (0.025, 0.05, 0.1, 0.2)
FAST = RATES[-1]
RATE = 0.1
SLOW = RATES[0]
FREE_H = 10.0
CLUSTER_SIZE = 5
PATTERNS = ("uniform", "zipf", "multimodal")
SHARES_OF_CHANGES = (0.05, 1.0)
OTHERS = ("bayeux-static", "tco")
_COMPARED = (
    *OTHERS,
    "tco-least",
    "chord-static",
    "dynatops",
    "dynatops-refine",
    "dynatops-shipped",
)
_TAKEN = (
    "Taken where the paper is silent: a change replaces a topic by another of the user's mode, "
    "sigma 1, T_free 10 hours, clusters of 5 drawn by chance, T_update 6 hours, 100 events an hour "
    "on each topic by any users."
)
NOTES = (
    _TAKEN,
    "Below full scale, users shrink with the scale, and brokers and topics with its square root.",
)


def poisson_run(
    system: str, rate: float, pattern: str = "multimodal", **parameters: Parameter
) -> RunSpec:
    kind = SYSTEMS[system]
    if kind.rearranges:
        parameters.setdefault("t_free", FREE_H)
    if system.startswith("dynatops") and system != "dynatops-bnr":
        parameters.setdefault("c", CLUSTER_SIZE)
    return RunSpec.of("poisson", system=system, rate=rate, pattern=pattern, **parameters)


# ---- fig7 ----------------------------------------------------------------------------------------


def rate_runs(scale: float) -> list[RunSpec]:
    return [poisson_run(name, rate) for name in _COMPARED for rate in RATES]


def change_runs(scale: float) -> list[RunSpec]:
    return [
        *rate_runs(scale),
        *(poisson_run("dynatops", rate, itself=0) for rate in RATES),
        *(poisson_run("dynatops", rate, w_l=0.0) for rate in RATES),
        *(
            poisson_run(name, RATE, mode_changes=share)
            for name in ("bayeux-static", "dynatops")
            for share in SHARES_OF_CHANGES
        ),
    ]


# How TCO is mended, which DYNATOPS says in half a sentence.
_TCO = {
    "tco-least": "if only links of changed brokers are found anew",
    "tco-no-bulk": "if no broker is bulk",
    "tco-represented": "if parts have representatives besides",
    "tco-often": "if it is mended several times an hour",
}


def overhead_runs(scale: float) -> list[RunSpec]:
    return [*rate_runs(scale), poisson_run("tco-flooding", RATE)]


def reconfiguration_runs(scale: float) -> list[RunSpec]:
    return [*rate_runs(scale), *(poisson_run(name, FAST) for name in _TCO if name not in _COMPARED)]


def less_at_rates(text: str, metric: str, wanted: float, *names: str, **of: Parameter) -> Claim:
    """On average over the rates, against the best of these systems, else of the paper's others."""

    def judge(table: FigureTable) -> Judgement:
        gains = []
        for rate in RATES:
            other = least_of(table, metric, names or OTHERS, rate=rate)
            ours = table.one(system="dynatops", rate=rate, **of)
            gains.append(less_by(ours[metric], other[metric]))
        average = mean(gains)
        reason = f"{by(average)} on average over the rates, against the best of the others"
        return judge_least(average, wanted, f"{by(min(gains))} to {by(max(gains))}", reason)

    return Claim(text, f">= {percent(wanted)}", judge, is_ours=bool(names or of))


def less_than_chord(metric: str) -> Claim:
    """Whether it is the overlay that decides: Tapestry's routes go by digits, Chord's by bits."""
    text = f"less {metric} than Chord with users by chance and nobody moved (ablation)"
    return less_at_rates(text, metric, 0.1, "chord-static")


def when_modes_change(table: FigureTable) -> Judgement:
    gains = []
    for share in SHARES_OF_CHANGES:
        other = table.one(system="bayeux-static", mode_changes=share)["broker_changes"]
        ours = table.one(system="dynatops", mode_changes=share)["broker_changes"]
        gains.append(less_by(ours, other))
    pairs = zip(SHARES_OF_CHANGES, gains, strict=True)
    text = ", ".join(f"{percent(share)} of changes: {by(gain)}" for share, gain in pairs)
    reason = "a user that takes up another mode goes to another broker"
    return judge_least(min(gains), 0.8, text, reason)


def less_reconfiguration(table: FigureTable) -> Judgement:
    ours, other = (
        table.one(system=name, rate=FAST)["reconfiguration"] for name in ("dynatops", "tco")
    )
    gain = less_by(ours, other)
    reason = (
        f"{ours:,.0f} messages an hour against {other:,.0f} links changed, at {FAST} changes of a "
        "user an hour"
    )
    return judge_least(gain, 0.9, by(gain), reason)


def less_than_any_tco(table: FigureTable) -> Judgement:
    """Against the one that costs most."""
    ours = table.one(system="dynatops", rate=FAST)["reconfiguration"]
    others = {name: table.one(system=name, rate=FAST)["reconfiguration"] for name in _TCO}
    gain = less_by(ours, max(others.values()))
    reason = ", ".join(f"{others[name]:,.0f} {how}" for name, how in _TCO.items())
    return judge_least(gain, 0.9, by(gain), reason)


# ---- fig8 ----------------------------------------------------------------------------------------


def pattern_runs(scale: float) -> list[RunSpec]:
    return [poisson_run(name, RATE, pattern) for name in _COMPARED for pattern in PATTERNS]


def best_under_all(metric: str) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        gains = {}
        for pattern in PATTERNS:
            other = least_of(table, metric, OTHERS, pattern=pattern)
            ours = table.one(system="dynatops", pattern=pattern)
            gains[pattern] = less_by(ours[metric], other[metric])
        best = sum(gain > 0 for gain in gains.values())
        text = ", ".join(f"{pattern} {by(gain)}" for pattern, gain in gains.items())
        return judge_count(best, len(gains), text, f"best under {best} of {len(gains)}")

    return Claim(f"the least {metric} under all patterns", "least", judge)


# ---- fig9 ----------------------------------------------------------------------------------------

_POISSON_FREE_H = (5.0, 10.0, 25.0, 50.0)
_LOCATION_FREE_H = (84.0, 168.0, 336.0, 672.0)


def free_period_runs(scale: float) -> list[RunSpec]:
    return [
        *(poisson_run("dynatops", SLOW, t_free=free_h) for free_h in _POISSON_FREE_H),
        *(
            location_run("dynatops", c=LOCATION_CLUSTER_SIZE, t_free=free_h)
            for free_h in _LOCATION_FREE_H
        ),
    ]


def _ends(table: FigureTable, metric: str) -> list[tuple[float, float]]:
    """Of both workloads: at the shortest and at the longest T_free."""
    return [
        (table.one(t_free=times[0])[metric], table.one(t_free=times[-1])[metric])
        for times in (_POISSON_FREE_H, _LOCATION_FREE_H)
    ]


def slightly_worse(table: FigureTable) -> Judgement:
    growths = [
        last / first - 1 for metric in ("delay", "overhead") for first, last in _ends(table, metric)
    ]
    text = f"{percent(min(growths))} to {percent(max(growths))} more"
    return judge_most(max(growths), 0.1, 0.25, text, "'slightly' is taken as 10% at most")


def far_fewer(table: FigureTable) -> Judgement:
    gains = [less_by(last, first) for first, last in _ends(table, "reconfiguration")]
    text = " and ".join(f"{percent(gain)} fewer" for gain in gains)
    return judge_least(min(gains), 0.5, text, "Poisson and location; 'far' is taken as half")


def fewer_of_them(table: FigureTable) -> Judgement:
    """Whether it is how often that does not fall, or what is sent each time."""
    counts, sizes = _ends(table, "reconfigurations"), _ends(table, "reconfiguration")
    gains = [less_by(last, first) for first, last in counts]
    # Messages an hour, so that the same hours are in both.
    each = [
        [sent / count if count else 0.0 for sent, count in zip(*ends, strict=True)]
        for ends in zip(sizes, counts, strict=True)
    ]
    text = " and ".join(f"{percent(gain)} fewer" for gain in gains)
    grown = " and ".join(by(less_by(last, first)) for first, last in each)
    return judge_least(min(gains), 0.5, text, f"but {grown} messages for each")
