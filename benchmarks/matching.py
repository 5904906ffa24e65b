"""Events matched against many filters with conditions, and what a change of tables costs.

    python -m benchmarks.matching [--json] [--quick]

Filters are those of shops: a brand, or a category, with a price below a limit or between two, some
with a word to begin with, on a few patterns; names grow with the filters, so that about as many
match. Each filter has a holder of its own in `sessions`, and one of eight in `neighbours`. `alarms`
have a lower bound alone, which few events pass; `two bounds` have an upper and a lower one, of two
attributes, which is what the index is worst at; `plain` is no condition at all, on topics of their
own. Beside it: asking every filter, on a sample, and one look into a dictionary.

Tables are those of a broker with eight neighbours that cover what they can: a filter is added, and
taken away, with what is to be said to whom. Reference: adding one to an index, and taking it away,
that neither covers nor tells anybody.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from dynatops.kit.filters import Attributes, Filter, FilterIndex, Value
from overlay.forwarding.tables.held_filters import HERE, BrokerId
from overlay.forwarding.tables.subscription_tables import SubscriptionTables, TableRules

SIZES = (1, 1_000, 10_000, 100_000)
EVENTS = 300
REPEATS = 3
# What asking every filter may take, in pairs of filter and event.
SCANNED_PAIRS_MAX = 200_000
NEIGHBOURS = 8
CHANGES = 200

Event = tuple[str, Attributes]


class Shops:
    """Filters and events with names as many as the number of filters asks for."""

    def __init__(self, filters: int, seed: int = 1) -> None:
        self._rng = Random(seed)
        self._brands = max(4, filters // 20)
        self._categories = max(4, filters // 100)

    def filter(self) -> Filter:
        rng = self._rng
        price = rng.randrange(10, 2_000)
        width = rng.choice((5, 20, 50))
        brand, category = rng.randrange(self._brands), rng.randrange(self._categories)
        where = rng.choices(
            (
                f'product == "computer" and brand == "b{brand}" and price < {price}',
                f'category == "c{category}" and price >= {price} and price < {price + width}',
                f'brand == "b{brand}" and not (price > {price} or has discontinued)',
                f'serial startswith "s{brand:06}"',
                f'brand == "b{brand}" or category == "c{category}" and new == true',
            ),
            (5, 3, 1, 1, 0.1),
        )[0]
        return Filter.parse(rng.choice(("shop/#", "shop/+", "shop/eu")), where)

    def event(self) -> Event:
        rng = self._rng
        attributes: dict[str, Value] = {
            "product": "computer",
            "brand": f"b{rng.randrange(self._brands)}",
            "category": f"c{rng.randrange(self._categories)}",
            "price": rng.randrange(10, 2_000),
            "serial": f"s{rng.randrange(self._brands):06}-{rng.randrange(100)}",
        }
        return "shop/eu", attributes


class Alarms(Shops):
    def filter(self) -> Filter:
        return Filter.parse("plant/#", f"temperature > {self._rng.uniform(90.0, 100.0)!r}")

    def event(self) -> Event:
        return "plant/7", {"temperature": self._rng.gauss(60.0, 12.0), "room": 7}


class TwoBounds(Shops):
    def filter(self) -> Filter:
        price, weight = self._rng.uniform(0, 1_000), self._rng.uniform(0, 1_000)
        return Filter.parse("shop/#", f"price < {price!r} and weight > {weight!r}")

    def event(self) -> Event:
        price, weight = self._rng.uniform(0, 1_000), self._rng.uniform(0, 1_000)
        return "shop/eu", {"price": price, "weight": weight}


class Plain(Shops):
    def filter(self) -> Filter:
        return Filter.parse(f"shop/{self._rng.randrange(self._brands * 20)}")

    def event(self) -> Event:
        return f"shop/{self._rng.randrange(min(1_000, self._brands))}", {}


KINDS: dict[str, tuple[type[Shops], bool]] = {
    "sessions": (Shops, False),
    "neighbours": (Shops, True),
    "alarms": (Alarms, False),
    "two bounds": (TwoBounds, True),
    "plain": (Plain, True),
}


def seconds_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least of several: what disturbs only ever adds."""
    seconds = []
    for _ in range(repeats):
        started_s = time.process_time()
        work()
        seconds.append(time.process_time() - started_s)
    return min(seconds)


# ---- matching ------------------------------------------------------------------------------------


def measure_matching(kind: str, size: int) -> dict[str, Any]:
    world, is_shared = KINDS[kind]
    source = world(size)
    filters = list({source.filter() for _ in range(size)})
    index: FilterIndex[int] = FilterIndex()
    started_s = time.process_time()
    for number, wanted in enumerate(filters):
        index.add(wanted, number % NEIGHBOURS if is_shared else number)
    added_s = time.process_time() - started_s
    events = [source.event() for _ in range(EVENTS)]
    found = sum(len(index.match(*event)) for event in events)
    # Nobody is asked whose conditions cannot change what is found.
    match_s = seconds_of(partial(_match_all, index, events)) / len(events)
    few = events[: max(2, SCANNED_PAIRS_MAX // size)]
    matching = sum(wanted.matches(*event) for event in few for wanted in filters)
    scan_s = seconds_of(partial(_scan, filters, few), 1) / len(few)
    lookup_s = seconds_of(partial(_look_up, {topic: 0 for topic, _ in events}, events)) / EVENTS
    return {
        "kind": kind,
        "filters": len(filters),
        "us_an_event": 1e6 * match_s,
        "found_an_event": found / len(events),
        "matching_an_event": matching / len(few),
        "scan_ratio": scan_s / match_s,
        "lookup_ratio": match_s / lookup_s,
        "us_to_add": 1e6 * added_s / len(filters),
    }


def _match_all(index: FilterIndex[int], events: list[Event]) -> None:
    for topic, attributes in events:
        index.match(topic, attributes)


def _scan(filters: list[Filter], events: list[Event]) -> int:
    return sum(wanted.matches(*event) for event in events for wanted in filters)


def _look_up(known: dict[str, int], events: list[Event]) -> None:
    for topic, _ in events:
        known[topic]


# ---- tables --------------------------------------------------------------------------------------


def measure_tables(size: int) -> dict[str, Any]:
    source = Shops(size)
    names = [BrokerId(f"broker-{number}") for number in range(NEIGHBOURS)]
    tables = SubscriptionTables(TableRules())
    for name in names:
        tables.add_neighbour(name)
    started_s = time.process_time()
    for number in range(size):
        tables.want([HERE, *names][number % (NEIGHBOURS + 1)], source.filter())
    filled_s = time.process_time() - started_s
    tables.changes()
    status = tables.status()
    added, removed = _change_times(tables, source, names)
    index: FilterIndex[int] = FilterIndex()
    for wanted in [source.filter() for _ in range(size)]:
        index.add(wanted, 0)
    news = [source.filter() for _ in range(CHANGES)]
    index_s = seconds_of(partial(_add_and_remove, index, news), 1) / CHANGES
    return {
        "filters": status.filters,
        "covered": status.covered,
        "us_to_fill": 1e6 * filled_s / size,
        "us_to_add": _middle_us(added),
        "us_to_add_99": _middle_us(added, 0.99),
        "us_to_remove": _middle_us(removed),
        "us_to_remove_99": _middle_us(removed, 0.99),
        "index_ratio": 1e-6 * (_middle_us(added) + _middle_us(removed)) / index_s,
    }


def _change_times(
    tables: SubscriptionTables, source: Shops, names: list[BrokerId]
) -> tuple[list[float], list[float]]:
    added, removed = [], []
    for number in range(CHANGES):
        holder, wanted = names[number % NEIGHBOURS], source.filter()
        if tables.is_wanted_by(holder, (wanted,)):
            continue
        started_s = time.process_time()
        tables.want(holder, wanted)
        tables.changes()
        between_s = time.process_time()
        tables.give_up(holder, wanted)
        tables.changes()
        removed.append(time.process_time() - between_s)
        added.append(between_s - started_s)
    return added, removed


def _add_and_remove(index: FilterIndex[int], filters: list[Filter]) -> None:
    for wanted in filters:
        index.add(wanted, 1)
        index.remove(wanted, 1)


def _middle_us(seconds: list[float], share: float = 0.5) -> float:
    return 1e6 * sorted(seconds)[int(share * (len(seconds) - 1))]


# ---- report --------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="no more than 10,000 filters")
    arguments = parser.parse_args()
    sizes = SIZES[: 3 if arguments.quick else None]
    # What the collector looks through grows with the filters, and is none of their doing.
    gc.freeze()
    report: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "matching": [measure_matching(kind, size) for kind in KINDS for size in sizes],
        "tables": [measure_tables(size) for size in sizes[1:]],
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    print("kind          filters  us/event   found  matching    x scan  x lookup  us to add")
    for point in report["matching"]:
        print(
            f"{point['kind']:<11}  {point['filters']:8,}  {point['us_an_event']:8.2f}"
            f"  {point['found_an_event']:6.1f}  {point['matching_an_event']:8.1f}"
            f"  {point['scan_ratio']:8,.1f}  {point['lookup_ratio']:8,.1f}"
            f"  {point['us_to_add']:9.1f}"
        )
    print("\n filters  covered  us to fill  to add     99%  to remove     99%  x index")
    for point in report["tables"]:
        print(
            f"{point['filters']:8,}  {point['covered']:7,}  {point['us_to_fill']:10.1f}"
            f"  {point['us_to_add']:6.1f}  {point['us_to_add_99']:6.1f}"
            f"  {point['us_to_remove']:9.1f}  {point['us_to_remove_99']:6.1f}"
            f"  {point['index_ratio']:7.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
