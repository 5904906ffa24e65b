"""What is known of the network at one time, as a problem for solvers.

Delays are hops, or round trips in units of their mean over all pairs of brokers: either way a link
counts one on average, so that a weight of delays means the same whatever the network, and a message
more or less is not drowned in milliseconds.

Costs are of the topics that are published to and subscribed to; |P| counts every topic with
subscribers or publications, as DYNATOPS does. Publications are rate times T_free, so benefit
(eq. 10) and moving cost (eq. 11) are both in messages for T_free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.base.identifiers import key_of, show_node
from overlay.chord.round_trips import FLOOR_MS
from overlay.placement.cost import Cost, CostModel, Demand, Prices
from overlay.placement.cost_kernels import Floats, Ints
from overlay.placement.geometry import RingGeometry
from reconfig_manager.model.plan import Base, CostFigures, ModelFacts, Move
from reconfig_manager.model.policy import RatesFrom
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.placement.instance import CELLS_MAX
from reconfig_manager.placement.problem import PlacementProblem


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the monitor knows; topics are its numbers."""

    # In the order of their names, and the node of each.
    brokers: tuple[str, ...]
    node_ids: tuple[int, ...]
    subscriptions: Sequence[Ints]
    # [topic] -> events/s.
    rates: Floats
    name_of: Callable[[int], str]
    # [from, to]; None: delays are in hops.
    rtt_ms: Floats | None
    base: Base
    completeness: float
    periods: int
    rates_from: RatesFrom
    rates_age_s: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    brokers: tuple[str, ...]
    node_ids: tuple[int, ...]
    # Of each broker: positions in `keys`.
    subscriptions: Sequence[Ints]
    # Of the topics that cost anything: events/s, and where they are on the ring.
    rates: Floats
    keys: tuple[int, ...]
    # |P|.
    topics: int
    events_per_s: float
    # [from, to], in units of their mean; None: delays are in hops.
    round_trips: Floats | None
    base: Base
    facts: ModelFacts

    def problem(self, t_free_s: float, delay_weight: float, moving: MovingCost) -> PlacementProblem:
        geometry = RingGeometry(self.node_ids)
        demand = Demand(
            subscriptions=[numbers.tolist() for numbers in self.subscriptions],
            publications=(self.rates * t_free_s).tolist(),
            keys=self.keys,
        )
        place = [geometry.index_of(node_id) for node_id in self.node_ids]
        return PlacementProblem(
            model=CostModel(geometry, demand, Prices(delay_weight, self.round_trips)),
            place=np.array(place, dtype=np.int32),
            topics=self.topics,
            moving=moving,
        )

    def moves(self, problem: PlacementProblem, place: Ints) -> tuple[Move, ...]:
        """In the order of the brokers' names."""
        ids = problem.model.geometry.node_ids.tolist()
        return tuple(
            Move(broker_id=broker, from_node=show_node(ids[old]), to_node=show_node(ids[new]))
            for broker, old, new in zip(
                self.brokers, problem.place.tolist(), place.tolist(), strict=True
            )
            if old != new
        )

    def place_after(self, problem: PlacementProblem, moves: Sequence[Move]) -> Ints:
        """[broker] -> node once these have moved."""
        place = problem.place.copy()
        position = {broker: i for i, broker in enumerate(self.brokers)}
        for move in moves:
            node = problem.model.geometry.index_of(int(move.to_node, 16))
            place[position[move.broker_id]] = node
        return place


def make_model(snapshot: Snapshot) -> Model:
    followers = np.zeros(len(snapshot.rates), dtype=np.int64)
    for numbers in snapshot.subscriptions:
        followers[numbers] += 1
    published = snapshot.rates > 0
    costly = np.nonzero(published & (followers > 0))[0]
    notes = snapshot.notes
    most = CELLS_MAX // len(snapshot.brokers)
    if len(costly) > most:
        weight = snapshot.rates[costly] * followers[costly]
        costly = np.sort(costly[np.argsort(-weight, kind="stable")[:most]])
        notes = (*notes, f"only the {most:,} topics that cost most are in the model")
    # Topics in the order of their keys: numbers depend on which broker reported first.
    keys = np.array([key_of(snapshot.name_of(number)) for number in costly.tolist()], np.uint64)
    order = np.argsort(keys, kind="stable")
    costly, keys = costly[order], keys[order]
    position = np.full(len(snapshot.rates), -1, dtype=np.int32)
    position[costly] = np.arange(len(costly), dtype=np.int32)
    subscriptions = [_kept(position[numbers]) for numbers in snapshot.subscriptions]
    events_per_s = float(snapshot.rates.sum())
    topics = int(np.count_nonzero(published | (followers > 0)))
    round_trips, mean_ms = in_their_mean(snapshot.rtt_ms)
    facts = ModelFacts(
        completeness=snapshot.completeness,
        brokers=len(snapshot.brokers),
        topics=topics,
        topics_published=int(np.count_nonzero(published)),
        subscriptions=int(followers.sum()),
        events_per_s=events_per_s,
        periods=snapshot.periods,
        rates_from=snapshot.rates_from,
        rates_age_s=snapshot.rates_age_s,
        delay_in="hops" if mean_ms is None else "rtt",
        rtt_mean_ms=mean_ms,
        notes=notes,
    )
    return Model(
        snapshot.brokers,
        snapshot.node_ids,
        subscriptions,
        snapshot.rates[costly],
        tuple(keys.tolist()),
        topics,
        events_per_s,
        round_trips,
        snapshot.base,
        facts,
    )


def in_their_mean(rtt_ms: Floats | None) -> tuple[Floats | None, float | None]:
    """Round trips as multiples of their mean, and that mean. Where all are alike they are hops."""
    if rtt_ms is None:
        return None, None
    between = ~np.eye(len(rtt_ms), dtype=np.bool_)
    floored = np.maximum(rtt_ms, FLOOR_MS)
    mean_ms = float(floored[between].mean())
    if np.ptp(floored[between]) == 0.0:
        return None, mean_ms
    return np.where(between, floored / mean_ms, 0.0), mean_ms


def _kept(numbers: Ints) -> Ints:
    return np.sort(numbers[numbers >= 0])


def cost_figures(cost: Cost) -> CostFigures:
    return CostFigures(overhead=cost.overhead, delay=cost.delay, total=cost.total)
