"""The bucket of a lake fails: is any publication slowed, and do the counts agree?

    python -m benchmarks.failing_lake [--json] [--seconds 60]

Three networks of two brokers, all processes: one writes a lake in a bucket, two have none, and show
beside each other what chance does on this machine. A client of each publishes events one after the
other, in turns, on so many topics that no topic has two events in a window: an event is a row of
the lake. The bucket (S3 by moto, behind a proxy) is well, then answers 503, then says nothing for
30 s, then is well again. Latencies until acknowledged, of all networks in the same moments; and
what is in the lake, with what was counted as dropped, beside what was published.

A round is one event on each topic for each network, some seconds. What the machine does meanwhile
meets all three, but not alike: of all events together the 99th percentile is a matter of a few bad
moments, and without any lake differs by a quarter from one network to the other. So each round is
compared within itself; what is told is the median over rounds of its 99th percentile, and of the
ratio between networks, with the quartiles of that. `pooled` is of all events together, and `worst`
of the slowest round: a store that stops publications now and then shows there. Exit code 1 if
that median ratio of the network with the lake is above 1.1, or if counts differ; 2 if that of the
second network without a lake is beyond 1.1 as well, so that nothing can be said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dynatops
from dynatops.lake.describe import describe
from dynatops.lake.fields import PUBLICATIONS
from dynatops.lake.files import Lake
from dynatops.lake.lake_settings import LakeSettings
from dynatops.local.cluster import BrokerProcess, ProcessCluster
from tests.support.failing_store import (
    BUCKET,
    STALL,
    Answer,
    Fault,
    StoreProxy,
    make_bucket,
    s3_server,
    s3_variables,
)

URL = f"s3://{BUCKET}/lake"
# Small, so that an outage of 30 s is longer than they have room for.
LAKE = LakeSettings(
    url=URL,
    window_s=0.5,
    file_age_max_s=1.0,
    file_rows_max=500,
    buffer_rows_max=500,
    timeout_s=5.0,
    retry_s=1.0,
    retry_max_s=2.0,
)
STALL_S = 30.0
# Of a round through all topics, at least: some windows.
ROUND_S = 3 * LAKE.window_s
TOPICS = 250
AT_ONCE = 50
SLOWER_MAX = 1.10
DRAINED_S = 60.0
BUSY = Answer(503, "SlowDown", "Please reduce your request rate.")
WITH, WITHOUT, CONTROL = "with a lake", "without", "without, again"
ALL = "all"
SLOWER, UNDECIDED = 1, 2
ORDERS = tuple(permutations((WITH, WITHOUT, CONTROL)))


@dataclass(slots=True)
class Latencies:
    """Seconds until acknowledged: by phase, of each round."""

    of: dict[str, list[list[float]]] = field(default_factory=dict)

    def begin_round(self, phase: str) -> None:
        self.of.setdefault(phase, []).append([])

    def add(self, phase: str, seconds: float) -> None:
        self.of[phase][-1].append(seconds)

    def rounds(self, phase: str) -> list[list[float]]:
        if phase == ALL:
            return [each for rounds in self.of.values() for each in rounds]
        return self.of[phase]


def percentiles(rounds: list[list[float]], share: float) -> NDArray[Any]:
    """Milliseconds, of each round."""
    return np.array([np.percentile(each, share) * 1e3 for each in rounds])


def compared(ones: NDArray[Any], others: NDArray[Any]) -> dict[str, float]:
    """How many times as long, round by round: the median, and its quartiles."""
    low, median, high = np.percentile(ones / others, (25, 50, 75))
    return {"median": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


@dataclass(slots=True)
class LakeRun:
    latencies: dict[str, Latencies] = field(
        default_factory=lambda: {who: Latencies() for who in (WITH, WITHOUT, CONTROL)}
    )
    # On each network.
    published: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    in_lake: int = 0

    def result(self) -> dict[str, Any]:
        told: dict[str, Any] = {"published": self.published, "rows": self.counted}
        told["events_in_lake"] = self.in_lake
        told["counts_agree"] = self.in_lake + self.counted["dropped"] == self.published
        for phase in (*self.latencies[WITH].of, ALL):
            told[phase] = self._compared(phase)
        told["p99_ratio"] = told[ALL]["p99_ratio"]
        told["p99_ratio_of_control"] = told[ALL]["p99_ratio_of_control"]
        return told

    def _compared(self, phase: str) -> dict[str, Any]:
        rounds = {who: found.rounds(phase) for who, found in self.latencies.items()}
        told: dict[str, Any] = {"rounds": len(rounds[WITH])}
        for share in (50, 99):
            found = {who: percentiles(each, share) for who, each in rounds.items()}
            for who, each in found.items():
                told[f"{who}, p{share}_ms"] = round(float(np.median(each)), 3)
            told[f"p{share}_ratio"] = compared(found[WITH], found[WITHOUT])
            # What chance does on this machine.
            told[f"p{share}_ratio_of_control"] = compared(found[CONTROL], found[WITHOUT])
        for who, of_who in rounds.items():
            pooled = [[seconds for each in of_who for seconds in each]]
            told[f"{who}, pooled p99_ms"] = round(float(percentiles(pooled, 99)[0]), 3)
            told[f"{who}, worst p99_ms"] = round(float(percentiles(of_who, 99).max()), 3)
        return told


def counters(broker: BrokerProcess) -> Mapping[str, float]:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    told = [line.rsplit(" ", 1) for line in lines if line.startswith("dynatops_broker_lake_rows")]
    return {name.removeprefix("dynatops_broker_lake_rows"): float(value) for name, value in told}


async def counted(brokers: list[BrokerProcess], name: str) -> int:
    found = [await asyncio.to_thread(counters, broker) for broker in brokers]
    return int(sum(each[name] for each in found))


async def publish(
    run: LakeRun, clients: Mapping[str, dynatops.Client], phase: str, for_s: float
) -> None:
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        began_round_s = time.monotonic()
        for latencies in run.latencies.values():
            latencies.begin_round(phase)
        for topic in range(TOPICS):
            # Whoever comes first may find the machine colder.
            for who in ORDERS[topic % len(ORDERS)]:
                began_s = time.perf_counter()
                await clients[who].publish(f"t/{topic}", b"x" * 100)
                run.latencies[who].add(phase, time.perf_counter() - began_s)
            run.published += 1
        await asyncio.sleep(max(0.0, began_round_s + ROUND_S - time.monotonic()))


async def make_topics(run: LakeRun, clients: Mapping[str, dynatops.Client]) -> None:
    """The first event of a topic takes longer; it is in the lake all the same."""
    for first in range(0, TOPICS, AT_ONCE):
        await asyncio.gather(
            *(
                client.publish(f"t/{topic}", b"first")
                for topic in range(first, min(first + AT_ONCE, TOPICS))
                for client in clients.values()
            )
        )
    run.published += TOPICS
    await asyncio.sleep(ROUND_S)


async def measure(store: StoreProxy, seconds: float) -> LakeRun:
    run = LakeRun()
    options = ["--http", "127.0.0.1:0"]
    async with (
        ProcessCluster(2, lake=LAKE, options=options) as lake,
        ProcessCluster(2) as plain,
        ProcessCluster(2) as control,
        # Brokers of one name host the same part of the ring: all clients have as far to go.
        dynatops.connect(lake.addresses[0], client_id="ann", stay=True) as one,
        dynatops.connect(plain.addresses[0], client_id="ann", stay=True) as other,
        dynatops.connect(control.addresses[0], client_id="ann", stay=True) as another,
    ):
        clients = {WITH: one, WITHOUT: other, CONTROL: another}
        phases: tuple[tuple[str, Fault | None, float], ...] = (
            ("well", None, seconds / 3),
            ("503", BUSY, seconds / 3),
            ("stalled", STALL, STALL_S),
            ("well again", None, seconds / 3),
        )
        await make_topics(run, clients)
        for phase, fault, for_s in phases:
            store.fault = fault
            await publish(run, clients, phase, for_s)
        async with asyncio.timeout(DRAINED_S):
            # A window may not have ended yet.
            await asyncio.sleep(2 * LAKE.window_s)
            while await counted(lake.brokers, "_waiting"):  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.5)
        for name in ("", "_written", "_dropped", "_lost"):
            key = name.removeprefix("_") or "handed_over"
            run.counted[key] = await counted(lake.brokers, f"{name}_total")
    run.in_lake = await asyncio.to_thread(events_in_lake)
    return run


def events_in_lake() -> int:
    """Each row of publications is an event: no topic has two in a window."""
    tables = describe(Lake.open(URL))
    return next(table.rows for table in tables if table.name == PUBLICATIONS.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="beside the 30 in which the store says nothing"
    )
    arguments = parser.parse_args()
    with s3_server() as s3, StoreProxy(s3.address) as store:
        make_bucket(s3)
        os.environ.update(s3_variables(store.url))
        told = asyncio.run(measure(store, arguments.seconds)).result()
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        for name, value in told.items():
            print(f"{name:16} {value}")
    return verdict(told)


def verdict(told: Mapping[str, Any]) -> int:
    ratio, control = (told[name]["median"] for name in ("p99_ratio", "p99_ratio_of_control"))
    if not told["counts_agree"]:
        return SLOWER
    if not 1 / SLOWER_MAX <= control <= SLOWER_MAX:
        print("two networks without a lake differ as much: nothing can be said", file=sys.stderr)
        return UNDECIDED
    return 0 if ratio <= SLOWER_MAX else SLOWER


if __name__ == "__main__":
    sys.exit(main())
