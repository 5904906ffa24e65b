"""What is told of the jobs of analytics elsewhere, from what they declare themselves: tables of
docs/analytics.md, the chart's values, what managers look for in Redis.
`generate_reference.py` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from page_tables import row, with_rows

from analytics.jobs.catalogue import default_settings, jobs, kinds
from dynatops.kit.advice.keys import head_key

ROOT = Path(__file__).resolve().parent.parent
_DOCS = ROOT / "docs" / "analytics.md"
_VALUES = ROOT / "helm" / "dynatops" / "values.yaml"

_ADVISING_JOBS = '''\
"""Jobs of analytics that advise, and the tables that the head of each counts.

Made from the jobs by `tools/generate_reference.py`; change a job, then `make docs`. Managers look
for all of it, and load nothing of analytics.
"""

from __future__ import annotations

JOB_TABLES: dict[str, tuple[str, ...]] = {'''


def analytics_page() -> Iterator[str]:
    """The page as it is, with its tables made anew."""
    text = _DOCS.read_text()
    for heading, rows in (
        ("| job | from | says |", _what_they_say()),
        ("| job | one row of state", _what_they_keep()),
        ("| head | tables |", _what_they_advise()),
    ):
        text = with_rows(text, _DOCS.name, heading, list(rows))
    yield text.removesuffix("\n")


def _what_they_say() -> Iterator[str]:
    made, declared = jobs(default_settings()), kinds()
    for name, kind in declared.items():
        sources = ", ".join(fold.table.name for fold in made[name].folds)
        results = _quoted(f"{name}/{table}" for table in kind.results)
        users = (u for u, other in declared.items() for r in other.uses.values() if r.job == name)
        readers = ", ".join(filter(None, (kind.followed_by, _quoted(users))))
        yield row(f"`{name}`", sources, kind.says, results, readers)


def _what_they_keep() -> Iterator[str]:
    for name, kind in kinds().items():
        yield row(f"`{name}`", kind.keeps, kind.until)


def _what_they_advise() -> Iterator[str]:
    for name, kind in kinds().items():
        tables = ", ".join(
            f"`{table}`" + (f" (the head counts it as `{counted}`)" if counted != table else "")
            for table, counted in kind.advice_tables.items()
        )
        yield row(f"`{head_key(name)}`", tables, kind.advises)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def chart_values() -> Iterator[str]:
    """The chart's values as they are, with the jobs made anew."""
    lines = "".join(
        f'    {name}: {{enabled: true, schedule: "{kind.schedule}", settings: {{}}}}\n'
        for name, kind in kinds().items()
    )
    jobs_of_analytics = re.compile(r"(?<=\n  jobs:\n)(?:    \w+: \{[^\n]*\}\n)*")
    text, found = jobs_of_analytics.subn(lambda _: lines, _VALUES.read_text())
    if found != 1:
        raise ValueError(f"{_VALUES.name} has {found} places for jobs")
    yield text.removesuffix("\n")


def advising_jobs() -> Iterator[str]:
    yield _ADVISING_JOBS
    for name, kind in sorted(kinds().items()):
        tables = ", ".join(f'"{counted}"' for counted in kind.advice_tables.values())
        yield f'    "{name}": ({tables}{"," if len(kind.advice_tables) == 1 else ""}),'
    yield "}"
