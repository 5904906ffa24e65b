"""Made-up instances for planning: brokers, what they subscribe to, and how much is published.

The patterns are those of DYNATOPS IV-A, drawn for brokers: `uniform`, every topic alike; `zipf`,
topic i with a probability in proportion to (i + 1) ** -sigma, i from 1, as printed; `multimodal`,
topics in modes of ten, of which a broker draws one after the other and takes five topics from each.
Some brokers are broad and some narrow: the number of topics is spread evenly around its mean. A
broker stands where the hash of its name puts it, as in a network that has just begun. The same
arguments make the same instance.
"""

from __future__ import annotations

import heapq
import math
from random import Random

from experiments.workloads.modes import modes_of
from experiments.workloads.patterns import ZIPF_SIGMA, Pattern, pattern_weights
from overlay.base.identifiers import key_of
from reconfig_manager.placement.instance import Instance

MODE_TOPICS_DRAWN = 5
PUBLICATIONS_MAX = 100


def topics_per_broker_default(topics: int) -> int:
    return min(100, max(1, topics // 10))


def make_instance(
    brokers: int,
    topics: int,
    pattern: Pattern,
    seed: int,
    topics_per_broker: int | None = None,
    sigma: float = ZIPF_SIGMA,
) -> Instance:
    """`sigma` is of the pattern `zipf`."""
    rng = Random(f"{pattern} {seed}")
    mean = topics_per_broker or topics_per_broker_default(topics)
    names = [f"t{i}" for i in range(topics)]
    subscriptions: dict[str, list[str]] = {}
    for i in range(brokers):
        chosen = _choose(pattern, topics, mean, sigma, rng)
        subscriptions[f"b{i}"] = [names[topic] for topic in sorted(chosen)]
    placement = {broker: f"{key_of(broker):016x}" for broker in subscriptions}
    return Instance(
        node_ids=sorted(placement.values()),
        brokers=subscriptions,
        publications={name: float(rng.randint(1, PUBLICATIONS_MAX)) for name in names},
        placement=placement,
    )


def _choose(pattern: Pattern, topics: int, mean: int, sigma: float, rng: Random) -> set[int]:
    if pattern is Pattern.MULTIMODAL:
        modes = modes_of(topics)
        drawn = rng.sample(modes, min(len(modes), _spread(mean // MODE_TOPICS_DRAWN, rng)))
        return {t for m in drawn for t in rng.sample(m, min(MODE_TOPICS_DRAWN, len(m)))}
    wanted = min(topics, _spread(mean, rng))
    if pattern is Pattern.UNIFORM:
        return set(rng.sample(range(topics), wanted))
    # Without replacement, in proportion to the weights: the smallest of exponential variates.
    weights = pattern_weights(pattern, topics, sigma).tolist()
    keys = [(-math.log(1.0 - rng.random()) / w, topic) for topic, w in enumerate(weights)]
    return {topic for _, topic in heapq.nsmallest(wanted, keys)}


def _spread(mean: int, rng: Random) -> int:
    """Evenly from 1 to twice the mean, so that the mean is the mean."""
    return rng.randint(1, max(1, 2 * mean - 1))
