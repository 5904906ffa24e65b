"""The inner loops of `refine`, compiled: a topic, and each of its replicas elsewhere.

A topic's traffic does not depend on where others are, so all of it is of one topic. Who is nearest
to a store that goes away goes to its second nearest, or to where the store has gone.
"""

from __future__ import annotations

import numpy as np

from dynatops.kit.compiled import kernel
from reconfig_manager.storing.network import Floats, Ints


@kernel
def nearest_two(
    distances: Floats, stores: Ints, nearest: Ints, away: Floats, away_second: Floats
) -> None:
    """[broker] -> the position of its nearest store in `stores`, the distance there, and to the
    second nearest: infinite where there is none."""
    for broker in range(distances.shape[0]):
        first, best, second = -1, np.inf, np.inf
        for at in range(stores.shape[0]):
            distance = distances[broker, stores[at]]
            if distance < best:
                first, best, second = at, distance, best
            elif distance < second:
                second = distance
        nearest[broker], away[broker], away_second[broker] = first, best, second


@kernel
def changes_elsewhere(
    distances: Floats,
    requests: Floats,
    nearest: Ints,
    away: Floats,
    away_second: Floats,
    one_more: Floats,
    changes: Floats,
) -> None:
    """one_more[x]: the change of the topic's traffic if broker x were one more store of it;
    changes[at, x]: if its store `at` were at x."""
    brokers = distances.shape[0]
    one_more[:] = 0.0
    changes[:] = 0.0
    for broker in range(brokers):
        asked, here = requests[broker], away[broker]
        if asked > 0.0:
            at, second = nearest[broker], away_second[broker]
            for x in range(brokers):
                distance = distances[broker, x]
                with_here = min(here, distance)
                one_more[x] += asked * (with_here - here)
                changes[at, x] += asked * (min(second, distance) - with_here)
    for at in range(changes.shape[0]):
        for x in range(brokers):
            changes[at, x] += one_more[x]


@kernel
def least_of_store(
    changes: Floats, places: Ints, topics: Ints, least: Floats, least_topic: Ints, together: Floats
) -> None:
    """Of what a store keeps (rows `places` of `changes`, and of which topics): by broker, the least
    change by sending one replica there, of which topic, and the change by sending all."""
    least[:] = np.inf
    least_topic[:] = -1
    together[:] = 0.0
    for number in range(places.shape[0]):
        row, topic = places[number], topics[number]
        for x in range(least.shape[0]):
            change = changes[row, x]
            together[x] += change
            if change < least[x]:
                least[x] = change
                least_topic[x] = topic
