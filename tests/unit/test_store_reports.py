"""What operators are shown of an Advertisement Table."""

from __future__ import annotations

from dynatops.v1.inspection_pb2 import ListStoresRequest
from overlay.stores.advertisement_table import AdvertisementTable
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.store_reports import list_stores


def _table(units: int = 0) -> AdvertisementTable:
    table = AdvertisementTable("me", PastSettings(), PastCounters())
    for number in range(units):
        table.keep(f"t/{number:04}")
    return table


def test_ways_are_told_the_nearest_first() -> None:
    table = _table()
    table.offer("3", "quake/#", ("3", "9"))
    table.offer("2", "quake/#", ("2",))
    table.keep("news")
    report = list_stores(table, ListStoresRequest(), "me")
    assert report.broker_id == "me"
    news, quake = report.units
    assert (news.unit, news.distance, [list(way.brokers) for way in news.nearest]) == (
        "news",
        0,
        [[]],
    )
    assert (quake.unit, quake.distance) == ("quake/#", 1)
    assert [list(way.brokers) for way in quake.nearest] == [["2"]]
    assert [list(way.brokers) for way in quake.aside] == [["3", "9"]]


def test_only_what_is_asked_about() -> None:
    table = _table()
    for unit in ("quake/#", "quake/ca", "news/+"):
        table.keep(unit)
    report = list_stores(table, ListStoresRequest(about="quake/+"), "me")
    assert [unit.unit for unit in report.units] == ["quake/#", "quake/ca"]
    assert not list_stores(table, ListStoresRequest(about="flood"), "me").units


def test_pages() -> None:
    table, found = _table(25), list[str]()
    while True:
        after = found[-1] if found else ""
        page = list_stores(table, ListStoresRequest(after=after, limit=10), "me")
        found += [unit.unit for unit in page.units]
        if not page.more:
            break
        assert len(page.units) == 10
    assert found == [f"t/{number:04}" for number in range(25)]
    assert len(list_stores(_table(1_500), ListStoresRequest(limit=5_000), "me").units) == 1_000
