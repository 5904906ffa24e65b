"""Filters: topics matched a second among many patterns, memory, and what predicates cost.

    python -m benchmarks.filters [--json] [--quick]

Patterns are those of a fleet, site/room/device/metric: 55% exact, the rest with `+` in any level,
in several, and with `#` at any depth. Topics are drawn from the same names, 200,000 draws, and
nothing is remembered between them. Beside the trie, as far as that is feasible: trying every
pattern in turn, and one regular expression a pattern. `hostile`: patterns with `+` at every choice
of levels, none of which matches. Memory is what the process grows by, texts of patterns included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from dynatops.kit.filters import (
    Filter,
    FilterTrie,
    Predicate,
    Value,
    covers,
    is_wildcard,
    pattern_matches,
)

SIZES = (100, 10_000, 100_000, 1_000_000)
TOPICS = 200_000
REPEATS = 3
# What trying every pattern may take, in pairs of pattern and topic.
SCANNED_PAIRS_MAX = 2_000_000
SCANNED_MAX = 100_000
COMPILED_MAX = 10_000
HOSTILE_LEVELS = (4, 8, 12)
KINDS = ("line", "room", "cell", "rack")
METRICS = ("temp", "hum", "volt", "amp", "state", "alarm", "rpm", "flow", "level", "lat", "lon")
PREDICATES = (
    "price < 1500",
    'brand == "IBM" and price < 1500',
    'product == "computer" and brand startswith "I" and price >= 500 and price < 1500',
    'brand == "Dell" or brand == "IBM" and not (price > 1500 or has discontinued)',
)
EVENT: dict[str, Value] = {
    "product": "computer",
    "brand": "IBM",
    "price": 1_499,
    "weight": 2.5,
    "new": True,
}


class Fleet:
    """Names of topics and patterns, as many as the size asks for."""

    def __init__(self, patterns: int, seed: int = 1) -> None:
        self._rng = Random(seed)
        self._sites = max(3, patterns // 2_000)
        self._devices = max(3, min(300, patterns // 50))

    def levels(self) -> list[str]:
        rng = self._rng
        return [
            f"site{rng.randrange(self._sites)}",
            f"{rng.choice(KINDS)}{rng.randrange(20)}",
            f"dev{rng.randrange(self._devices)}",
            rng.choice(METRICS),
        ]

    def topic(self) -> str:
        return "/".join(self.levels())

    def pattern(self) -> str:
        site, room, device, metric = self.levels()
        shapes = (
            (0.55, (site, room, device, metric)),
            (0.70, (site, room, device, "#")),
            (0.80, (site, room, device, "+")),
            (0.86, (site, "+", device, metric)),
            (0.90, ("+", room, device, metric)),
            (0.94, (site, room, "+", metric)),
            (0.96, (site, "+", "+", metric)),
            (0.98, (site, room, "#")),
            (0.99, ("+", room, device, "#")),
            (0.995, (site, "+", device, "#")),
            (0.9999, (site, "#")),
            (1.0, ("#",)),
        )
        draw = self._rng.random()
        return "/".join(next(levels for limit, levels in shapes if draw < limit))


def seconds_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least of several: what disturbs only ever adds."""
    seconds = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---- patterns ------------------------------------------------------------------------------------


def measure_patterns(size: int) -> dict[str, Any]:
    # Patterns are drawn as they are added: a list of them would hide what their texts take.
    fleet = Fleet(size)
    topics = [fleet.topic() for _ in range(TOPICS)]
    before, started_s = resident_bytes(), time.perf_counter()
    trie: FilterTrie[int] = FilterTrie()
    wildcards = 0
    while len(trie) < size:
        pattern, size_before = fleet.pattern(), len(trie)
        trie.add(pattern, 0)
        wildcards += is_wildcard(pattern) and len(trie) > size_before
    drawn_and_added_s = time.perf_counter() - started_s
    grown = resident_bytes() - before
    found = sum(len(trie.match(topic)) for topic in topics)
    trie_s = seconds_of(lambda: [None for topic in topics if trie.match(topic) is None]) / TOPICS
    return {
        "filters": len(trie),
        "wildcards": wildcards,
        "found_a_topic": found / TOPICS,
        "topics_a_second": 1.0 / trie_s,
        "us_a_topic": 1e6 * trie_s,
        "drawn_and_added_s": drawn_and_added_s,
        "bytes_a_filter": grown / size,
        "mib": grown / (1 << 20),
        **_compare(size, topics, trie_s),
    }


def _compare(size: int, topics: list[str], trie_s: float) -> dict[str, Any]:
    """How many times slower it is to try every pattern, with our own function and with `re`."""
    ratios: dict[str, Any] = {"scan_ratio": None, "regex_ratio": None}
    if size > SCANNED_MAX:
        return ratios
    fleet = Fleet(size, seed=2)
    patterns = [fleet.pattern() for _ in range(size)]
    few = topics[: max(2, SCANNED_PAIRS_MAX // size)]
    ours = [partial(pattern_matches, pattern) for pattern in patterns]
    ratios["scan_ratio"] = _scan_s(few, ours) / trie_s
    if size <= COMPILED_MAX:
        expressions = [re.compile(_regex(pattern)).fullmatch for pattern in patterns]
        ratios["regex_ratio"] = _scan_s(few, expressions) / trie_s
    return ratios


def _scan_s(topics: list[str], matches: Sequence[Callable[[str], object]]) -> float:
    """Seconds a topic."""
    work = partial(_scan, topics, matches)
    return seconds_of(work, 1) / len(topics)


def _scan(topics: list[str], matches: Sequence[Callable[[str], object]]) -> list[int]:
    return [sum(1 for match in matches if match(topic)) for topic in topics]


def _regex(pattern: str) -> str:
    if pattern == "#":
        return ".*"
    text = re.escape(pattern).replace(r"\+", "[^/]*")
    return text.replace(r"/\#", "(?:/.*)?")


def measure_hostile() -> Iterable[dict[str, Any]]:
    for levels in HOSTILE_LEVELS:
        trie: FilterTrie[int] = FilterTrie()
        for choice in product("a+", repeat=levels):
            trie.add("/".join((*choice, "+", "z")), 0)
        topic = "/".join("a" * (levels + 2))
        yield {
            "levels": levels + 2,
            "filters": len(trie),
            "us_a_topic": 1e6 * seconds_of(partial(trie.match, topic), 20),
        }


# ---- predicates ----------------------------------------------------------------------------------


def measure_predicates() -> Iterable[dict[str, Any]]:
    times = 20_000
    for text in PREDICATES:
        predicate = Predicate.parse(text)
        wanted, other = Filter.parse("t", text), Filter.parse("t", f"({text}) and weight < 3")
        assert predicate.holds(EVENT)
        assert covers(wanted, other)
        yield {
            "where": text,
            "holds_us": _each_us(partial(predicate.holds, EVENT), times),
            "parse_us": _each_us(partial(Predicate.parse, text), times // 20),
            "covers_us": _each_us(partial(covers, wanted, other), times // 20),
        }


def _each_us(work: Callable[[], object], times: int) -> float:
    return 1e6 * seconds_of(lambda: [None for _ in range(times) if work() is None]) / times


# ---- report --------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="no more than 10,000 filters")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "patterns": [measure_patterns(size) for size in SIZES[: 2 if arguments.quick else None]],
        "hostile": list(measure_hostile()),
        "predicates": list(measure_predicates()),
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    print("  filters  wildcards  topics/s  us/topic  found  bytes/filter    MiB  x scan  x regex")
    for point in report["patterns"]:
        ratios = [
            f"{'-' if point[name] is None else format(point[name], ',.0f'):>7}"
            for name in ("scan_ratio", "regex_ratio")
        ]
        print(
            f"{point['filters']:9,}  {point['wildcards']:9,}  {point['topics_a_second']:8,.0f}"
            f"  {point['us_a_topic']:8.2f}  {point['found_a_topic']:5.1f}"
            f"  {point['bytes_a_filter']:12.0f}  {point['mib']:5.0f} {ratios[0]}  {ratios[1]}"
        )
    print("\nhostile: + at every choice of levels, nothing matches")
    for point in report["hostile"]:
        print(
            f"{point['filters']:9,} filters of {point['levels']} levels"
            f" {point['us_a_topic']:9,.1f} us/topic"
        )
    print("\n holds us  parse us  covers us")
    for point in report["predicates"]:
        print(
            f"{point['holds_us']:9.2f}  {point['parse_us']:8.1f}  {point['covers_us']:9.1f}"
            f"  {point['where']}"
        )


if __name__ == "__main__":
    sys.exit(main())
