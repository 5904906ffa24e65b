"""DYNATOPS figure 10, table II and equation 11: what placements save, take to find, and cost."""

from __future__ import annotations

from experiments.figures.figure import (
    Claim,
    Figure,
    FigureTable,
    JudgedAs,
    Judgement,
    Plot,
    RunSpec,
    less_by,
    percent,
)

_FIXED = 100
_BROKERS = (10, 20, 50, 100, 200, 500, 1000)
_TOPICS = (50, 100, 200, 500, 1000, 2000, 5000)
_PATTERNS = ("uniform", "multimodal")


def _up_to(sizes: tuple[int, ...], scale: float) -> list[int]:
    """At a smaller scale, the smaller sizes."""
    return [size for size in sizes if size <= max(_FIXED, sizes[-1] * scale)]


def _fig10_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("saving", brokers=brokers, topics=topics, pattern=pattern)
        for pattern in _PATTERNS
        for brokers, topics in [
            *((size, _FIXED) for size in _up_to(_BROKERS, scale)),
            *((_FIXED, size) for size in _up_to(_TOPICS, scale) if size != _FIXED),
        ]
    ]


def _always_positive(table: FigureTable) -> Judgement:
    metrics = ("overhead_saved", "delay_saved")
    least = {metric: min(table.rows, key=lambda row: row[metric]) for metric in metrics}
    ok = sum(row[metric] > 0 for row in table.rows for metric in metrics)
    total = len(metrics) * len(table.rows)
    text = "; ".join(
        f"{metric.replace('_', ' ')} at least {percent(row[metric])} "
        f"({row.spec['brokers']} brokers, {row.spec['topics']} topics, {row.spec['pattern']})"
        for metric, row in least.items()
    )
    verdict = JudgedAs.HOLDS if ok == total else JudgedAs.PARTLY if ok else JudgedAs.FAILS
    return Judgement(text, verdict, f"{ok} of {total} figures are positive")


def _larger_for_modes(table: FigureTable) -> Judgement:
    wins = count = 0
    for row in table.where(pattern="uniform"):
        other = table.one(
            brokers=row.spec["brokers"], topics=row.spec["topics"], pattern="multimodal"
        )
        wins += other["saved"] > row["saved"]
        count += 1
    verdict = JudgedAs.HOLDS if wins == count else JudgedAs.PARTLY if wins else JudgedAs.FAILS
    return Judgement(f"larger at {wins} of {count} sizes", verdict, "by SSBR cost, w_d = 1")


def _refine_saves(table: FigureTable) -> Judgement:
    gains = [less_by(1 - row["refine_saved"], 1 - row["saved"]) for row in table.rows]
    text = f"{percent(min(gains))} to {percent(max(gains))} less cost than DYNATOPS-Greedy's"
    verdict = JudgedAs.HOLDS if min(gains) >= 0 else JudgedAs.FAILS
    return Judgement(text, verdict, f"{percent(sum(gains) / len(gains))} on average")


FIG10 = Figure(
    name="fig10",
    title="Savings over consistent hashing",
    paper="DYNATOPS fig. 10",
    runs=_fig10_runs,
    claims=(
        Claim("always positive", "> 0 everywhere", _always_positive),
        Claim("larger for multimodal subscriptions", "M > U everywhere", _larger_for_modes),
        Claim("`refine` gains over DYNATOPS-Greedy", "> 0", _refine_saves, is_ours=True),
    ),
    metrics=("overhead_saved", "delay_saved", "saved", "refine_saved"),
    plots=(
        Plot(
            metric="saved",
            title="SSBR cost saved by DYNATOPS-Greedy, 100 topics",
            label="share of the cost of consistent hashing",
            x="brokers",
            x_label="brokers",
            lines="pattern",
            only=(("topics", _FIXED),),
        ),
        Plot(
            metric="saved",
            title="SSBR cost saved by DYNATOPS-Greedy, 100 brokers",
            label="share of the cost of consistent hashing",
            x="topics",
            x_label="topics",
            lines="pattern",
            only=(("brokers", _FIXED),),
        ),
    ),
    scale_min=0.01,
    scale_min_reason="sizes up to 100 are the least there are",
    notes=(
        "From a bootstrap by hashes moving costs nothing: DYNATOPS-Greedy is its first step.",
        "A broker has a tenth of the topics on average, 100 at most: the paper is silent.",
    ),
)

# ---- table2 --------------------------------------------------------------------------------------

_PAPER_SECONDS = {
    (10, 100): 0.028,
    (100, 100): 0.184,
    (1000, 100): 96.0,
    (100, 50): 0.098,
    (100, 500): 0.502,
    (100, 5000): 1.9,
}


def _table2_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("greedy-time", brokers=brokers, topics=topics, pattern="multimodal")
        for brokers, topics in _PAPER_SECONDS
        if brokers <= max(_FIXED, 1000 * scale) and topics <= max(500, 5000 * scale)
    ]


def _as_quick(table: FigureTable) -> Judgement:
    ratios = []
    for row in table.rows:
        paper_s = _PAPER_SECONDS[int(row.spec["brokers"]), int(row.spec["topics"])]
        ratios.append(row["seconds"] / paper_s)
    ok = sum(ratio <= 1 for ratio in ratios)
    verdict = JudgedAs.HOLDS if ok == len(ratios) else JudgedAs.PARTLY if ok else JudgedAs.FAILS
    text = f"{min(ratios):.2g} to {max(ratios):.2g} of the paper's times"
    return Judgement(text, verdict, "seconds of the processor, on a machine many years younger")


TABLE2 = Figure(
    name="table2",
    title="Computation time of DYNATOPS-Greedy",
    paper="DYNATOPS table II",
    runs=_table2_runs,
    claims=(
        Claim(
            "28 ms, 184 ms, 96 s for 10, 100, 1000 brokers; 98 ms, 502 ms, 1.9 s for 50, 500, "
            "5000 topics",
            "no more",
            _as_quick,
        ),
    ),
    metrics=("seconds", "iterations"),
    plots=(),
    scale_min=0.01,
    scale_min_reason="sizes up to 100 are the least there are",
)

# ---- protocol-cost -------------------------------------------------------------------------------

_PROTOCOL_SIZES = ((8, 24), (16, 48), (32, 96))


def _protocol_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("protocol", brokers=brokers, topics=topics, movers=movers)
        for brokers, topics in _PROTOCOL_SIZES
        for movers in (2, brokers // 2, brokers)
    ]


def _within_bound(table: FigureTable) -> Judgement:
    shares = [row["messages"] / row["bound"] for row in table.rows]
    ok = sum(share <= 1 for share in shares)
    verdict = JudgedAs.HOLDS if ok == len(shares) else JudgedAs.PARTLY if ok else JudgedAs.FAILS
    text = f"{percent(min(shares))} to {percent(max(shares))} of the bound"
    return Judgement(text, verdict, "with the constants a = 6, b = 1, c = 1 of a new manager")


def _constants(table: FigureTable) -> Judgement:
    shares = [row["messages_again"] / row["learnt"] for row in table.rows]
    text = ", ".join(
        f"{name} {sum(row[name] for row in table.rows) / len(table.rows):.2f}" for name in "abc"
    )
    ok = max(shares) <= 1 and min(shares) >= 0.5
    reason = f"with them, messages are {percent(min(shares))} to {percent(max(shares))} of it"
    return Judgement(text, JudgedAs.HOLDS if ok else JudgedAs.PARTLY, reason)


PROTOCOL_COST = Figure(
    name="protocol-cost",
    title="Messages of the real protocol, and equation 11",
    paper="DYNATOPS eq. 11",
    runs=_protocol_runs,
    claims=(
        Claim("the protocol sends no more than eq. 11 says", "<= 100%", _within_bound),
        Claim(
            "constants that a manager learns from one reconfiguration say what the next one sends",
            "50% to 100%",
            _constants,
            is_ours=True,
        ),
    ),
    metrics=("messages", "bound", "messages_again", "learnt", "a", "b", "c"),
    plots=(),
    notes=("A manager's core and brokers' cores in the simulator; eight topics a broker.",),
)

FIGURES = (FIG10, TABLE2, PROTOCOL_COST)
