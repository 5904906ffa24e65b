"""The network as a problem of stores: who asks for what, who may keep it, and who does.

    members, their nodes        --> hops along the ring
    requests, reported/advised  --> r, the topics of the plan
    what stores say they keep   --> before; what is not in the plan stays where it is

What a store keeps besides the plan's topics (patterns that its settings named, topics that nobody
asks for at present) stays with it, and takes up its capacity: a plan makes nobody forget what it is
not about. A topic that a pattern of a store covers is at that store, whatever the plan says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dynatops.kit.filters import is_wildcard, pattern_matches
from overlay.placement.geometry import RingGeometry
from reconfig_manager.leader.leader_state import LeaderState
from reconfig_manager.model.plan import ModelFacts
from reconfig_manager.model.refusals import ModelTooThin
from reconfig_manager.model.store_plan import (
    EVENTS_PER_REQUEST,
    StoreChange,
    StoreModelFacts,
    StorePlanOptions,
    StorePrediction,
)
from reconfig_manager.monitor.stores import KnownStore
from reconfig_manager.storing.network import Flags, Floats, Ints, StoreNetwork
from reconfig_manager.storing.problem import (
    StoringProblem,
    StoringSolution,
    StoringTask,
    popularity,
)
from reconfig_manager.storing.reassignment import (
    TransferRates,
    decide_reassignment,
    transfer_prices,
)
from reconfig_manager.storing.replicas import replicas_by_places

# Of a topic that is kept and that nothing would keep any more.
TOPICS_LEFT = "topics_left_without_store"


@dataclass(frozen=True, slots=True)
class StoreModel:
    brokers: tuple[str, ...]
    topics: tuple[str, ...]
    # Of each broker that may be told what to keep: all that it keeps.
    kept: Mapping[str, tuple[str, ...]]
    problem: StoringProblem
    # [topic, broker]: kept now; and kept whatever is planned.
    before: Flags
    always: Flags
    # [broker]: it has what it keeps.
    alive: Flags
    rates: TransferRates
    facts: StoreModelFacts

    def task(self, options: StorePlanOptions) -> StoringTask:
        prices = transfer_prices(self.problem, self.before, self.rates)
        return StoringTask(prices=prices, seed=options.seed)

    def predict(self, solution: StoringSolution) -> StorePrediction:
        # Those that keep what their settings say count, too.
        capacity = np.where(self.alive, np.maximum(self.problem.capacity, 1), 0).astype(np.int32)
        problem = replace(self.problem, capacity=capacity)
        after = solution.keeps | self.always
        decision = decide_reassignment(problem, self.before, after, self.rates)
        cost_before, cost_after = problem.cost_of(self.before), problem.cost_of(after)
        accept, reason, explanation = decision.accept, str(decision.reason), str(decision)
        left = int(np.count_nonzero(self.before.any(axis=1) & ~after.any(axis=1)))
        if left:
            accept, reason = False, TOPICS_LEFT
            explanation = (
                f"reject: {left} topics would be kept by nobody any more; give stores more "
                "capacity, or ask for fewer replicas"
            )
        return StorePrediction(
            planner=solution.planner,
            traffic_before=cost_before.traffic,
            traffic_after=cost_after.traffic,
            hops_before=cost_before.mean_distance,
            hops_after=cost_after.mean_distance,
            unserved_before=cost_before.unserved,
            unserved_after=cost_after.unserved,
            benefit=decision.benefit,
            transfer=decision.transfer,
            missing=solution.missing,
            accept=accept,
            reason=reason,
            explanation=explanation,
        )

    def changes(self, solution: StoringSolution) -> tuple[StoreChange, ...]:
        """In the order of the brokers' names; of those that change."""
        found = []
        in_plan = set(self.topics)
        for column, broker_id in enumerate(self.brokers):
            kept = self.kept.get(broker_id)
            if kept is None:
                continue
            wanted = [self.topics[row] for row in np.flatnonzero(solution.keeps[:, column])]
            covering = [pattern for pattern in kept if is_wildcard(pattern)]
            has, to_have = set(kept), set(wanted)
            begins = tuple(
                topic
                for topic in wanted
                if topic not in has and not any(pattern_matches(p, topic) for p in covering)
            )
            ends = tuple(topic for topic in kept if topic in in_plan and topic not in to_have)
            if begins or ends:
                found.append(StoreChange(broker_id=broker_id, kept=kept, begins=begins, ends=ends))
        return tuple(found)


def model_facts(leader: LeaderState, facts: StoreModelFacts, now_s: float) -> ModelFacts:
    """For the plan that it is part of."""
    return ModelFacts(
        completeness=leader.monitor.completeness(leader.members, now_s),
        brokers=len(leader.members),
        topics=facts.topics,
        topics_published=0,
        subscriptions=0,
        events_per_s=0.0,
        periods=leader.monitor.periods,
        notes=facts.notes,
    )


def store_model(leader: LeaderState, options: StorePlanOptions, now_s: float) -> StoreModel:
    """Raises ModelTooThin."""
    members = list(leader.members)
    brokers = tuple(member.broker_id for member in members)
    why = leader.members.unready() if brokers else "no broker is registered"
    if why:
        raise ModelTooThin(why)
    stores = {name: store for name in brokers if (store := leader.stores.get(name)) is not None}
    candidates = {
        name: store
        for name, store in stores.items()
        if store.may_be_told and leader.stores.heard_lately(store, now_s)
    }
    if not candidates:
        raise ModelTooThin(
            "no broker may be told what to keep: give some of them store.capacity and a folder"
        )
    known = leader.stores.demand(brokers, leader.rules.rates_from, now_s)
    topics, requests, notes = _most_wanted(
        known.demand.topics, known.demand.requests, leader.settings.storing.topics_max
    )
    if not topics:
        raise ModelTooThin("nobody has asked for the past of any topic: there is nothing to save")
    before, always, rest = _kept_now(brokers, topics, stores, candidates)
    capacity = np.array(
        [
            max(0, candidates[name].capacity - rest[name]) if name in candidates else 0
            for name in brokers
        ],
        dtype=np.int32,
    )
    sites = int(np.count_nonzero(capacity))
    if not sites:
        raise ModelTooThin("the stores have no room besides what the plan is not about")
    most = min(options.stores or sites, sites)
    if options.stores is not None and options.stores > sites:
        notes = (*notes, f"only {sites} brokers have room as stores")
    geometry = RingGeometry([member.node_id for member in members])
    place: Ints = np.array([geometry.index_of(m.node_id) for m in members], dtype=np.int32)
    problem = StoringProblem(
        network=StoreNetwork.of_ring(geometry, place),
        requests=requests,
        replicas=_replicas(options, requests, most, capacity),
        stores=most,
        capacity=capacity,
    )
    per_request = options.events_per_request or _events_per_request(leader, now_s)
    rates = TransferRates(
        period_s=options.period_s,
        events_stored=_events_stored(topics, stores),
        events_per_request=per_request,
    )
    facts = StoreModelFacts(
        candidates=len(candidates),
        topics=len(topics),
        requests_per_s=float(requests.sum()),
        requests_from=known.source,
        requests_age_s=known.age_s,
        events_per_request=per_request,
        notes=notes,
    )
    kept = {name: tuple(store.keeps) for name, store in candidates.items()}
    alive = np.array([name in stores and not stores[name].failure for name in brokers])
    return StoreModel(brokers, topics, kept, problem, before, always, alive, rates, facts)


def _most_wanted(
    topics: tuple[str, ...], requests: Floats, most: int
) -> tuple[tuple[str, ...], Floats, tuple[str, ...]]:
    wanted = requests.sum(axis=1)
    chosen = np.flatnonzero(wanted > 0)
    notes: tuple[str, ...] = ()
    if len(chosen) > most:
        chosen = np.sort(chosen[np.argsort(-wanted[chosen], kind="stable")[:most]])
        notes = (f"only the {most:,} topics that are asked for most are in the plan",)
    return tuple(topics[row] for row in chosen.tolist()), requests[chosen], notes


def _kept_now(
    brokers: tuple[str, ...],
    topics: tuple[str, ...],
    stores: Mapping[str, KnownStore],
    candidates: Mapping[str, KnownStore],
) -> tuple[Flags, Flags, dict[str, int]]:
    """What is kept; what of it stays, whatever is planned; and of each store how much it keeps that
    the plan is not about."""
    before: Flags = np.zeros((len(topics), len(brokers)), dtype=np.bool_)
    always = before.copy()
    rest: dict[str, int] = {}
    row = {topic: number for number, topic in enumerate(topics)}
    for column, name in enumerate(brokers):
        store = stores.get(name)
        if store is None or store.failure:
            continue
        named = [row[pattern] for pattern in store.keeps if pattern in row]
        before[named, column] = True
        if name not in candidates:
            always[named, column] = True
        for pattern in filter(is_wildcard, store.keeps):
            covered = [number for topic, number in row.items() if pattern_matches(pattern, topic)]
            before[covered, column] = always[covered, column] = True
        rest[name] = len(store.keeps) - len(named)
    return before, always, rest


def _replicas(options: StorePlanOptions, requests: Floats, most: int, capacity: Ints) -> Ints:
    least = min(options.replicas, most)
    if options.replicas_max is None:
        return np.full(len(requests), least, dtype=np.int32)
    places = int(np.sort(capacity)[-most:].sum())
    highest = min(max(options.replicas_max, least), most)
    return replicas_by_places(popularity(requests), places, least, highest)


def _events_stored(topics: tuple[str, ...], stores: Mapping[str, KnownStore]) -> Floats:
    events = np.zeros(len(topics))
    for number, topic in enumerate(topics):
        kept = [store.keeps[topic].events for store in stores.values() if topic in store.keeps]
        events[number] = max(kept, default=0)
    return events


def _events_per_request(leader: LeaderState, now_s: float) -> float:
    counted = leader.stores.meter.between(0.0, now_s)
    if counted is None or counted.requests < leader.settings.storing.requests_min:
        return EVENTS_PER_REQUEST
    return max(1.0, counted.events_per_request)
