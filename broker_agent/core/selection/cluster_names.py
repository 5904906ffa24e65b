"""Which cluster a broker belongs to: brokers exchange summaries, and users, within one.

By name, by a label, or by the cell of the map that it stands in; and where that would be too large,
by a share of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from broker_agent.core.selection.selection_settings import SelectionSettings
from overlay.base.identifiers import RING_BITS, key_of

DEFAULT = "all"
LATITUDE, LONGITUDE = "latitude", "longitude"


def cluster_of(settings: SelectionSettings, broker_id: str, labels: Mapping[str, str]) -> str:
    """The cluster's name. A broker without the label, or without a place, is in `all`."""
    name = settings.cluster or _by_label(settings, labels) or _by_place(settings, labels) or DEFAULT
    if settings.cluster_parts == 1:
        return name
    # By arcs of the ring, where brokers first are as their names hash: the tree of such a part
    # leads there, and on from one of it to the next, through few others.
    return f"{name}/{key_of(broker_id) * settings.cluster_parts >> RING_BITS}"


def _by_label(settings: SelectionSettings, labels: Mapping[str, str]) -> str | None:
    value = labels.get(settings.cluster_label)
    return f"{settings.cluster_label}={value}" if value else None


def _by_place(settings: SelectionSettings, labels: Mapping[str, str]) -> str | None:
    size = settings.cluster_cell_degrees
    if not size or LATITUDE not in labels or LONGITUDE not in labels:
        return None
    latitude, longitude = coordinates(labels)
    return f"cell={math.floor(latitude / size)},{math.floor(longitude / size)}"


def coordinates(labels: Mapping[str, str]) -> tuple[float, float]:
    """Latitude and longitude; ValueError says which of them is no such thing."""
    degrees = []
    for name, limit in ((LATITUDE, 90.0), (LONGITUDE, 180.0)):
        try:
            value = float(labels[name])
        except ValueError:
            value = math.nan
        if not abs(value) <= limit:
            raise ValueError(
                f"label {name}={labels[name]}: write degrees between -{limit:g} and {limit:g}"
            )
        degrees.append(value)
    return degrees[0], degrees[1]
