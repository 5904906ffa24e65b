"""The inner loops of the cost model, compiled. `overlay.placement.cost` says what they compute.

Rules: arrays and scalars only; nothing here allocates in proportion to anything but its result.
`dynatops.kit.compiled` keeps compiled code on disk, so that only the first process pays for
compilation.

One idea carries all of it: `counts[topic, node]` is the number of subscribing nodes in the part of
the topic's tree at and below the node. A node is in the tree where the count is positive; it is a
relay where it is positive, the node is not the root, and no subscriber is on it. When a subscriber
leaves a node, the branch that dies with it is a chain of nodes whose count is one; when one
arrives, the branch that grows is a chain of nodes whose count is zero. Both are found by walking
up. `overlay.placement.swap_kernels` works out from them what a change would cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynatops.kit.compiled import inlined, kernel

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


class Tables(NamedTuple):
    """What no placement changes."""

    # Subscriptions: of broker b, topics[first_topic[b] : first_topic[b + 1]], ascending.
    first_topic: NDArray[np.int64]
    topics: Ints
    # The same by topic.
    first_broker: NDArray[np.int64]
    brokers: Ints
    # topic -> its row in the tables below: topics of one rendezvous point share it.
    row: Ints
    # [row] -> the rendezvous point; [row, node] -> the node before it on the route; hops there.
    roots: Ints
    parents: Ints
    hops: NDArray[np.uint8]
    # topic -> what a relayed message costs, and a hop (or millisecond) for one subscriber.
    relay_price: Floats
    delay_price: Floats
    # [broker, node] -> cost of its delays there, by hops (eq. 14); empty where it would be too big.
    delay_at: Floats
    # Between brokers, [from, to]. Where only one of them is given the other is one everywhere;
    # where neither is, both are empty, and so are the edges below.
    rtt_ms: Floats
    relay_weight: Floats
    # [row, node] -> the edge from its parent; the ends of each edge, and
    # for each node the edges that touch it.
    edge: Ints
    edge_from: Ints
    edge_to: Ints
    first_touching: NDArray[np.int64]
    touching: Ints


class State(NamedTuple):
    """A placement, and what is counted so that changes to it are cheap."""

    # broker -> node, and node -> broker.
    place: Ints
    host: Ints
    # [topic, node], see above.
    counts: Ints
    # node -> cost of the messages relayed there; broker -> cost of its delays. Hops only.
    relay_cost: Floats
    delay_cost: Floats
    # edge -> sum of prices over the subscribers and the relays behind it. Pairs only.
    delay_flow: Floats
    relay_flow: Floats
    # [0]: the cost of the placement.
    total: Floats
    # Room for one branch.
    chain: Ints


# ---- routes --------------------------------------------------------------------------------------


@kernel
def grow_routes(
    roots: Ints,
    first_offset: NDArray[np.int64],
    offsets: Ints,
    parents: Ints,
    hops: NDArray[np.uint8],
) -> None:
    """Fill parents and hops of all routes from each root.

    What lies beyond a node is an unbroken stretch of the ring, and its fingers cut that into the
    stretches beyond its children. `offsets` are the distinct fingers of each node, in places
    clockwise from it.
    """
    size = parents.shape[1]
    # At most one waiting stretch for each finger of each node on a route.
    waiting = np.empty((64 * 64 + 1, 2), dtype=np.int32)
    for row in range(roots.shape[0]):
        root = roots[row]
        parents[row, root] = -1
        hops[row, root] = 0
        waiting[0, 0] = root
        waiting[0, 1] = size
        depth = 1
        while depth > 0:
            depth -= 1
            node = waiting[depth, 0]
            length = waiting[depth, 1]
            for k in range(first_offset[node], first_offset[node + 1]):
                start = offsets[k]
                if start >= length:
                    break
                end = length
                if k + 1 < first_offset[node + 1] and offsets[k + 1] < length:
                    end = offsets[k + 1]
                child = (node + start) % size
                parents[row, child] = node
                hops[row, child] = hops[row, node] + 1
                if end - start > 1:
                    waiting[depth, 0] = child
                    waiting[depth, 1] = end - start
                    depth += 1


@kernel
def delay_matrix(t: Tables) -> Floats:
    """[broker, node] -> the cost of the broker's delays there, by hops (eq. 14)."""
    size = t.first_topic.shape[0] - 1
    costs = np.zeros((size, size), dtype=np.float64)
    for broker in range(size):
        for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
            topic = t.topics[i]
            row = t.row[topic]
            price = t.delay_price[topic]
            for node in range(size):
                costs[broker, node] += price * t.hops[row, node]
    return costs


# ---- a whole placement ---------------------------------------------------------------------------


@kernel
def evaluate(t: Tables, place: Ints, host: Ints) -> tuple[float, float]:
    """Overhead and delay, priced, worked out from nothing (eq. 4 and 5)."""
    size = place.shape[0]
    seen = np.full(size, -1, dtype=np.int32)
    subscribes = np.full(size, -1, dtype=np.int32)
    paired = t.edge.shape[0] > 0
    overhead = 0.0
    delay = 0.0
    for topic in range(t.row.shape[0]):
        row = t.row[topic]
        parents = t.parents[row]
        first = t.first_broker[topic]
        end = t.first_broker[topic + 1]
        relays = 0.0
        distance = 0.0
        for i in range(first, end):
            subscribes[place[t.brokers[i]]] = topic
        seen[t.roots[row]] = topic
        for i in range(first, end):
            node = place[t.brokers[i]]
            if paired:
                below = node
                while parents[below] >= 0:
                    distance += t.rtt_ms[host[parents[below]], host[below]]
                    below = parents[below]
            else:
                distance += t.hops[row, node]
            while seen[node] != topic:
                seen[node] = topic
                if subscribes[node] != topic:
                    if paired:
                        relays += t.relay_weight[host[parents[node]], host[node]]
                    else:
                        relays += 1.0
                node = parents[node]
        overhead += t.relay_price[topic] * relays
        delay += t.delay_price[topic] * distance
    return overhead, delay


@kernel
def fill(t: Tables, s: State) -> None:
    """Count everything from `place`."""
    size = s.place.shape[0]
    for broker in range(size):
        s.host[s.place[broker]] = broker
    s.counts[:] = 0
    s.relay_cost[:] = 0.0
    s.delay_cost[:] = 0.0
    s.delay_flow[:] = 0.0
    s.relay_flow[:] = 0.0
    for broker in range(size):
        node = s.place[broker]
        for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
            join(t, s, t.topics[i], node)
    if not t.edge.shape[0]:
        for broker in range(size):
            s.delay_cost[broker] = delay_by_hops(t, broker, s.place[broker])
    overhead, delay = evaluate(t, s.place, s.host)
    s.total[0] = overhead + delay


@inlined
def delay_by_hops(t: Tables, broker: int, node: int) -> float:
    cost = 0.0
    for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
        topic = t.topics[i]
        cost += t.delay_price[topic] * t.hops[t.row[topic], node]
    return cost


@kernel
def broker_costs(t: Tables, s: State) -> tuple[Floats, Floats]:
    """[broker] -> what it relays without wanting it (eq. 7), and its delays (eq. 8), priced."""
    size = s.place.shape[0]
    overhead = np.zeros(size, dtype=np.float64)
    delay = np.zeros(size, dtype=np.float64)
    if not t.edge.shape[0]:
        for broker in range(size):
            overhead[broker] = s.relay_cost[s.place[broker]]
            delay[broker] = s.delay_cost[broker]
        return overhead, delay
    for e in range(t.edge_to.shape[0]):
        source, target = s.host[t.edge_from[e]], s.host[t.edge_to[e]]
        overhead[target] += s.relay_flow[e] * t.relay_weight[source, target]
    # By name: taken out of the tuple step by step they are counted step by step.
    parents, host, rtt_ms = t.parents, s.host, t.rtt_ms
    for broker in range(size):
        for i in range(t.first_topic[broker], t.first_topic[broker + 1]):
            topic = t.topics[i]
            row = t.row[topic]
            node = s.place[broker]
            distance = 0.0
            above = parents[row, node]
            while above >= 0:
                distance += rtt_ms[host[above], host[node]]
                node = above
                above = parents[row, node]
            delay[broker] += t.delay_price[topic] * distance
    return overhead, delay


# ---- one subscriber of one topic moves -----------------------------------------------------------


@inlined
def join(t: Tables, s: State, topic: int, node: int) -> None:
    row = t.row[topic]
    price = t.relay_price[topic]
    paired = t.edge.shape[0] > 0
    at = node
    while True:
        above = t.parents[row, at]
        s.counts[topic, at] += 1
        if above < 0:
            return
        count = s.counts[topic, at]
        # The node itself was a relay if anything was below it; one above becomes a relay now.
        change = 0.0
        if at == node and count > 1:
            change = -price
        elif at != node and count == 1:
            change = price
        if paired:
            s.relay_flow[t.edge[row, at]] += change
            s.delay_flow[t.edge[row, at]] += t.delay_price[topic]
        else:
            s.relay_cost[at] += change
        at = above


@inlined
def leave(t: Tables, s: State, topic: int, node: int) -> None:
    row = t.row[topic]
    price = t.relay_price[topic]
    paired = t.edge.shape[0] > 0
    at = node
    while True:
        above = t.parents[row, at]
        s.counts[topic, at] -= 1
        if above < 0:
            return
        count = s.counts[topic, at]
        change = 0.0
        if at == node and count > 0:
            change = price
        elif at != node and count == 0:
            change = -price
        if paired:
            s.relay_flow[t.edge[row, at]] += change
            s.delay_flow[t.edge[row, at]] -= t.delay_price[topic]
        else:
            s.relay_cost[at] += change
        at = above
