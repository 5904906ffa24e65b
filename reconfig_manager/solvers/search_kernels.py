"""The inner loops of the solvers, compiled; see `overlay.placement.cost_kernels` for the rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynatops.kit.compiled import inlined, kernel
from overlay.placement.cost_kernels import Floats, Ints, State, Tables, delay_by_hops, join, leave
from overlay.placement.swap_kernels import swap, swap_delta


@kernel
def best_swap(t: Tables, s: State, broker: int) -> tuple[int, float]:
    """The partner with whom changing places gains most, and how much; the first of equals."""
    best, best_delta = -1, 0.0
    for other in range(s.place.shape[0]):
        if other != broker:
            delta = swap_delta(t, s, broker, other)
            if delta < best_delta:
                best, best_delta = other, delta
    return best, best_delta


class Search(NamedTuple):
    """A walk over placements: where it is and the best it has seen."""

    # broker -> node where it stands at present; what leaving it costs; how many may leave.
    home: Ints
    price_per_move: float
    moves_max: int
    # [0]: how many have left.
    moved: NDArray[np.int64]
    # The best placement; [0]: its total, [1]: that and the price of moving.
    best: Ints
    best_value: Floats
    # [0]: temperature, [1]: its factor for each step.
    temperature: Floats
    # [0]: state of the generator.
    random: NDArray[np.uint64]


@inlined
def _next_random(random: NDArray[np.uint64]) -> np.uint64:
    """xorshift64*"""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return np.uint64(x * np.uint64(2685821657736338717))


@inlined
def _random_below(random: NDArray[np.uint64], limit: int) -> int:
    high = _next_random(random) >> np.uint64(32)
    # Signed: an unsigned and a signed integer make a float.
    return np.int64((high * np.uint64(limit)) >> np.uint64(32))  # type: ignore[return-value]


@inlined
def _random_share(random: NDArray[np.uint64]) -> float:
    return ((_next_random(random) >> np.uint64(11)) + 1.0) * 2.0**-53


@inlined
def _more_moved(search: Search, s: State, first: int, second: int) -> int:
    source, target = s.place[first], s.place[second]
    home_first, home_second = search.home[first], search.home[second]
    more = 0
    if home_first == source:
        more += 1
    elif home_first == target:
        more -= 1
    if home_second == target:
        more += 1
    elif home_second == source:
        more -= 1
    return more


@kernel
def _keep_best(search: Search, s: State) -> None:
    value = s.total[0] + search.price_per_move * search.moved[0]
    if value < search.best_value[1]:
        search.best_value[0] = s.total[0]
        search.best_value[1] = value
        search.best[:] = s.place


@kernel
def anneal(t: Tables, s: State, search: Search, steps: int) -> None:
    """So many proposals to swap two brokers, each taken if it gains, or by luck if it does not."""
    size = s.place.shape[0]
    for _ in range(steps):
        search.temperature[0] *= search.temperature[1]
        first = _random_below(search.random, size)
        second = _random_below(search.random, size - 1)
        if second >= first:
            second += 1
        more = _more_moved(search, s, first, second)
        if more > 0 and search.moved[0] + more > search.moves_max:
            continue
        delta = swap_delta(t, s, first, second)
        loss = delta + search.price_per_move * more
        if loss > 0.0 and loss > -search.temperature[0] * np.log(_random_share(search.random)):
            continue
        swap(t, s, first, second, delta)
        search.moved[0] += more
        if loss < 0.0:
            _keep_best(search, s)


@kernel
def mean_change(t: Tables, s: State, random: NDArray[np.uint64], samples: int) -> float:
    """How much a swap of two random brokers changes the total, on average, up or down."""
    size = s.place.shape[0]
    changed = 0.0
    for _ in range(samples):
        first = _random_below(random, size)
        second = _random_below(random, size - 1)
        if second >= first:
            second += 1
        changed += abs(swap_delta(t, s, first, second))
    return changed / samples


@kernel
def enumerate_all(t: Tables, s: State, search: Search) -> int:
    """Visit every placement, each one swap from the one before (Heap's algorithm)."""
    size = s.place.shape[0]
    turns = np.zeros(size, dtype=np.int64)
    visited = 1
    i = 1
    while i < size:
        if turns[i] >= i:
            turns[i] = 0
            i += 1
            continue
        first = s.host[0 if i % 2 == 0 else turns[i]]
        second = s.host[i]
        more = _more_moved(search, s, first, second)
        swap(t, s, first, second, swap_delta(t, s, first, second))
        search.moved[0] += more
        if search.moved[0] <= search.moves_max:
            _keep_best(search, s)
        visited += 1
        turns[i] += 1
        i = 1
    return visited


@kernel
def marginal_costs(
    t: Tables, order: Ints, relay_price: Floats, delay_price: Floats, present: Floats, out: Floats
) -> None:
    """[topic, node] -> what one more subscriber there costs, if subscribers are there by chance.

    `present[topic, node]` is the probability of a subscriber on the node, each apart from the
    others. A node is in the tree unless nobody is at or below it, and then it is a relay unless a
    subscriber is on it. The derivative of the expected cost follows the same two sums: logarithms
    of absence from the leaves up, and what each ancestor's absence is worth from the root down.
    `order[row]` has the nodes with those nearer to the root first.
    """
    size = present.shape[1]
    absent = np.empty(size)
    worth = np.empty(size)
    for topic in range(present.shape[0]):
        row = t.row[topic]
        for node in range(size):
            absent[node] = np.log(max(1e-9, 1.0 - present[topic, node]))
        for i in range(size - 1, 0, -1):
            node = order[row, i]
            absent[t.parents[row, node]] += absent[node]
        root = order[row, 0]
        worth[root] = 0.0
        out[topic, root] = 0.0
        for i in range(1, size):
            node = order[row, i]
            worth[node] = worth[t.parents[row, node]] + np.exp(absent[node])
            relays = worth[node] / max(1e-9, 1.0 - present[topic, node]) - 1.0
            out[topic, node] = relay_price[topic] * relays + delay_price[topic] * t.hops[row, node]


# ---- some brokers at a time, by hops -------------------------------------------------------------


@kernel
def lift(t: Tables, s: State, brokers: Ints) -> None:
    """Take the subscriptions of these brokers out of all trees."""
    for broker in brokers:
        for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
            leave(t, s, t.topics[i], s.place[broker])


@kernel
def settle(t: Tables, s: State, brokers: Ints, nodes: Ints) -> None:
    """Put lifted brokers on these nodes, and their subscriptions back."""
    for k in range(brokers.shape[0]):
        broker, node = brokers[k], nodes[k]
        s.place[broker] = node
        s.host[node] = broker
        for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
            join(t, s, t.topics[i], node)
        s.delay_cost[broker] = delay_by_hops(t, broker, node)
    s.total[0] = s.relay_cost.sum() + s.delay_cost.sum()


@kernel
def settling_costs(t: Tables, s: State, brokers: Ints, nodes: Ints) -> Floats:
    """[k, i] -> what brokers[k], lifted, would cost on nodes[i] if no other came back."""
    costs = np.zeros((brokers.shape[0], nodes.shape[0]))
    # What one more subscriber of a topic costs on each node, worked out when first needed.
    known = np.zeros(t.row.shape[0], dtype=np.bool_)
    by_topic = np.empty((t.row.shape[0], nodes.shape[0]))
    for k in range(brokers.shape[0]):
        broker = brokers[k]
        for j in range(t.first_topic[broker], t.first_topic[broker + 1]):
            topic = t.topics[j]
            if not known[topic]:
                known[topic] = True
                for i in range(nodes.shape[0]):
                    by_topic[topic, i] = _joining_cost(t, s, topic, nodes[i])
            for i in range(nodes.shape[0]):
                costs[k, i] += by_topic[topic, i]
    return costs


@inlined
def _joining_cost(t: Tables, s: State, topic: int, node: int) -> float:
    row = t.row[topic]
    above = t.parents[row, node]
    cost = float(t.delay_price[topic] * t.hops[row, node])
    if above < 0:
        return cost
    if s.counts[topic, node] > 0:
        return float(cost - t.relay_price[topic])
    while t.parents[row, above] >= 0 and s.counts[topic, above] == 0:
        cost += float(t.relay_price[topic])
        above = t.parents[row, above]
    return cost
