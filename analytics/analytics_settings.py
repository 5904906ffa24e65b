"""What the jobs depend on: one group for each, every setting with its unit and its reason.

`--set rates.period_s=60` sets one. The groups of jobs are declared by the jobs; here is that of all
runs, and what settings are made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

DAY_S = 86_400.0
STORE_TIMEOUT_S = 30.0
STORE_TRIES = 5


class SettingsError(ValueError):
    """A setting does not exist, or cannot be that."""


def setting(
    default: Any,
    what: str,
    *,
    least: float = 0.0,
    above: bool = False,
    most: float = math.inf,
) -> Any:
    """A field of a group of settings. With `above`, `least` itself is too little."""
    metadata = {"help": what, "least": least, "above": above, "most": most}
    return field(default=default, metadata=metadata)


def late_setting(default_s: float) -> Any:
    return setting(
        default_s,
        "Rows that come so long after newer ones still count (and are counted as late); those that "
        "come later are dropped, and counted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    files_per_batch: int = setting(2_000, "Files of the lake that are taken in at once.", least=1)
    future_s: float = setting(
        3_600.0, "Rows from further in the future go to quarantine: a clock is wrong."
    )
    expiry_s: int = setting(7_200, "Advice is fresh for so long; run the job twice in it.", least=1)
    entries_max: int = setting(
        1_000_000, "Entries of one table of advice; the least important are left out.", least=1
    )
    versions_kept: int = setting(2, "Versions of results that are kept.", least=1)
    store_timeout_s: float = setting(
        STORE_TIMEOUT_S,
        "A store of objects that says nothing for so long is asked again. Hadoop's connectors have "
        "settings of their own.",
        above=True,
    )
    store_tries: int = setting(
        STORE_TRIES,
        "So many times; then the job fails, says what to do, and the next run goes on.",
        least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsSettings:
    run: RunSettings
    # By job: a group as the job declares it.
    jobs: Mapping[str, Any]

    def groups(self) -> Mapping[str, Any]:
        return {"run": self.run, **self.jobs}

    def with_group(self, name: str, group: Any) -> AnalyticsSettings:
        if name == "run":
            return replace(self, run=group)
        return replace(self, jobs={**self.jobs, name: group})


def described(settings: AnalyticsSettings) -> Iterable[tuple[str, Any, str]]:
    """Name, value and meaning of every setting."""
    for group_name, group in settings.groups().items():
        for entry in fields(group):
            name = f"{group_name}.{entry.name}"
            yield name, getattr(group, entry.name), entry.metadata["help"]


def with_values(settings: AnalyticsSettings, assignments: Iterable[str]) -> AnalyticsSettings:
    """`rates.period_s=60` and the like, checked."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        group_name, _, entry_name = name.strip().partition(".")
        group: Any = settings.groups().get(group_name)
        entry = next((f for f in fields(group) if f.name == entry_name), None) if group else None
        if not equals or entry is None:
            known = ", ".join(known for known, _, _ in described(settings))
            raise SettingsError(f"{assignment!r} is no SETTING=VALUE; settings are {known}")
        value = _value(group_name, entry, text)
        settings = settings.with_group(group_name, replace(group, **{entry_name: value}))
    return settings


def _value(group: str, entry: Field[Any], text: str) -> int | float:
    name = entry.name
    try:
        value = int(text) if isinstance(entry.default, int) else float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a number, not {text!r}") from None
    least, above, most = (entry.metadata[key] for key in ("least", "above", "most"))
    if not math.isfinite(value) or value < least or (above and value <= least):
        raise SettingsError(f"{name} must be {'above' if above else 'at least'} {least:g}")
    if value > most:
        raise SettingsError(f"{group}.{name} must be at most {most:g}, not {value}")
    return value
