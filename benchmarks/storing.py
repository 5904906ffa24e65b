"""Planning of stores: how long it takes, and what `refine` gains.

    python -m benchmarks.storing [--json] [--quick] [--brokers N] [--topics N]

A random tree, and a matrix of distances between points of a square; Zipf popularity, a topic asked
for at three of ten brokers; stores with room for 50 topics, each topic on 3 to 20. Times are of the
processor, as machines are shared; beside each the time of `seq`, and traffic as shares of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from random import Random
from typing import Any

import numpy as np

from reconfig_manager.storing.network import StoreNetwork
from reconfig_manager.storing.planners import STORE_PLANNERS
from reconfig_manager.storing.problem import (
    StoringProblem,
    StoringTask,
    broken_limits,
    popularity,
)
from reconfig_manager.storing.replicas import replicas_by_minimum, stores_needed

CAPACITY = 50
REPLICAS = (3, 20)
ZIPF = 0.8
ASKING_SHARE = 0.3
PLANNERS = ("seq", "wrr", "refine", "rnd", "grd-opt")


def make_problem(brokers: int, topics: int, *, matrix: bool, seed: int = 1) -> StoringProblem:
    rng = np.random.default_rng(seed)
    if matrix:
        places = 100.0 * rng.random((brokers, 2))
        apart = places[:, None, :] - places[None, :, :]
        network = StoreNetwork.of_matrix(np.sqrt((apart**2).sum(axis=2)) + 1.0)
    else:
        links = Random(seed)
        network = StoreNetwork.of_links(
            brokers, [(broker, links.randrange(broker)) for broker in range(1, brokers)]
        )
    popular = (np.arange(topics) + 1.0) ** -ZIPF
    asking = rng.random((topics, brokers)) < ASKING_SHARE
    requests = rng.random((topics, brokers)) * asking * popular[:, None]
    least, most = REPLICAS
    replicas = replicas_by_minimum(popularity(requests), least, min(most, brokers))
    return StoringProblem(
        network=network,
        requests=requests,
        replicas=replicas,
        stores=min(brokers, stores_needed(replicas, CAPACITY)),
        capacity=np.full(brokers, CAPACITY, dtype=np.int32),
    )


def measure(brokers: int, topics: int, *, matrix: bool) -> dict[str, Any]:
    problem = make_problem(brokers, topics, matrix=matrix)
    found: dict[str, Any] = {
        "network": "matrix" if matrix else "tree",
        "brokers": brokers,
        "topics": topics,
        "stores": problem.stores,
        "replicas": int(problem.replicas.sum()),
    }
    traffic = {}
    for name in PLANNERS:
        began_s = time.process_time()
        solution = STORE_PLANNERS[name](problem, StoringTask())
        found[f"{name}_s"] = time.process_time() - began_s
        traffic[name] = solution.cost.traffic
        if name != "grd-opt" and broken_limits(problem, solution.stores, solution.keeps):
            raise AssertionError(f"{name} exceeds a limit")
    found["of_seq"] = {name: value / traffic["seq"] for name, value in traffic.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="100 brokers and topics at most")
    parser.add_argument("--brokers", type=int, default=1_000, metavar="N")
    parser.add_argument("--topics", type=int, default=1_000, metavar="N")
    arguments = parser.parse_args()
    # Loads what is compiled, or compiles it.
    for matrix in (False, True):
        measure(60, 20, matrix=matrix)
    sizes = [(100, 100)] if arguments.quick else [(arguments.brokers, arguments.topics)]
    rows = [measure(b, t, matrix=matrix) for b, t in sizes for matrix in (False, True)]
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
    }
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": rows}, indent=2))
        return 0
    for row in rows:
        print(
            f"{row['brokers']} brokers x {row['topics']} topics ({row['network']}): "
            f"{row['replicas']} replicas on {row['stores']} stores"
        )
        for name in PLANNERS:
            times = row[f"{name}_s"] / row["seq_s"]
            print(
                f"  {name:8} {row[f'{name}_s']:7.1f} s of the processor ({times:.2g} x seq), "
                f"traffic {row['of_seq'][name]:.3f} of seq"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
