"""The report: a page in Markdown and one in HTML, a file of JSON, and the plots beside them.

It grows: figures that were reported in the folder before stay, each with the scale and the seeds
that it was measured with, and also without the measurements themselves.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynatops.version import VERSION
from experiments.figures.catalogue import FIGURES
from experiments.figures.figure import (
    FigureRow,
    FigureTable,
    JudgedAs,
    Judgement,
    Measured,
    RunSpec,
)
from experiments.plots import draw_plots, title_of
from experiments.reproduction import Reproduced, TraceFile, judge_figure
from experiments.results import RESULTS_VERSION, ResultsError, ResultsFile

_PARAMETERS_HIDDEN = frozenset({"deliveries", "trace", "trace_digest"})
_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; display: block; }
table { overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
.holds { color: #00694a; font-weight: 600; } .partly { color: #8a5a00; font-weight: 600; }
.fails { color: #a3320b; font-weight: 600; } .open { color: #666; }
"""
_TITLE = "The papers' evaluations, reproduced"


def check_report_folder(folder: Path) -> None:
    """A report of another version is not written over: its pages would be mixed with ours."""
    known = folder / "report.json"
    if not known.exists():
        if folder.exists() and not folder.is_dir():
            raise ResultsError(f"{folder}: not a folder")
        return
    try:
        version = json.loads(known.read_text(encoding="utf-8"))["results_version"]
    except (OSError, ValueError, TypeError, KeyError):
        raise ResultsError(f"{known}: not a report of this program; name another folder") from None
    if version != RESULTS_VERSION:
        raise ResultsError(
            f"{folder}: a report of another version ({version}; this is {RESULTS_VERSION}); "
            "remove it, or name another folder"
        )


def write_report(folder: Path, measured: Sequence[Reproduced]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    names = {found.figure.name for found in measured}
    before = [found for found in _reported(folder) if found.figure.name not in names]
    order = list(FIGURES)
    reproduced = sorted([*measured, *before], key=lambda found: order.index(found.figure.name))
    plots = {
        found.figure.name: draw_plots(found.figure, found.table, folder) for found in reproduced
    }
    document = {
        "results_version": RESULTS_VERSION,
        "dynatops": VERSION,
        "figures": [found.as_json() for found in reproduced],
    }
    pages = {
        "report.json": json.dumps(document, indent=1) + "\n",
        "index.md": _markdown(reproduced, plots),
        "index.html": _html(reproduced, plots),
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def _reported(folder: Path) -> list[Reproduced]:
    """What the report in this folder tells of, judged again by what was measured."""
    known = folder / "report.json"
    if not known.exists():
        return []
    try:
        entries = json.loads(known.read_text(encoding="utf-8"))["figures"]
        return [_found_before(folder, entry) for entry in entries if entry["name"] in FIGURES]
    except (OSError, ValueError, TypeError, KeyError):
        raise ResultsError(f"{known}: is damaged; remove it: what was measured stays") from None


def _found_before(folder: Path, entry: dict[str, Any]) -> Reproduced:
    """By what was measured, if that is still there; if not, as it was reported."""
    figure, trace = FIGURES[entry["name"]], entry.get("trace")
    trace_file = TraceFile(Path(trace["path"]), trace["digest"]) if trace else None
    results = ResultsFile(folder, entry["scale"])
    again = judge_figure(figure, results, entry["seeds"], trace_file)
    if len(again.table.rows) >= len(entry["rows"]):
        return again
    table = FigureTable(tuple(_row_of(row, figure.metrics) for row in entry["rows"]))
    said = {claim["text"]: claim for claim in entry["claims"]}
    judged = tuple(
        (claim, _judgement_of(said[claim.text])) for claim in figure.claims if claim.text in said
    )
    return replace(again, table=table, judgements=judged, seconds=entry["seconds"])


def _row_of(cells: dict[str, Any], metrics: Sequence[str]) -> FigureRow:
    of_metrics = {name for metric in metrics for name in (metric, f"{metric}_std")}
    parameters = {n: value for n, value in cells.items() if n != "run" and n not in of_metrics}
    measured = {m: Measured(cells[m], cells[f"{m}_std"]) for m in metrics if m in cells}
    return FigureRow(RunSpec.of(cells["run"], **parameters), measured)


def _judgement_of(claim: dict[str, str]) -> Judgement:
    return Judgement(claim["measured"], JudgedAs(claim["verdict"]), claim["reason"])


def last_verdicts(folder: Path) -> dict[str, str]:
    """Figure -> what the last report in this folder says of it."""
    try:
        document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return {
            f["name"]: _summary([c["verdict"] for c in f["claims"]]) for f in document["figures"]
        }
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _summary(verdicts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(verdicts))


# ---- what both pages say -------------------------------------------------------------------------


def _made_by(reproduced: Sequence[Reproduced]) -> str:
    slowest = max(reproduced, key=lambda found: found.seconds)
    return (
        f"Made by `dynatops reproduce`, dynatops {VERSION}; each figure says its scale and seeds. "
        f"The slowest is {slowest.figure.name} at scale {slowest.scale:g}: its runs took "
        f"{slowest.seconds:,.0f} s, one after the other; figures share runs."
    )


def _measured_by(found: Reproduced) -> str:
    seeds = ", ".join(map(str, found.seeds))
    return (
        f"Scale {found.scale:g}, seeds {seeds}: `{found.command}`, {found.seconds:,.0f} s of runs."
    )


def _cells(found: Reproduced) -> tuple[list[str], list[list[str]]]:
    """Parameters that differ, and metrics with their standard deviation."""
    rows = found.table.rows
    names = dict.fromkeys(name for row in rows for name, _ in row.spec.parameters)
    values = {n: {dict(row.spec.parameters).get(n) for row in rows} for n in names}
    shown = [n for n in names if len(values[n]) > 1 and n not in _PARAMETERS_HIDDEN]
    shown.sort(key=lambda name: name != "system")
    metrics = [m for m in found.figure.metrics if any(m in row.metrics for row in rows)]
    lines = []
    for row in rows:
        parameters = dict(row.spec.parameters)
        line = [_value(name, parameters.get(name)) for name in shown]
        for metric in metrics:
            measured = row.metrics.get(metric)
            line.append(f"{_number(measured.mean)} ± {_number(measured.std)}" if measured else "")
        lines.append(line)
    return [*shown, *(metric.replace("_", " ") for metric in metrics)], lines


def _value(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "system":
        return title_of(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _kind(verdict: str) -> str:
    return {"does not hold": "fails", "not measured": "open"}.get(verdict, verdict)


# ---- Markdown ------------------------------------------------------------------------------------


def _markdown(reproduced: Sequence[Reproduced], plots: dict[str, list[str]]) -> str:
    lines = [
        f"# {_TITLE}",
        "",
        _made_by(reproduced),
        "",
        "| figure | scale | claim | verdict |",
        "|---|---|---|---|",
    ]
    for found in reproduced:
        for claim, judgement in found.judgements:
            lines.append(
                f"| [{found.figure.name}](#{found.figure.name}) | {found.scale:g} "
                f"| {_cell(claim.text)}"
                f"{' (ours)' if claim.is_ours else ''} | {judgement.verdict} |"
            )
    for found in reproduced:
        figure = found.figure
        lines += ["", f"## {figure.name}", "", f"{figure.title} ({figure.paper})."]
        lines += ["", _measured_by(found)]
        lines += ["", "| claim | expected | measured | verdict | reason |", "|---|---|---|---|---|"]
        for claim, judgement in found.judgements:
            cells = (
                claim.text,
                claim.expected,
                judgement.measured,
                str(judgement.verdict),
                judgement.reason,
            )
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
        for name in plots[figure.name]:
            lines += ["", f"![{figure.title}]({name})"]
        head, rows = _cells(found)
        if rows:
            lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
            lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        for note in figure.notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ---- HTML ----------------------------------------------------------------------------------------


def _html(reproduced: Sequence[Reproduced], plots: dict[str, list[str]]) -> str:
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        f"<h1>{_TITLE}</h1><p>{_plain(_made_by(reproduced))}</p>",
    ]
    for found in reproduced:
        figure = found.figure
        parts.append(f'<h2 id="{figure.name}">{figure.name}: {html.escape(figure.title)}</h2>')
        parts.append(f"<p>{html.escape(figure.paper)}. {_plain(_measured_by(found))}</p>")
        parts.append(
            "<table><tr><th>claim<th>expected<th>measured<th>verdict<th>reason</tr>"
            + "".join(
                f"<tr><td>{html.escape(claim.text)}<td>{html.escape(claim.expected)}"
                f"<td>{html.escape(judgement.measured)}"
                f'<td class="{_kind(str(judgement.verdict))}">{judgement.verdict}'
                f"<td>{html.escape(judgement.reason)}</tr>"
                for claim, judgement in found.judgements
            )
            + "</table>"
        )
        parts += [
            f'<p><img src="{name}" alt="{html.escape(figure.title)}"></p>'
            for name in plots[figure.name]
        ]
        head, rows = _cells(found)
        if rows:
            parts.append("<table><tr>" + "".join(f"<th>{html.escape(h)}" for h in head) + "</tr>")
            parts += [
                "<tr>" + "".join(f'<td class="number">{html.escape(c)}' for c in row) + "</tr>"
                for row in rows
            ]
            parts.append("</table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in figure.notes]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _plain(text: str) -> str:
    return html.escape(text).replace("`", "")
