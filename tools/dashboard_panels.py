"""Panels and queries of the dashboard, in few words."""

from __future__ import annotations

from dataclasses import dataclass

PICK = '{namespace=~"$namespace"}'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    # Query and legend.
    lines: tuple[tuple[str, str], ...]
    help: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


# ---- queries -------------------------------------------------------------------------------------


def rate(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({name}{PICK}[$__rate_interval]))"


def total(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({name}{PICK})"


def ratio(part: str, whole: str) -> str:
    return f"{rate(part)} / {rate(whole)}"


def mean(name: str, by: str) -> str:
    """Of a histogram, over an hour: plans are rare."""
    parts = (f"sum by ({by}) (increase({name}_{part}{PICK}[1h]))" for part in ("sum", "count"))
    return " / ".join(parts)


def of_broker(query: str) -> str:
    """By broker's id: processes know theirs, samples only the instance."""
    return (
        f"sum by (broker) ({query} * on (instance) group_left (broker) dynatops_broker_info{PICK})"
    )


def quantile(share: float, name: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    inner = f"sum by ({labels}) (rate({name}_bucket{PICK}[$__rate_interval]))"
    return f"histogram_quantile({share:g}, {inner})"


def each_broker(name: str) -> tuple[tuple[str, str], ...]:
    return ((of_broker(f"{name}{PICK}"), "{{broker}}"),)


def each_rate(name: str) -> tuple[tuple[str, str], ...]:
    return ((of_broker(f"rate({name}{PICK}[$__rate_interval])"), "{{broker}}"),)


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((quantile(share, name), f"{100 * share:g}%") for share in (0.5, 0.95, 0.99))


def stat(title: str, unit: str, query: str, text: str = "") -> Panel:
    return Panel(title, unit, ((query, ""),), text, "stat", width=4, height=4)
