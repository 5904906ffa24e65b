"""Draws what solvers achieved against time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reconfig_manager.placement.problem import Solution

# Time is drawn to its logarithm; nothing is quicker than this.
_SECONDS_MIN = 1e-3


def plot_progress(solutions: Sequence[Solution], target: Path) -> None:
    """The best cost so far, of the cost before. Raises ValueError for unknown formats."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to load, and an extra

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    # One picture, one file: no random ids, no dates.
    mpl.rcParams["svg.hashsalt"] = "dynatops"
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    before = solutions[0].progress[0].total or 1.0
    latest = max(solution.seconds for solution in solutions)
    for solution in solutions:
        seconds = [max(_SECONDS_MIN, step.seconds) for step in solution.progress]
        shares = [step.total / before for step in solution.progress]
        (line,) = axes.step(seconds, shares, where="post", label=solution.algorithm)
        axes.plot(seconds[-1:], shares[-1:], "o", color=line.get_color())
    bounds = [solution.bound for solution in solutions if solution.bound is not None]
    if bounds:
        axes.axhline(max(bounds) / before, color="grey", linestyle=":", label="lower bound")
    axes.set_xscale("log")
    axes.set_xlim(_SECONDS_MIN, max(latest, 10 * _SECONDS_MIN) * 1.3)
    axes.set_xlabel("seconds")
    axes.set_ylabel("cost, of the cost before")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)
