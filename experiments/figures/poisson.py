"""DYNATOPS figures 7 to 9: the Poisson workload, and T_free."""

from __future__ import annotations

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
from experiments.figures.location import CLUSTER_SIZE as LOCATION_CLUSTER_SIZE
from experiments.figures.location import SCALE_MIN_10, location_run, refine_claim
from experiments.systems.catalogue import SYSTEMS

RATES = (0.025, 0.05, 0.1, 0.2)
FAST = RATES[-1]
RATE = 0.1
FREE_H = 10.0
CLUSTER_SIZE = 5
PATTERNS = ("uniform", "zipf", "multimodal")
SHARES_OF_CHANGES = (0.05, 1.0)
_OTHERS = ("bayeux-static", "tco")
_COMPARED = (
    *_OTHERS,
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
_NOTES = (
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


def _known() -> list[str]:
    return [name for name in _COMPARED if name in SYSTEMS]


def _rate_runs(scale: float) -> list[RunSpec]:
    return [poisson_run(name, rate) for name in _known() for rate in RATES]


def _others(table: FigureTable, metric: str, rate: float) -> tuple[str, float]:
    found = [(n, r[metric]) for n in _OTHERS for r in table.where(system=n, rate=rate)]
    if not found:
        raise KeyError("no compared system")
    return min(found, key=lambda pair: pair[1])


def _less_at_every_rate(metric: str, wanted: float, text: str) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        table = table.without("mode_changes")
        gains = []
        for rate in RATES:
            _, least = _others(table, metric, rate)
            ours = table.one(system="dynatops", rate=rate, t_free=FREE_H, c=CLUSTER_SIZE)
            gains.append(less_by(ours[metric], least))
        text = f"{by(min(gains))} to {by(max(gains))}"
        mean = sum(gains) / len(gains)
        reason = f"{by(mean)} on average over the rates, against the better of the others"
        return judge_least(mean, wanted, text, reason)

    return Claim(text, f">= {percent(wanted)}", judge)


def _less_than_chord(metric: str) -> Claim:
    """Whether it is the overlay that decides: Tapestry's routes go by digits, Chord's by bits."""

    def judge(table: FigureTable) -> Judgement:
        gains = []
        for rate in RATES:
            chord = table.one(system="chord-static", rate=rate)[metric]
            gains.append(less_by(table.one(system="dynatops", rate=rate)[metric], chord))
        mean = sum(gains) / len(gains)
        text = f"{by(min(gains))} to {by(max(gains))}"
        return judge_least(mean, 0.1, text, f"{by(mean)} on average over the rates")

    title = f"less {metric} than Chord with users by chance and nobody moved (ablation)"
    return Claim(title, ">= 10%", judge, is_ours=True)


def _rate_plot(metric: str, title: str, label: str) -> Plot:
    return Plot(
        metric=metric,
        title=title,
        label=label,
        x="rate",
        x_label="changes of a user in an hour",
        without=("mode_changes",),
    )


def _fig7a_runs(scale: float) -> list[RunSpec]:
    ablation = [
        poisson_run(name, RATE, mode_changes=share)
        for name in ("bayeux-static", "dynatops")
        if name in SYSTEMS
        for share in SHARES_OF_CHANGES
    ]
    return [*_rate_runs(scale), *ablation]


def _when_modes_change(table: FigureTable) -> Judgement:
    gains = []
    for share in SHARES_OF_CHANGES:
        other = table.one(system="bayeux-static", mode_changes=share)["broker_changes"]
        ours = table.one(system="dynatops", mode_changes=share)["broker_changes"]
        gains.append(less_by(ours, other))
    pairs = zip(SHARES_OF_CHANGES, gains, strict=True)
    text = ", ".join(f"{percent(share)} of changes: {percent(gain)} fewer" for share, gain in pairs)
    verdict = (
        JudgedAs.HOLDS
        if min(gains) >= 0.8
        else JudgedAs.PARTLY
        if min(gains) > 0
        else JudgedAs.FAILS
    )
    return Judgement(text, verdict, "a user that takes up another mode goes to another broker")


FIG7A = Figure(
    name="fig7a",
    title="Brokers' subscription changes and the rate of change",
    paper="DYNATOPS fig. 7a",
    runs=_fig7a_runs,
    claims=(
        _less_at_every_rate("broker_changes", 0.8, "80% fewer subscription changes of brokers"),
        Claim(
            "the same if users take up other modes (ablation)",
            ">= 80%",
            _when_modes_change,
            is_ours=True,
        ),
    ),
    metrics=("broker_changes", "user_changes", "management", "handovers", "load_std_share"),
    plots=(_rate_plot("broker_changes", "Subscription changes of brokers", "changes an hour"),),
    notes=_NOTES,
)
FIG7B = Figure(
    name="fig7b",
    title="Notification delay and the rate of change",
    paper="DYNATOPS fig. 7b",
    runs=_rate_runs,
    claims=(
        _less_at_every_rate("delay", 0.1, "10% less delay"),
        _less_than_chord("delay"),
        refine_claim("delay", rate=RATE),
    ),
    metrics=("delay",),
    plots=(_rate_plot("delay", "Notification delay", "hops"),),
    notes=_NOTES,
)
FIG7C = Figure(
    name="fig7c",
    title="Notification overhead and the rate of change",
    paper="DYNATOPS fig. 7c",
    runs=_rate_runs,
    claims=(
        _less_at_every_rate("overhead", 0.5, "over 50% less overhead"),
        _less_than_chord("overhead"),
        refine_claim("overhead", rate=RATE),
    ),
    metrics=("overhead", "overhead_spread", "subscriptions_held"),
    plots=(_rate_plot("overhead", "Notification overhead", "messages an event"),),
    notes=_NOTES,
)


def _less_reconfiguration(table: FigureTable) -> Judgement:
    other = table.one(system="tco", rate=FAST)["reconfiguration"]
    ours = table.one(system="dynatops", rate=FAST)["reconfiguration"]
    gain = less_by(ours, other)
    least = table.one(system="tco-least", rate=FAST)["reconfiguration"]
    reason = (
        f"{ours:,.0f} messages an hour against {other:,.0f} links changed, at {FAST} changes of a "
        f"user an hour; {least:,.0f} if only links of changed brokers are found anew (ablation)"
    )
    return judge_least(gain, 0.9, f"{by(gain)}", reason)


FIG7D = Figure(
    name="fig7d",
    title="Reconfiguration overhead and the rate of change",
    paper="DYNATOPS fig. 7d",
    runs=_rate_runs,
    claims=(
        Claim("over 90% less than TCO when users change fast", "> 90%", _less_reconfiguration),
    ),
    metrics=("reconfiguration", "reconfigurations", "greatest_degree"),
    plots=(_rate_plot("reconfiguration", "Reconfiguration overhead", "messages an hour"),),
    notes=(*_NOTES, "Of TCO, links changed; of DYNATOPS, the bound of eq. 11."),
)

# ---- fig8 ----------------------------------------------------------------------------------------


def _best_under_all(metric: str) -> Claim:
    def judge(table: FigureTable) -> Judgement:
        gains = {}
        for pattern in PATTERNS:
            rows = [r for n in _OTHERS for r in table.where(system=n, pattern=pattern)]
            if not rows:
                raise KeyError("no compared system")
            ours = table.one(system="dynatops", pattern=pattern)[metric]
            gains[pattern] = less_by(ours, min(row[metric] for row in rows))
        best = sum(gain > 0 for gain in gains.values())
        verdict = (
            JudgedAs.HOLDS if best == len(gains) else JudgedAs.PARTLY if best else JudgedAs.FAILS
        )
        text = ", ".join(f"{pattern} {by(gain)}" for pattern, gain in gains.items())
        return Judgement(text, verdict, f"best under {best} of {len(gains)}")

    return Claim(f"the least {metric} under all patterns", "least", judge)


FIG8 = Figure(
    name="fig8",
    title="Delay and overhead under three patterns",
    paper="DYNATOPS fig. 8",
    runs=lambda scale: [poisson_run(n, RATE, pattern) for n in _known() for pattern in PATTERNS],
    claims=(
        _best_under_all("delay"),
        _best_under_all("overhead"),
        refine_claim("delay", pattern="multimodal"),
        refine_claim("overhead", pattern="multimodal"),
    ),
    metrics=("delay", "overhead", "broker_changes", "greatest_degree"),
    plots=tuple(
        Plot(metric=metric, title=title, label=label, x="pattern", x_label="pattern")
        for metric, title, label in (
            ("delay", "Notification delay", "hops"),
            ("overhead", "Notification overhead", "messages an event"),
        )
    ),
    notes=_NOTES,
)

# ---- fig9 ----------------------------------------------------------------------------------------

_POISSON_FREE_H = (5.0, 10.0, 25.0, 50.0)
_LOCATION_FREE_H = (84.0, 168.0, 336.0, 672.0)
_SLOW = 0.025


def _fig9_runs(scale: float) -> list[RunSpec]:
    return [
        *(poisson_run("dynatops", _SLOW, t_free=free_h) for free_h in _POISSON_FREE_H),
        *(
            location_run("dynatops", c=LOCATION_CLUSTER_SIZE, t_free=free_h)
            for free_h in _LOCATION_FREE_H
        ),
    ]


def _ends(table: FigureTable, metric: str) -> list[tuple[float, float]]:
    """Of both workloads: at the shortest and at the longest T_free."""
    ends = []
    for times in (_POISSON_FREE_H, _LOCATION_FREE_H):
        first, last = (table.one(t_free=free_h)[metric] for free_h in (times[0], times[-1]))
        ends.append((first, last))
    return ends


def _slightly_worse(table: FigureTable) -> Judgement:
    growths = [
        last / first - 1 for metric in ("delay", "overhead") for first, last in _ends(table, metric)
    ]
    verdict = (
        JudgedAs.HOLDS
        if max(growths) <= 0.1
        else JudgedAs.PARTLY
        if max(growths) <= 0.25
        else JudgedAs.FAILS
    )
    text = f"{percent(min(growths))} to {percent(max(growths))} more"
    return Judgement(text, verdict, "'slightly' is taken as 10% at most")


def _far_fewer(table: FigureTable) -> Judgement:
    gains = [less_by(last, first) for first, last in _ends(table, "reconfiguration")]
    text = " and ".join(f"{percent(gain)} fewer" for gain in gains)
    return judge_least(min(gains), 0.5, text, "Poisson and location; 'far' is taken as half")


FIG9 = Figure(
    name="fig9",
    title="The reconfiguration free period",
    paper="DYNATOPS fig. 9",
    runs=_fig9_runs,
    claims=(
        Claim("notifications degrade slightly with T_free", "<= 10% more", _slightly_worse),
        Claim("far fewer messages of reconfigurations", ">= 50% fewer", _far_fewer),
    ),
    metrics=("delay", "overhead", "reconfiguration", "reconfigurations"),
    scale_min=SCALE_MIN_10,
    scale_min_reason="there would be fewer than two clusters of 10 brokers",
    plots=tuple(
        Plot(
            metric=metric,
            title=f"{title} ({workload})",
            label=label,
            x="t_free",
            x_label="T_free, hours",
            only=(("rate", _SLOW),) if workload == "Poisson" else (("c", LOCATION_CLUSTER_SIZE),),
        )
        for workload in ("Poisson", "location")
        for metric, title, label in (
            ("overhead", "Notification overhead", "messages an event"),
            ("reconfiguration", "Reconfiguration overhead", "messages an hour"),
        )
    ),
    notes=_NOTES,
)

FIGURES = (FIG7A, FIG7B, FIG7C, FIG7D, FIG8, FIG9)
