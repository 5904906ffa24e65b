"""What happens in one simulated run of brokers in a tree, worked out from its seed.

Eight seeds in a row are all modes: peer or hierarchical, with advertisements or without, with
covering or without. Every fourth run has its faults so close together that nothing is repaired
before the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from dynatops.client.core.publications import Ack
from overlay.forwarding.tree.topology import TreeMode
from simulator.scenario import (
    QUIET_S,
    REPAIR_MAX_S,
    REPAIR_MIN_S,
    Fault,
    Scenario,
    any_weather,
    any_window,
    faults_until,
)
from simulator.tree.tree_changes import random_tree

TREE_WEIGHTS: Mapping[Fault, float] = MappingProxyType(
    {
        Fault.CRASH_AND_RESTART: 6,
        Fault.STOP_AND_RESTART: 3,
        Fault.CUT_LINK: 5,
        Fault.PARTITION: 2,
        Fault.CRASH_BEHIND_CUT: 2,
        Fault.LEAF_ADDED: 2,
        Fault.LEAF_REMOVED: 2,
        Fault.BROKER_MOVED: 2,
        Fault.BROKER_BETWEEN: 2,
        Fault.GONE_FOR_GOOD: 2,
        Fault.READERS_PAUSE: 2,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: 1.5,
        Fault.ALL_STOP: 1,
        Fault.ALL_CRASH: 1,
    }
)
# Between faults of every fourth run.
_DENSE_PAUSES_S = (0.2, 3.0)


def tree_scenario_of(seed: int, brokers: int, minutes: float) -> Scenario:
    rng = Random(f"tree {seed} {brokers} {float(minutes)}")
    topology = random_tree(
        rng,
        brokers,
        mode=(TreeMode.HIERARCHICAL if seed & 1 else TreeMode.PEER).value,
        advertisements=bool(seed & 2),
        covering=not seed & 4,
    )
    pauses_s = _DENSE_PAUSES_S if rng.random() < 0.25 else (REPAIR_MIN_S, REPAIR_MAX_S)
    return Scenario(
        seed=seed,
        brokers=brokers,
        minutes=minutes,
        weather=any_weather(rng),
        clients=2 * brokers,
        topics=rng.randint(4, 12),
        publications_per_s=rng.uniform(4.0, 15.0),
        faults=tuple(faults_until(minutes * 60.0 - QUIET_S, rng, TREE_WEIGHTS, pauses_s)),
        session_window_bytes=any_window(seed),
        topology=topology,
        acks=(Ack.REPLICATED, Ack.REPLICATED, Ack.RP, Ack.NONE),
    )
