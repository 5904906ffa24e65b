"""Runs and claims of DYNATOPS figure 10, table II and equation 11: what placements save, take to
find, and cost."""

from __future__ import annotations

from experiments.figures.figure import FigureTable, JudgedAs, Judgement, RunSpec
from experiments.figures.judging import judge_count, less_by, mean, percent

FIXED = 100
_BROKERS = (10, 20, 50, 100, 200, 500, 1000)
_TOPICS = (50, 100, 200, 500, 1000, 2000, 5000)
_PATTERNS = ("uniform", "multimodal")


def _up_to(sizes: tuple[int, ...], scale: float) -> list[int]:
    """At a smaller scale, the smaller sizes."""
    return [size for size in sizes if size <= max(FIXED, sizes[-1] * scale)]


# ---- fig10 ---------------------------------------------------------------------------------------


def saving_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("saving", brokers=brokers, topics=topics, pattern=pattern)
        for pattern in _PATTERNS
        for brokers, topics in [
            *((size, FIXED) for size in _up_to(_BROKERS, scale)),
            *((FIXED, size) for size in _up_to(_TOPICS, scale) if size != FIXED),
        ]
    ]


def always_positive(table: FigureTable) -> Judgement:
    metrics = ("overhead_saved", "delay_saved")
    least = {metric: min(table.rows, key=lambda row: row[metric]) for metric in metrics}
    ok = sum(row[metric] > 0 for row in table.rows for metric in metrics)
    total = len(metrics) * len(table.rows)
    text = "; ".join(
        f"{metric.replace('_', ' ')} at least {percent(row[metric])} "
        f"({row.spec['brokers']} brokers, {row.spec['topics']} topics, {row.spec['pattern']})"
        for metric, row in least.items()
    )
    return judge_count(ok, total, text, f"{ok} of {total} figures are positive")


def larger_for_modes(table: FigureTable) -> Judgement:
    return _larger_for_modes(table, "saved")


def larger_for_modes_with_refine(table: FigureTable) -> Judgement:
    """Whether it is what can be saved that the pattern decides, or what the paper's algorithm finds
    of it."""
    return _larger_for_modes(table, "refine_saved")


def _larger_for_modes(table: FigureTable, metric: str) -> Judgement:
    """By SSBR cost, with w_d = 1."""
    wins = 0
    saved: dict[str, list[float]] = {"multimodal": [], "uniform": []}
    for row in table.where(pattern="uniform"):
        sizes = {name: row.spec[name] for name in ("brokers", "topics")}
        saved["uniform"].append(row[metric])
        saved["multimodal"].append(table.one(pattern="multimodal", **sizes)[metric])
        wins += saved["multimodal"][-1] > saved["uniform"][-1]
    text = f"larger at {wins} of {len(saved['uniform'])} sizes"
    means = " against ".join(percent(mean(shares)) for shares in saved.values())
    return judge_count(wins, len(saved["uniform"]), text, f"{means} of the cost on average")


def cost_chooses_better(table: FigureTable) -> Judgement:
    """Algorithm 2 takes the broker of the highest cost, and in the same sentence of the highest
    external overhead."""
    wins = sum(row["saved"] >= row["graded_saved"] for row in table.rows)
    means = [mean([row[metric] for row in table.rows]) for metric in ("saved", "graded_saved")]
    text = f"at least as much at {wins} of {len(table.rows)} sizes"
    reason = f"{percent(means[0])} saved on average against {percent(means[1])}"
    return judge_count(wins, len(table.rows), text, reason)


def refine_saves(table: FigureTable) -> Judgement:
    gains = [less_by(1 - row["refine_saved"], 1 - row["saved"]) for row in table.rows]
    text = f"{percent(min(gains))} to {percent(max(gains))} less cost than DYNATOPS-Greedy's"
    verdict = JudgedAs.HOLDS if min(gains) >= 0 else JudgedAs.FAILS
    return Judgement(text, verdict, f"{percent(mean(gains))} on average")


# ---- table2 --------------------------------------------------------------------------------------

_PAPER_SECONDS = {
    (10, 100): 0.028,
    (100, 100): 0.184,
    (1000, 100): 96.0,
    (100, 50): 0.098,
    (100, 500): 0.502,
    (100, 5000): 1.9,
}


def time_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("greedy-time", brokers=brokers, topics=topics, pattern="multimodal")
        for brokers, topics in _PAPER_SECONDS
        if brokers <= max(FIXED, 1000 * scale) and topics <= max(500, 5000 * scale)
    ]


def as_quick(table: FigureTable) -> Judgement:
    ratios = []
    for row in table.rows:
        paper_s = _PAPER_SECONDS[int(row.spec["brokers"]), int(row.spec["topics"])]
        ratios.append(row["seconds"] / paper_s)
    ok = sum(ratio <= 1 for ratio in ratios)
    text = f"{min(ratios):.2g} to {max(ratios):.2g} of the paper's times"
    reason = "seconds of the processor, on a machine many years younger"
    return judge_count(ok, len(ratios), text, reason)


# ---- protocol-cost -------------------------------------------------------------------------------

_PROTOCOL_SIZES = ((8, 24), (16, 48), (32, 96))


def protocol_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("protocol", brokers=brokers, topics=topics, movers=movers)
        for brokers, topics in _PROTOCOL_SIZES
        for movers in (2, brokers // 2, brokers)
    ]


def within_bound(table: FigureTable) -> Judgement:
    shares = [row["messages"] / row["bound"] for row in table.rows]
    ok = sum(share <= 1 for share in shares)
    text = f"{percent(min(shares))} to {percent(max(shares))} of the bound"
    reason = "with the constants a = 6, b = 1, c = 1 of a new manager"
    return judge_count(ok, len(shares), text, reason)


def constants(table: FigureTable) -> Judgement:
    shares = [row["messages_again"] / row["learnt"] for row in table.rows]
    text = ", ".join(f"{name} {mean([row[name] for row in table.rows]):.2f}" for name in "abc")
    ok = max(shares) <= 1 and min(shares) >= 0.5
    reason = f"with them, messages are {percent(min(shares))} to {percent(max(shares))} of it"
    return Judgement(text, JudgedAs.HOLDS if ok else JudgedAs.PARTLY, reason)
