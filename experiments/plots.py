"""Plots of figures, as SVG: means over the seeds, and their standard deviation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.figures.figure import Figure, FigureRow, FigureTable, Plot
from experiments.systems.catalogue import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Readable for those who see few colours (Okabe, Ito).
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00", "#000000"),
    "#999999",
)
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")


def plot_name(figure: Figure, number: int) -> str:
    return f"{figure.name}-{number + 1}.svg" if len(figure.plots) > 1 else f"{figure.name}.svg"


def draw_plots(figure: Figure, table: FigureTable, folder: Path) -> list[str]:
    """One file each; those of which nothing has been measured are left out."""
    names = []
    for number, plot in enumerate(figure.plots):
        found = table.among(dict(plot.only), {plot.lines, *([plot.x] if plot.x else [])})
        rows = [row for row in found if plot.metric in row.metrics]
        if rows:
            name = plot_name(figure, number)
            (folder / name).write_text(_drawn(plot, rows), encoding="utf-8")
            names.append(name)
    return names


def _drawn(plot: Plot, rows: list[FigureRow]) -> str:
    import matplotlib as mpl  # noqa: PLC0415  # large, and not installed everywhere

    mpl.use("Agg")
    # The same rows are the same file.
    style: Any = {"svg.hashsalt": "dynatops", "svg.fonttype": "path", "font.size": 9.5}
    with mpl.rc_context(style):
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

        canvas = Canvas(figsize=(7.2, 3.6), layout="constrained")
        axes = canvas.subplots()
        if plot.x is None:
            _bars(axes, plot, rows)
        else:
            _lines(axes, plot, rows)
        axes.set_title(plot.title, loc="left", fontsize=10.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y" if plot.x else "x", linewidth=0.4, alpha=0.5)
        out = io.StringIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _bars(axes: Axes, plot: Plot, rows: list[FigureRow]) -> None:
    names = [title_of(row.spec["system"]) for row in rows]
    measured = [row.metrics[plot.metric] for row in rows]
    places = range(len(rows))[::-1]
    axes.barh(
        places,
        [m.mean for m in measured],
        xerr=[m.std for m in measured],
        color=[_COLOURS[0] if "DYNATOPS" in name else "#A9B4BD" for name in names],
        capsize=3,
        height=0.65,
    )
    axes.set_yticks(list(places), names)
    axes.set_xlabel(plot.label)


def _lines(axes: Axes, plot: Plot, rows: list[FigureRow]) -> None:
    assert plot.x is not None
    lines: dict[object, list[FigureRow]] = {}
    for row in rows:
        lines.setdefault(dict(row.spec.parameters).get(plot.lines), []).append(row)
    ticks = sorted({dict(r.spec.parameters)[plot.x] for r in rows if _has(r, plot.x)}, key=_by_kind)
    # Values as far apart as they are, unless they are words.
    numbers = all(not isinstance(tick, str) for tick in ticks)
    places: dict[Any, float] = {t: float(t) if numbers else i for i, t in enumerate(ticks)}
    shown = iter(range(len(lines)))
    for name, theirs in lines.items():
        number = next(shown)
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
        label = f"{plot.lines} = {name:g}" if isinstance(name, float) else title_of(name)
        points = [row for row in theirs if _has(row, plot.x)]
        if not points:
            # It does not depend on x.
            axes.axhline(
                theirs[0][plot.metric], color=colour, linestyle="--", linewidth=1.2, label=label
            )
            continue
        points.sort(key=lambda row: places[row.spec[plot.x or ""]])
        axes.errorbar(
            [places[row.spec[plot.x]] for row in points],
            [row[plot.metric] for row in points],
            yerr=[row.metrics[plot.metric].std for row in points],
            color=colour,
            marker=mark,
            markersize=5,
            linewidth=1.4,
            capsize=3,
            label=label,
            linestyle="-" if numbers else "none",
        )
    if numbers and len(ticks) > 1 and float(ticks[-1]) > 8 * max(float(ticks[0]), 1e-9):
        axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([places[t] for t in ticks], [f"{t:g}" if numbers else str(t) for t in ticks])
    if min(row[plot.metric] for row in rows) >= 0:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.label)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _has(row: FigureRow, parameter: str) -> bool:
    return parameter in dict(row.spec.parameters)


def _by_kind(value: object) -> tuple[bool, Any]:
    return isinstance(value, str), value


def title_of(system: object) -> str:
    known = SYSTEMS.get(str(system))
    return known.title if known is not None else str(system)
