"""DYNATOPS figures 5 and 6: the location workload."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from experiments.figures.figure import (
    Claim,
    Figure,
    FigureTable,
    JudgedAs,
    Judgement,
    Parameter,
    Plot,
    RunSpec,
    by,
    judge_least,
    less_by,
    percent,
)
from experiments.systems.catalogue import SYSTEMS

CLUSTER_SIZES = (1, 2, 5, 10, 20, 50)
CLUSTER_SIZE = 10
# T_update, for an ablation: the paper does not say it.
UPDATES_H = (1.0, 24.0)
FREE_H = 168.0
# For two clusters of 50 brokers, and of 10.
_SCALE_MIN_50, SCALE_MIN_10 = 0.1, 0.02
LOAD_WEIGHTS = (0.0, 0.3, 1.2, 4.8)
_OTHERS = ("bayeux-static", "bayeux-loc", "bayeux-pns", "geops")
_TAKEN = (
    "Taken where the paper is silent: T_free a week, T_update 6 hours, w_l 1.2 over the number of "
    "brokers of a cluster, w_d 1 with delays in hops, two publications of a user in an hour, on "
    "the topic of its cell."
)
_NOTES = (
    _TAKEN,
    "Below full scale, users and brokers shrink with the scale, and topics stay.",
)


def location_run(system: str, **parameters: Parameter) -> RunSpec:
    if SYSTEMS[system].rearranges:
        parameters.setdefault("t_free", FREE_H)
    return RunSpec.of("location", system=system, **parameters)


def _known(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in SYSTEMS]


# ---- fig5 ----------------------------------------------------------------------------------------


def _near(metric: str, wanted: float, slack: float) -> Claim:
    texts = {
        "single": "a third of all pairs of user and cell are visited once",
        "below_day": "half of all visits last less than a day",
        "above_week": "a tenth of all visits last over a week",
    }

    def judge(table: FigureTable) -> Judgement:
        found = table.one()[metric]
        verdict = JudgedAs.HOLDS if abs(found - wanted) <= slack else JudgedAs.FAILS
        return Judgement(percent(found), verdict, f"within {percent(slack)} of it counts as so")

    return Claim(texts[metric], percent(wanted), judge)


def _sizes(table: FigureTable) -> Judgement:
    row = table.one()
    visits, pairs = row["visits"], row["pairs"]
    ok = abs(visits / 450_000 - 1) < 0.1 and abs(pairs / 160_000 - 1) < 0.1
    text = f"{visits:,.0f} visits, {pairs:,.0f} pairs (scaled to full size)"
    return Judgement(text, JudgedAs.HOLDS if ok else JudgedAs.FAILS, "within 10% counts as so")


FIG5 = Figure(
    name="fig5",
    title="Statistics of the movement trace",
    paper="DYNATOPS fig. 5",
    runs=lambda scale: [RunSpec.of("visits")],
    claims=(
        Claim("450 K visits, 160 K pairs of user and cell", "450,000 and 160,000", _sizes),
        _near("single", 1 / 3, 0.03),
        _near("below_day", 0.5, 0.03),
        _near("above_week", 0.1, 0.02),
    ),
    metrics=("visits", "pairs", "single", "below_day", "above_week"),
    plots=(),
    notes=("The trace is made up: its generator was given these statistics.",),
)

# ---- fig6a ---------------------------------------------------------------------------------------


def _fig6a_runs(scale: float) -> list[RunSpec]:
    return [
        *(location_run(name) for name in _known(_OTHERS)),
        *(location_run("dynatops", c=c) for c in CLUSTER_SIZES),
        *(location_run("dynatops-shipped", c=c) for c in CLUSTER_SIZES),
        *(location_run(name, friends=0) for name in _known(_OTHERS)),
        location_run("dynatops", c=CLUSTER_SIZE, friends=0),
        *(location_run("dynatops-bs", c=CLUSTER_SIZE, update_h=hours) for hours in UPDATES_H),
    ]


def _less_without_friends(table: FigureTable) -> Judgement:
    rows = [row for row in table.where(friends=0) if row.spec["system"] in _OTHERS]
    other = min(rows, key=lambda row: row["management"])
    ours = table.one(system="dynatops", friends=0)
    gain = less_by(ours["management"], other["management"])
    text = f"{by(gain)} than {other.spec['system']}, at c = {CLUSTER_SIZE}"
    reason = (
        f"users follow their own cell alone; for trees {ours['management_trees']:,.0f} messages an "
        f"hour against {other['management_trees']:,.0f}"
    )
    return judge_least(gain, 0.4, text, reason)


def _updates(table: FigureTable) -> Judgement:
    often, seldom = (table.one(system="dynatops-bs", update_h=hours) for hours in UPDATES_H)
    gain = less_by(seldom["management"], often["management"])
    text = f"{by(gain)} at {UPDATES_H[1]:g} h than at {UPDATES_H[0]:g} h"
    reason = (
        f"within clusters {often['management_clusters']:,.0f} and "
        f"{seldom['management_clusters']:,.0f} messages an hour, for trees "
        f"{often['management_trees']:,.0f} and {seldom['management_trees']:,.0f}"
    )
    return judge_least(gain, 0.0, text, reason)


def _least_other(
    table: FigureTable, metric: str, names: Sequence[str] = _OTHERS
) -> tuple[str, float]:
    rows = [(name, row[metric]) for name in names for row in table.where(system=name)]
    if not rows:
        raise KeyError("no compared system")
    return min(rows, key=lambda pair: pair[1])


def _less_management(table: FigureTable) -> Judgement:
    table = table.without("friends", "update_h")
    other, least = _least_other(table, "management")
    row = min(table.where(system="dynatops"), key=lambda row: row["management"])
    gain = less_by(row["management"], least)
    text = f"{by(gain)} than {other}, at c = {row.spec['c']}"
    return judge_least(gain, 0.4, text, f"{row['management']:,.0f} against {least:,.0f} an hour")


def _falls_and_rises(table: FigureTable) -> Judgement:
    rows = table.without("friends").where(system="dynatops")
    rows.sort(key=lambda row: float(row.spec["c"]))
    values = [row["management"] for row in rows]
    least = values.index(min(values))
    falls, rises = least > 0, least < len(values) - 1
    verdict = JudgedAs.HOLDS if falls and rises else JudgedAs.PARTLY if falls else JudgedAs.FAILS
    trees = " to ".join(f"{rows[i]['management_trees']:,.0f}" for i in (0, -1))
    clusters = " to ".join(f"{rows[i]['management_clusters']:,.0f}" for i in (0, -1))
    reason = (
        f"from c = 1 to 50, messages for trees go from {trees}, within clusters from {clusters}"
    )
    return Judgement(f"least at c = {rows[least].spec['c']}", verdict, reason)


FIG6A = Figure(
    name="fig6a",
    title="Subscription management overhead and cluster size",
    paper="DYNATOPS fig. 6a",
    runs=_fig6a_runs,
    claims=(
        Claim("at least 40% less than the others", ">= 40%", _less_management),
        Claim(
            "falls with the cluster size, rises again near c = 50",
            "least in between",
            _falls_and_rises,
        ),
        Claim(
            "the same if users have no friends (ablation)", ">= 40%", _less_without_friends, True
        ),
        Claim("a longer T_update costs less (ablation)", "less", _updates, True),
    ),
    metrics=("management", "management_trees", "management_clusters", "broker_changes"),
    plots=(
        Plot(
            metric="management",
            title="Subscription management overhead",
            label="messages an hour",
            x="c",
            x_label="cluster size c",
            without=("friends", "update_h"),
        ),
    ),
    scale_min=_SCALE_MIN_50,
    scale_min_reason="there would be fewer than two clusters of 50 brokers",
    notes=_NOTES,
)

# ---- fig6b ---------------------------------------------------------------------------------------


def _fig6b_runs(scale: float) -> list[RunSpec]:
    return [
        location_run("dynatops-bs", c=c, w_l=w, deliveries=0)
        for c in CLUSTER_SIZES[1:]
        for w in LOAD_WEIGHTS
    ]


def _weight_repairs(table: FigureTable) -> Judgement:
    worst = 0
    gains = []
    for c in CLUSTER_SIZES[1:]:
        stds = [table.one(c=c, w_l=w)["load_std_share"] for w in LOAD_WEIGHTS]
        worst += stds[0] >= max(stds)
        gains.append(less_by(min(stds[1:]), stds[0]))
    all_worst = worst == len(gains)
    verdict = (
        JudgedAs.HOLDS
        if all_worst and gains[-1] >= 0.3
        else JudgedAs.PARTLY
        if worst and gains[-1] > 0
        else JudgedAs.FAILS
    )
    text = (
        f"w_l = 0 is worst at {worst} of {len(gains)} sizes; at c = 50 weights take "
        f"{percent(gains[-1])} off"
    )
    return Judgement(text, verdict, "'greatly improved' is taken as 30% off at c = 50")


FIG6B = Figure(
    name="fig6b",
    title="Balance of load",
    paper="DYNATOPS fig. 6b",
    runs=_fig6b_runs,
    claims=(
        Claim(
            "w_l = 0 is worst, above all in large clusters; the weight of load repairs it",
            "w_l = 0 worst",
            _weight_repairs,
        ),
    ),
    metrics=("load_std", "load_std_share"),
    plots=(
        Plot(
            metric="load_std_share",
            title="Standard deviation of broker load",
            label="share of the mean load",
            x="c",
            x_label="cluster size c",
            lines="w_l",
        ),
    ),
    scale_min=_SCALE_MIN_50,
    scale_min_reason="there would be fewer than two clusters of 50 brokers",
    notes=("w_l is said times the number of brokers of a cluster, as in the product.",),
)

# ---- fig6c ---------------------------------------------------------------------------------------


def _fewer_handovers(table: FigureTable) -> Judgement:
    reference = table.one(system="geops")["handovers"]
    rows = table.where(system="dynatops")
    row = min(rows, key=lambda row: row["handovers"])
    gain = less_by(row["handovers"], reference)
    default = less_by(table.one(system="dynatops", c=CLUSTER_SIZE)["handovers"], reference)
    text = f"{percent(gain)} fewer at c = {row.spec['c']}, {percent(default)} at c = 10"
    reason = "a user that leaves the area of its cluster is handed over, and most journeys do"
    return judge_least(gain, 0.9, text, reason)


FIG6C = Figure(
    name="fig6c",
    title="User handovers",
    paper="DYNATOPS fig. 6c",
    runs=lambda scale: [
        *(location_run(name) for name in _known(("geops", "bayeux-loc"))),
        *(location_run("dynatops", c=c) for c in CLUSTER_SIZES),
        *(location_run("dynatops-shipped", c=c) for c in CLUSTER_SIZES),
    ],
    claims=(Claim("over 90% fewer handovers than GeoPS", "> 90%", _fewer_handovers),),
    metrics=("handovers",),
    scale_min=_SCALE_MIN_50,
    scale_min_reason="there would be fewer than two clusters of 50 brokers",
    plots=(
        Plot(
            metric="handovers",
            title="Users handed over",
            label="handovers an hour",
            x="c",
            x_label="cluster size c",
        ),
    ),
    notes=_NOTES,
)

# ---- fig6d, fig6e --------------------------------------------------------------------------------

_DELIVERING = (
    *_OTHERS,
    "dynatops-bs",
    "dynatops-bnr",
    "dynatops",
    "dynatops-refine",
    "dynatops-shipped",
)


def _delivery_runs(scale: float) -> list[RunSpec]:
    runs = []
    for name in _known(_DELIVERING):
        has_clusters = name.startswith("dynatops") and name != "dynatops-bnr"
        runs.append(location_run(name, c=CLUSTER_SIZE) if has_clusters else location_run(name))
    return runs


def _against(metric: str, system: str, names: Sequence[str], wanted: float, title: str) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        other, least = _least_other(table, metric, names)
        ours = table.one(system=system)[metric]
        gain = less_by(ours, least)
        reason = f"{ours:,.1f} against {least:,.1f} of {other}, the best of them"
        return judge_least(gain, wanted, f"{by(gain)}", reason)

    return Claim(f"at least {percent(wanted)} less than {title}", f">= {percent(wanted)}", judge)


def refine_claim(metric: str, **parameters: Parameter) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        greedy = table.one(system="dynatops", **parameters)[metric]
        refined = table.one(system="dynatops-refine", **parameters)[metric]
        gain = less_by(refined, greedy)
        text = f"{100 * gain:.1f}% less"
        verdict = JudgedAs.HOLDS if gain > 0 else JudgedAs.FAILS
        return Judgement(text, verdict, f"{refined:,.2f} against {greedy:,.2f}")

    return Claim("`refine` gains over DYNATOPS-Greedy", "> 0", judge, is_ours=True)


_BAYEUX = ("bayeux-static", "bayeux-loc", "bayeux-pns")

FIG6D = Figure(
    name="fig6d",
    title="Notification delay",
    paper="DYNATOPS fig. 6d",
    runs=_delivery_runs,
    claims=(
        _against("delay", "dynatops", _BAYEUX, 0.6, "Bayeux"),
        _against("delay", "dynatops", ("geops",), 0.3, "GeoPS"),
        refine_claim("delay"),
    ),
    metrics=("delay", "delay_overlay"),
    scale_min=SCALE_MIN_10,
    scale_min_reason="there would be fewer than two clusters of 10 brokers",
    plots=(Plot(metric="delay", title="Notification delay", label="ms of round trips"),),
    notes=_NOTES,
)
FIG6E = Figure(
    name="fig6e",
    title="Notification overhead",
    paper="DYNATOPS fig. 6e",
    runs=_delivery_runs,
    claims=(
        _against("overhead", "dynatops", _BAYEUX, 0.4, "Bayeux"),
        _against("overhead", "dynatops", ("geops",), 0.2, "GeoPS"),
        refine_claim("overhead"),
    ),
    metrics=("overhead", "overhead_spread", "subscriptions_held", "greatest_degree"),
    scale_min=SCALE_MIN_10,
    scale_min_reason="there would be fewer than two clusters of 10 brokers",
    plots=(Plot(metric="overhead", title="Notification overhead", label="messages an event"),),
    notes=_NOTES,
)

# ---- fig6f ---------------------------------------------------------------------------------------


def _improves(metric: str) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        rows = sorted(table.where(system="dynatops"), key=lambda row: float(row.spec["c"]))
        values = [row[metric] for row in rows]
        gain = less_by(values[-1], values[0])
        steps = sum(b < a for a, b in pairwise(values))
        all_steps = steps == len(values) - 1
        verdict = JudgedAs.HOLDS if all_steps else JudgedAs.PARTLY if gain > 0 else JudgedAs.FAILS
        text = f"{by(gain)} at c = {rows[-1].spec['c']} than at c = 1"
        return Judgement(text, verdict, f"it falls in {steps} of {len(values) - 1} steps")

    return Claim(f"{metric} improves with the cluster size", "falls with c", judge)


FIG6F = Figure(
    name="fig6f",
    title="Delay and overhead, and cluster size",
    paper="DYNATOPS fig. 6f",
    runs=lambda scale: [location_run("dynatops", c=c) for c in CLUSTER_SIZES],
    claims=(_improves("delay"), _improves("overhead")),
    metrics=("delay", "overhead"),
    scale_min=_SCALE_MIN_50,
    scale_min_reason="there would be fewer than two clusters of 50 brokers",
    plots=tuple(
        Plot(metric=metric, title=title, label=label, x="c", x_label="cluster size c")
        for metric, title, label in (
            ("delay", "Notification delay", "ms of round trips"),
            ("overhead", "Notification overhead", "messages an event"),
        )
    ),
    notes=_NOTES,
)

FIGURES = (FIG5, FIG6A, FIG6B, FIG6C, FIG6D, FIG6E, FIG6F)
