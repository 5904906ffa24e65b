"""What the jobs depend on: one group for each, every setting with its unit and its reason.

`--set rates.period_s=60` sets one. Nothing here imports Spark: `--help` is quick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

DAY_S = 86_400.0


class SettingsError(ValueError):
    """A setting does not exist, or cannot be that."""


def _setting(default: Any, what: str, *, least: float = 0.0, above: bool = False) -> Any:
    return field(default=default, metadata={"help": what, "least": least, "above": above})


def _late(default_s: float) -> Any:
    return _setting(
        default_s,
        "Rows that come so long after newer ones still count (and are counted as late); those that "
        "come later are dropped, and counted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesSettings:
    period_s: float = _setting(
        300.0,
        "Length of a period of eq. 12. Much longer than windows of the lake, shorter than what "
        "should be noticed.",
        above=True,
    )
    alpha: float = _setting(0.3, "Weight of the newest period (DYNATOPS III-D1).", above=True)
    late_s: float = _late(600.0)
    forget_rate: float = _setting(
        1e-9, "Topics that are estimated below so many events/s are forgotten: state stays bounded."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionJobSettings:
    late_s: float = _late(DAY_S)
    load_weight: float = _setting(
        1.2,
        "What a load of twice the average costs, in similarity: w_l over the number of brokers, as "
        "brokers have it.",
    )
    load_floor: float = _setting(
        20.0, "Loads are compared as if each broker had so many subscriptions more."
    )
    margin: float = _setting(0.05, "Nobody is moved for a gain of utility below this.")
    capacity: float = _setting(
        1.2, "A broker takes users until it has so many times the average load.", least=1.0
    )
    intake: float = _setting(
        0.5,
        "In one round a broker takes users of so many times the average load at most: all move at "
        "once, and would run to the same one.",
        above=True,
    )
    rounds_max: int = _setting(16, "Rounds at most, if nothing settles before.", least=1)
    settled: float = _setting(
        0.002, "Users are settled when fewer than this share of them moves in a round."
    )
    cluster_size: int = _setting(
        16, "Brokers without a cluster are divided into clusters of about so many.", least=1
    )
    keep_s: float = _setting(
        30 * DAY_S,
        "A subscription that nothing was heard of for so long is forgotten: a broker that crashed "
        "does not say who left.",
        above=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersSettings:
    late_s: float = _late(DAY_S)
    size: int = _setting(16, "Brokers in a cluster, about: messages grow with its square.", least=1)
    keep_s: float = _setting(
        30 * DAY_S, "A broker without a session for so long is left out.", above=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MobilitySettings:
    late_s: float = _late(3_600.0)
    keep_s: float = _setting(28 * DAY_S, "Moves older than this no longer count.", above=True)
    support: int = _setting(5, "A context with fewer moves than this is left out.", least=1)
    next_max: int = _setting(4, "Brokers named for each context: the most probable.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSettings:
    late_s: float = _late(3_600.0)
    keep_s: float = _setting(7 * DAY_S, "Requests older than this no longer count.", above=True)
    brokers_max: int = _setting(
        16, "Brokers named for each topic in advice: those that ask most.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    files_per_batch: int = _setting(2_000, "Files of the lake that are taken in at once.", least=1)
    future_s: float = _setting(
        3_600.0, "Rows from further in the future go to quarantine: a clock is wrong."
    )
    expiry_s: int = _setting(
        7_200, "Advice is fresh for so long; run the job twice in it.", least=1
    )
    entries_max: int = _setting(
        1_000_000, "Entries of one table of advice; the least important are left out.", least=1
    )
    versions_kept: int = _setting(2, "Versions of results that are kept.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsSettings:
    run: RunSettings = field(default_factory=RunSettings)
    rates: RatesSettings = field(default_factory=RatesSettings)
    selection: SelectionJobSettings = field(default_factory=SelectionJobSettings)
    clusters: ClustersSettings = field(default_factory=ClustersSettings)
    mobility: MobilitySettings = field(default_factory=MobilitySettings)
    demand: DemandSettings = field(default_factory=DemandSettings)


def described(settings: AnalyticsSettings) -> Iterable[tuple[str, Any, str]]:
    """Name, value and meaning of every setting."""
    for group in fields(settings):
        values = getattr(settings, group.name)
        for entry in fields(values):
            name = f"{group.name}.{entry.name}"
            yield name, getattr(values, entry.name), entry.metadata["help"]


def with_values(settings: AnalyticsSettings, assignments: Iterable[str]) -> AnalyticsSettings:
    """`rates.period_s=60` and the like, checked."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        group_name, _, entry_name = name.strip().partition(".")
        group: Any = getattr(settings, group_name, None)
        entry = next((f for f in fields(group) if f.name == entry_name), None) if group else None
        if not equals or entry is None:
            known = ", ".join(known for known, _, _ in described(settings))
            raise SettingsError(f"{assignment!r} is no SETTING=VALUE; settings are {known}")
        groups: dict[str, Any] = {group_name: replace(group, **{entry_name: _value(entry, text)})}
        settings = replace(settings, **groups)
    if settings.rates.alpha > 1:
        raise SettingsError(f"rates.alpha must be at most 1, not {settings.rates.alpha}")
    return settings


def _value(entry: Field[Any], text: str) -> int | float:
    name = entry.name
    try:
        value = int(text) if isinstance(entry.default, int) else float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a number, not {text!r}") from None
    least, above = entry.metadata["least"], entry.metadata["above"]
    if not math.isfinite(value) or value < least or (above and value <= least):
        raise SettingsError(f"{name} must be {'above' if above else 'at least'} {least:g}")
    return value
