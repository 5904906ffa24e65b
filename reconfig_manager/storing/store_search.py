"""A walk over assignments, and what each step away from where it is would change.

A step is a cycle of replicas that change places, or a chain of them whose last one goes to a store
with room, or a store that goes elsewhere with all it keeps:

    move    t: a -> b                   b has room
    swap    t: a -> b, u: b -> a
    chain   t: a -> b, u: b -> c        c has room
    ring    t: a -> b, u: b -> c, v: c -> a
    shift   all that is at a -> x       x is no store; then a is none

The topics of a step are different ones: t is not at b yet, u is. As no topic's traffic depends on
another's, what a step changes is the sum of what its parts change. `least[a, b]` has the best
replica of a to send to b; that is all that steps are looked for in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reconfig_manager.storing import refine_kernels
from reconfig_manager.storing.network import ROUNDING, Flags, Floats, Ints
from reconfig_manager.storing.problem import StoringProblem


@dataclass(frozen=True, slots=True)
class StoreStep:
    """What it changes the traffic by, and what goes where: topic, from, to."""

    change: float
    parts: tuple[tuple[int, int, int], ...]
    # A store that goes elsewhere: from, to.
    shift: tuple[int, int] | None = None


class StoreSearch:
    """Where it is: `stores` (S) and `keeps`; `traffic` is C, and what replicas cost there."""

    def __init__(
        self, problem: StoringProblem, stores: Ints, keeps: Flags, prices: Floats | None
    ) -> None:
        self._problem = problem
        self._prices = prices
        topics, brokers = problem.requests.shape
        self.keeps: Flags = keeps.copy()
        self.is_store: Flags = np.zeros(brokers, dtype=np.bool_)
        self.is_store[stores] = True
        self._nearest = np.empty(brokers, dtype=np.int32)
        self._away, self._away_second = np.empty(brokers), np.empty(brokers)
        self._load: Ints = keeps.sum(axis=0).astype(np.int32)
        # A replica has a row of its own in `changes`: [row, broker] is the change if it were there.
        # Those of a topic are one after the other, in the order of its stores.
        self._first_row = np.concatenate([[0], np.cumsum(problem.replicas)]).astype(np.int64)
        self._changes = np.zeros((int(self._first_row[-1]), brokers))
        self._row_of = np.full((topics, brokers), -1, dtype=np.int32)
        # [topic, broker]: if it were one more.
        self._one_more = np.zeros((topics, brokers))
        self._cost_of_topic = np.zeros(topics)
        # [from, to] -> the least change by sending one replica, and of which topic; by sending all.
        self._least = np.full((brokers, brokers), np.inf)
        self._least_topic = np.full((brokers, brokers), -1, dtype=np.int32)
        self._all = np.zeros((brokers, brokers))
        self._renew(range(topics), set(np.flatnonzero(self.is_store).tolist()))

    # ---- where it is -----------------------------------------------------------------------------

    @property
    def stores(self) -> Ints:
        return np.flatnonzero(self.is_store).astype(np.int32)

    @property
    def traffic(self) -> float:
        return float(self._cost_of_topic.sum())

    @property
    def least_gain(self) -> float:
        return ROUNDING * max(self.traffic, 1e-300)

    def _room(self) -> Ints:
        return self._problem.capacity - self._load

    # ---- going on --------------------------------------------------------------------------------

    def take(self, step: StoreStep) -> None:
        touched = set()
        if step.shift is not None:
            old, new = step.shift
            self.is_store[old], self.is_store[new] = False, True
            touched |= {old, new}
        for topic, source, target in step.parts:
            self.keeps[topic, source], self.keeps[topic, target] = False, True
            self._load[source] -= 1
            self._load[target] += 1
            touched |= {source, target}
        self._renew({topic for topic, _, _ in step.parts}, touched)

    def restore(self, stores: Ints, keeps: Flags) -> None:
        """As it was at another time."""
        before = self.is_store.copy()
        self.is_store[:] = False
        self.is_store[stores] = True
        differ = np.flatnonzero((self.keeps != keeps).any(axis=1)).tolist()
        touched = set(np.flatnonzero((self.keeps != keeps).any(axis=0)).tolist())
        touched |= set(np.flatnonzero(before != self.is_store).tolist())
        self.keeps = keeps.copy()
        self._load = keeps.sum(axis=0).astype(np.int32)
        self._renew(differ, touched)

    def complete(self, *, shifting: bool) -> None:
        """Give topics the replicas that they lack, if need be by sending others on, or a store to
        where there is more room."""
        for topic, wanted in enumerate(self._problem.replicas.tolist()):
            while int(self.keeps[topic].sum()) < wanted:
                if not self._add(topic) and not (shifting and self._make_room(topic)):
                    break

    def _make_room(self, topic: int) -> bool:
        stores = self.stores
        lacking = stores[~self.keeps[topic, stores]]
        step = self._best_shift(lacking, spare=1)
        if np.isinf(step.change):
            return False
        self.take(step)
        return True

    def _add(self, topic: int) -> bool:
        room, stores = self._room(), self.stores
        lacking = stores[~self.keeps[topic, stores]]
        one_more = self._one_more[topic]
        free = stores[room[stores] > 0]
        best, change = None, np.inf
        for store in lacking.tolist():
            there = float(one_more[store])
            if room[store] > 0 and there < change:
                best, change = (store, -1), there
            elif room[store] <= 0 and len(free):
                onwards = self._least[store, free]
                at = int(np.argmin(onwards))
                if there + onwards[at] < change:
                    best, change = (store, int(free[at])), there + float(onwards[at])
        if best is None:
            return False
        store, onward = best
        if onward >= 0:
            other = int(self._least_topic[store, onward])
            self.take(StoreStep(0.0, ((other, store, onward),)))
        self.keeps[topic, store] = True
        self._load[store] += 1
        self._renew({topic}, {store})
        return True

    # ---- steps from here -------------------------------------------------------------------------

    def best_step(self, *, shifting: bool) -> StoreStep | None:
        """The step that gains most; None if none gains anything."""
        stores, room = self.stores, self._room()
        if not len(stores):
            return None
        least = self._least[np.ix_(stores, stores)]
        found = [self._best_move(stores, room, shifting=shifting), self._best_swap(stores, least)]
        if shifting:
            found.append(self._best_shift(stores))
        best = min(found, key=lambda step: step.change)
        if best.change >= -self.least_gain:
            best = self._best_of_three(stores, room, least)
        return best if best.change < -self.least_gain else None

    def _best_move(self, stores: Ints, room: Ints, *, shifting: bool) -> StoreStep:
        targets = stores[room[stores] > 0]
        idle = stores[self._load[stores] == 0]
        if shifting and len(idle):
            # A store that keeps nothing may as well be elsewhere.
            targets = np.flatnonzero(room > 0).astype(np.int32)
        if not len(targets):
            return StoreStep(np.inf, ())
        row, column, change = _least_of(self._least[np.ix_(stores, targets)])
        source, target = int(stores[row]), int(targets[column])
        shift = None if self.is_store[target] else (int(idle[0]), target)
        return StoreStep(change, (self._part(source, target),), shift)

    def _best_swap(self, stores: Ints, least: Floats) -> StoreStep:
        row, column, change = _least_of(least + least.T)
        one, other = int(stores[row]), int(stores[column])
        return StoreStep(change, (self._part(one, other), self._part(other, one)))

    def _best_shift(self, stores: Ints, spare: int = 0) -> StoreStep:
        """To where there is room for `spare` more."""
        others = np.flatnonzero(~self.is_store & (self._problem.capacity > 0))
        if not len(others) or not len(stores):
            return StoreStep(np.inf, ())
        changes = self._all[np.ix_(stores, others)]
        wanted = self._load[stores] + spare
        fits = self._problem.capacity[others][None, :] >= wanted[:, None]
        row, column, change = _least_of(np.where(fits, changes, np.inf))
        return self.shift(int(stores[row]), int(others[column]), change)

    def shift(self, old: int, new: int, change: float = 0.0) -> StoreStep:
        """A store goes elsewhere with all it keeps."""
        topics = np.flatnonzero(self.keeps[:, old]).tolist()
        return StoreStep(change, tuple((topic, old, new) for topic in topics), (old, new))

    def _best_of_three(self, stores: Ints, room: Ints, least: Floats) -> StoreStep:
        """Chains and rings: the best way from a to c by some b, and back, or not."""
        by_way = np.full(least.shape, np.inf)
        for way in range(len(stores)):
            np.minimum(by_way, least[:, way][:, None] + least[way][None, :], out=by_way)
        chained = np.where(room[stores][None, :] > 0, by_way, np.inf)
        np.fill_diagonal(chained, np.inf)
        best = StoreStep(np.inf, ())
        for changes, ends in ((chained, False), (by_way + least.T, True)):
            row, column, change = _least_of(changes)
            if change < best.change:
                middle = int(np.argmin(least[row] + least[:, column]))
                a, b, c = int(stores[row]), int(stores[middle]), int(stores[column])
                back = (self._part(c, a),) if ends else ()
                best = StoreStep(change, (self._part(a, b), self._part(b, c), *back))
        return best

    def _part(self, source: int, target: int) -> tuple[int, int, int]:
        return int(self._least_topic[source, target]), source, target

    # ---- what follows from a change --------------------------------------------------------------

    def _renew(self, topics: Iterable[int], touched: set[int]) -> None:
        concerned = set(touched)
        for topic in topics:
            self._renew_topic(topic)
            concerned |= set(np.flatnonzero(self.keeps[topic]).tolist())
        for store in concerned:
            self._renew_store(store)

    def _renew_topic(self, topic: int) -> None:
        problem = self._problem
        distances, requests = problem.network.distances, problem.requests[topic]
        stores = np.flatnonzero(self.keeps[topic]).astype(np.int32)
        first = int(self._first_row[topic])
        one_more, changes = self._one_more[topic], self._changes[first : first + len(stores)]
        if len(stores):
            refine_kernels.nearest_two(
                distances, stores, self._nearest, self._away, self._away_second
            )
            refine_kernels.changes_elsewhere(
                distances,
                requests,
                self._nearest,
                self._away,
                self._away_second,
                one_more,
                changes,
            )
            cost = float((requests * self._away).sum())
        else:
            farthest = problem.network.farthest
            one_more[:] = requests @ distances - requests.sum() * farthest
            cost = float(requests.sum()) * farthest
        if self._prices is not None:
            price = self._prices[topic]
            one_more += price
            changes += price[None, :] - price[stores][:, None]
            cost += float(price[stores].sum())
        # It is there already.
        changes[:, stores] = np.inf
        self._row_of[topic, stores] = np.arange(first, first + len(stores), dtype=np.int32)
        self._cost_of_topic[topic] = cost

    def _renew_store(self, store: int) -> None:
        topics = np.flatnonzero(self.keeps[:, store]).astype(np.int32)
        refine_kernels.least_of_store(
            self._changes,
            self._row_of[topics, store],
            topics,
            self._least[store],
            self._least_topic[store],
            self._all[store],
        )


def _least_of(values: Floats) -> tuple[int, int, float]:
    row, column = divmod(int(np.argmin(values)), values.shape[1])
    return row, column, float(values[row, column])
