"""One run: a workload, users on brokers, a network of these; and all that is counted of it.

What happens until the workload has settled is not measured; then the network is rearranged, and
again every T_free. Changes are given to the network in order, as many at once as no pair of broker
and topic repeats among them; or, for overlays that are mended at times, the difference that a
step makes. Deliveries are sampled at even times: some publications each, drawn as they happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from experiments.systems.selections import BrokerChanges, UserSelection
from experiments.systems.system import BrokerNetwork, Floats, Ints, Pairs, Rearranging, Upkeep
from experiments.workloads.workload import Workload

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    # T_free; None: it is never rearranged.
    free_h: float | None = None
    # The network sees what a step changed, and not how.
    by_step: bool = False
    samples: int = 10
    publications: int = 300
    # Without deliveries a run takes half the time.
    deliveries: bool = True


@dataclass(slots=True)
class _RunSamples:
    """Sums over deliveries and publications."""

    publications: int = 0
    messages: int = 0
    spread: int = 0
    deliveries: int = 0
    delay: float = 0.0
    overlay_delay: float = 0.0
    load_std: list[float] = field(default_factory=list)
    load_mean: list[float] = field(default_factory=list)
    degree: int = 0
    held: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _RunCounts:
    upkeep: Upkeep = field(default_factory=Upkeep)
    broker_changes: int = 0
    user_changes: int = 0
    reconfiguration: int = 0
    rearranged: int = 0


def run(
    workload: Workload,
    selection: UserSelection,
    network: BrokerNetwork,
    measuring: Measuring,
    seed: int,
) -> Metrics:
    rng = np.random.default_rng([seed, 20])
    counted, samples = _RunCounts(), _RunSamples()
    before: tuple[int, int] | None = None
    free_h = measuring.free_h or float("inf")
    sample_times = _even_times(workload, measuring.samples)
    next_rearrangement_h = workload.settled_h if measuring.free_h else float("inf")
    held = 0
    for step in workload.steps():
        if before is None and step.at_h > workload.settled_h:
            before = (selection.messages, selection.handovers)
        selection.advance(step.at_h)
        changes = selection.apply(step.changes)
        upkeep = _tell(network, changes, by_step=measuring.by_step)
        held += 2 * int(changes.joins.sum()) - changes.size
        if before is not None:
            counted.upkeep += upkeep
            counted.broker_changes += changes.size
            counted.user_changes += step.changes.size
        if step.at_h >= next_rearrangement_h:
            next_rearrangement_h += free_h
            messages = _rearrange(network, workload.rates(), free_h)
            counted.reconfiguration += messages
            counted.rearranged += messages > 0
        if sample_times and step.at_h >= sample_times[0]:
            del sample_times[0]
            samples.held.append(held)
            _sample_loads(selection, samples)
            samples.degree = max(samples.degree, network.greatest_degree)
            if measuring.deliveries:
                _sample(workload, selection, network, measuring.publications, rng, samples)
    messages, handovers = before or (0, 0)
    return _metrics(
        workload, counted, samples, selection.messages - messages, selection.handovers - handovers
    )


def _rearrange(network: BrokerNetwork, rates: Floats, free_h: float) -> int:
    # Only such networks are measured with a T_free.
    rearranging: Rearranging = network  # type: ignore[assignment]
    return rearranging.rearrange(rates, free_h)


def _even_times(workload: Workload, samples: int) -> list[float]:
    span = workload.end_h - workload.settled_h
    return [workload.settled_h + span * (i + 0.5) / samples for i in range(samples)]


# ---- changes -------------------------------------------------------------------------------------


def _tell(network: BrokerNetwork, changes: BrokerChanges, *, by_step: bool) -> Upkeep:
    upkeep = Upkeep()
    for batch in [netted(changes)] if by_step else batches(changes):
        if batch.size:
            upkeep += network.change(*joins_and_leaves(batch))
    return upkeep


def joins_and_leaves(changes: BrokerChanges) -> tuple[Pairs, Pairs]:
    both = np.column_stack([changes.brokers, changes.topics])
    return both[changes.joins], both[~changes.joins]


def batches(changes: BrokerChanges) -> Iterator[BrokerChanges]:
    """In order, cut where a pair comes again."""
    start = 0
    before = _before(changes)
    for i in np.flatnonzero(before >= 0).tolist():
        if before[i] >= start:
            yield changes.taken(slice(start, i))
            start = i
    if start < changes.size:
        yield changes.taken(slice(start, changes.size))


def _before(changes: BrokerChanges) -> NDArray[np.int64]:
    """[change] -> the last one before it of the same broker and topic; -1: none."""
    order = np.lexsort((changes.topics, changes.brokers))
    brokers, topics = changes.brokers[order], changes.topics[order]
    again = (brokers[1:] == brokers[:-1]) & (topics[1:] == topics[:-1])
    before = np.full(changes.size, -1, dtype=np.int64)
    before[order[1:][again]] = order[:-1][again]
    return before


def netted(changes: BrokerChanges) -> BrokerChanges:
    """Without pairs that are in the end what they were: joins and leaves of a pair alternate."""
    pairs = np.column_stack([changes.brokers, changes.topics])[::-1]
    _, last, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    return changes.taken(np.sort(changes.size - 1 - last[counts % 2 == 1]))


# ---- deliveries ----------------------------------------------------------------------------------


def _sample_loads(selection: UserSelection, samples: _RunSamples) -> None:
    loads = selection.loads()
    samples.load_std.append(float(loads.std()))
    samples.load_mean.append(float(loads.mean()))


def _sample(
    workload: Workload,
    selection: UserSelection,
    network: BrokerNetwork,
    publications: int,
    rng: np.random.Generator,
    samples: _RunSamples,
) -> None:
    users, topics = selection.interests()
    first = np.searchsorted(topics, np.arange(len(workload.topics) + 1))
    cells = _cells_of(workload, len(selection.broker_of))
    delay_to = np.zeros(len(workload.sites))
    for published in workload.publications(publications, rng):
        found = network.publish(int(selection.broker_of[published.user]), published.topic)
        samples.publications += 1
        samples.messages += found.messages
        samples.spread += found.spread
        readers = users[first[published.topic] : first[published.topic + 1]]
        if not len(readers):
            continue
        delay_to[found.brokers] = found.delays
        at = selection.broker_of[readers]
        overlay = float(delay_to[at].sum())
        publisher_at = np.array([selection.broker_of[published.user]])
        first_hop = workload.access_ms(np.array([published.cell]), publisher_at)[0]
        last_hops = float(workload.access_ms(cells[readers], at).sum())
        samples.deliveries += len(readers)
        samples.overlay_delay += overlay
        samples.delay += overlay + last_hops + float(first_hop) * len(readers)


def _cells_of(workload: Workload, users: int) -> Ints:
    cells: Ints = getattr(workload, "cell_of", np.zeros(users, dtype=np.int32))
    return np.maximum(cells, 0)


# ---- sums ----------------------------------------------------------------------------------------


def _metrics(
    workload: Workload, counted: _RunCounts, samples: _RunSamples, cluster: int, handovers: int
) -> Metrics:
    hours = workload.end_h - workload.settled_h
    mean_load = float(np.mean(samples.load_mean)) if samples.load_mean else 0.0
    load_std = float(np.mean(samples.load_std)) if samples.load_std else 0.0
    metrics = {
        "management": (counted.upkeep.messages + cluster) / hours,
        "management_trees": counted.upkeep.messages / hours,
        "management_clusters": cluster / hours,
        "broker_changes": counted.broker_changes / hours,
        "user_changes": counted.user_changes / hours,
        "handovers": handovers / hours,
        "reconfiguration": (counted.reconfiguration + counted.upkeep.links_changed) / hours,
        "reconfigurations": float(counted.rearranged),
        "load_std": load_std,
        "load_std_share": load_std / mean_load if mean_load else 0.0,
        "subscriptions_held": float(np.mean(samples.held)) if samples.held else 0.0,
        "greatest_degree": float(samples.degree),
    }
    if samples.publications:
        metrics["overhead"] = samples.messages / samples.publications
        metrics["overhead_spread"] = samples.spread / samples.publications
    if samples.deliveries:
        metrics["delay"] = samples.delay / samples.deliveries
        metrics["delay_overlay"] = samples.overlay_delay / samples.deliveries
    return metrics
