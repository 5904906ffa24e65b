"""An Advertisement Table, for operators: a page of what a broker knows of stores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from dynatops.kit.filters import pattern_intersects
from dynatops.v1.inspection_pb2 import KnownUnit, ListStoresRequest, StoresReport, StoreWay
from overlay.forwarding.tables.held_filters import BrokerId
from overlay.stores.advertisement_table import AdvertisementTable, StoreEntry, Way
from overlay.stores.store_names import store_of_name

LIMIT_MAX = 1_000


def list_stores(
    table: AdvertisementTable, request: ListStoresRequest, broker_id: BrokerId
) -> StoresReport:
    """`request.about` must have been checked."""
    about = request.about
    limit = min(request.limit or LIMIT_MAX, LIMIT_MAX)
    names = (
        unit
        for unit in sorted(table.units())
        if unit > request.after
        and store_of_name(unit) is None
        and (not about or pattern_intersects(about, unit))
    )
    chosen = list(islice(names, limit + 1))
    entries = [table.entry(unit) for unit in chosen[:limit]]
    return StoresReport(
        broker_id=broker_id,
        units=[_known(entry) for entry in entries if entry is not None],
        more=len(chosen) > limit,
    )


def _known(entry: StoreEntry) -> KnownUnit:
    return KnownUnit(
        unit=entry.unit,
        distance=entry.distance,
        nearest=_ways(entry.nearest),
        aside=_ways(entry.aside),
    )


def _ways(offers: Mapping[BrokerId, Way]) -> list[StoreWay]:
    ways = sorted(offers.values(), key=lambda way: (len(way), way))
    return [StoreWay(brokers=way) for way in ways]
