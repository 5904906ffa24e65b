"""What changes when two brokers change places, compiled; `cost_kernels` has the rules.

Only topics in which just one of the two is interested matter: for each, a subscriber moves from one
node to another. Where costs depend on who talks to whom, so do the edges that touch the two nodes.
"""

from __future__ import annotations

import numpy as np

from dynatops.kit.compiled import inlined, kernel
from overlay.placement.cost_kernels import State, Tables, delay_by_hops, join, leave


@inlined
def _relays_gained(t: Tables, s: State, topic: int, source: int, target: int) -> int:
    """How many more relays there are once the topic's subscriber on source is on target."""
    row = t.row[topic]
    gained = 0
    # The branch that dies: source, then every relay that serves nobody else.
    dead = 0
    above = t.parents[row, source]
    if above >= 0:
        if s.counts[topic, source] > 1:
            gained = 1
        else:
            s.chain[0] = source
            dead = 1
            at = above
            above = t.parents[row, at]
            while above >= 0 and s.counts[topic, at] == 1:
                gained -= 1
                s.chain[dead] = at
                dead += 1
                at = above
                above = t.parents[row, at]
    above = t.parents[row, target]
    if above < 0:
        return gained
    # The branch that grows, up to what is alive, or would have died.
    count = s.counts[topic, target]
    if count > 0:
        if count == 1:
            for k in range(dead):
                if s.chain[k] == target:
                    return gained + dead - k - 1
        return gained - 1
    at = above
    above = t.parents[row, at]
    while above >= 0:
        count = s.counts[topic, at]
        if count > 0:
            if count == 1:
                for k in range(dead):
                    if s.chain[k] == at:
                        return gained + dead - k
            return gained
        gained += 1
        at = above
        above = t.parents[row, at]
    return gained


# ---- two brokers change places -------------------------------------------------------------------


@kernel
def swap_delta(t: Tables, s: State, first: int, second: int) -> float:
    """What the total gains if two brokers change places. Changes nothing."""
    if t.edge.shape[0]:
        return _swap_delta_pairs(t, s, first, second)
    source, target = s.place[first], s.place[second]
    known = t.delay_at.shape[0] > 0
    delta = 0.0
    if known:
        delta += t.delay_at[first, target] - t.delay_at[first, source]
        delta += t.delay_at[second, source] - t.delay_at[second, target]
    i, i_end = t.first_topic[first], t.first_topic[first + 1]
    j, j_end = t.first_topic[second], t.first_topic[second + 1]
    while i < i_end or j < j_end:
        # The topics in which just one of the two is interested, and whence and where it goes.
        if j == j_end or (i < i_end and t.topics[i] < t.topics[j]):
            topic, here, there = t.topics[i], source, target
            i += 1
        elif i == i_end or t.topics[j] < t.topics[i]:
            topic, here, there = t.topics[j], target, source
            j += 1
        else:
            i += 1
            j += 1
            continue
        delta += t.relay_price[topic] * _relays_gained(t, s, topic, here, there)
        if not known:
            row = t.row[topic]
            farther = np.int64(t.hops[row, there]) - np.int64(t.hops[row, here])
            delta += t.delay_price[topic] * farther
    return delta


@kernel
def swap(t: Tables, s: State, first: int, second: int, delta: float) -> None:
    """Let two brokers change places; delta is what `swap_delta` said."""
    source, target = s.place[first], s.place[second]
    i, i_end = t.first_topic[first], t.first_topic[first + 1]
    j, j_end = t.first_topic[second], t.first_topic[second + 1]
    while i < i_end or j < j_end:
        if j == j_end or (i < i_end and t.topics[i] < t.topics[j]):
            leave(t, s, t.topics[i], source)
            join(t, s, t.topics[i], target)
            i += 1
        elif i == i_end or t.topics[j] < t.topics[i]:
            leave(t, s, t.topics[j], target)
            join(t, s, t.topics[j], source)
            j += 1
        else:
            i += 1
            j += 1
    s.place[first], s.place[second] = target, source
    s.host[source], s.host[target] = second, first
    s.total[0] += delta
    if not t.edge.shape[0]:
        s.delay_cost[first] = delay_by_hops(t, first, target)
        s.delay_cost[second] = delay_by_hops(t, second, source)


# ---- the same where costs depend on who talks to whom --------------------------------------------


@inlined
def _swapped(broker: int, first: int, second: int) -> int:
    if broker == first:
        return second
    if broker == second:
        return first
    return broker


@inlined
def _swap_delta_pairs(t: Tables, s: State, first: int, second: int) -> float:
    """Old flows over changed pairs, then changed flows over the new pairs."""
    source, target = s.place[first], s.place[second]
    delta = 0.0
    for end in range(2):
        node = source if end == 0 else target
        for k in range(t.first_touching[node], t.first_touching[node + 1]):
            e = t.touching[k]
            x, y = t.edge_from[e], t.edge_to[e]
            if end == 1 and (x == source or y == source):
                continue
            a, b = s.host[x], s.host[y]
            c, d = _swapped(a, first, second), _swapped(b, first, second)
            delta += s.delay_flow[e] * (t.rtt_ms[c, d] - t.rtt_ms[a, b])
            delta += s.relay_flow[e] * (t.relay_weight[c, d] - t.relay_weight[a, b])
    i, i_end = t.first_topic[first], t.first_topic[first + 1]
    j, j_end = t.first_topic[second], t.first_topic[second + 1]
    while i < i_end or j < j_end:
        if j == j_end or (i < i_end and t.topics[i] < t.topics[j]):
            delta += _move_delta_pairs(t, s, t.topics[i], source, target, first, second)
            i += 1
        elif i == i_end or t.topics[j] < t.topics[i]:
            delta += _move_delta_pairs(t, s, t.topics[j], target, source, first, second)
            j += 1
        else:
            i += 1
            j += 1
    return delta


@inlined
def _move_delta_pairs(
    t: Tables, s: State, topic: int, source: int, target: int, first: int, second: int
) -> float:
    """What the topic's subscriber costs more on target than on source, once both are swapped."""
    row = t.row[topic]
    farther = 0.0
    relayed = 0.0
    dead = 0
    dying = True
    at = source
    while t.parents[row, at] >= 0:
        a = _swapped(s.host[t.parents[row, at]], first, second)
        b = _swapped(s.host[at], first, second)
        farther -= t.rtt_ms[a, b]
        if at == source:
            if s.counts[topic, at] > 1:
                relayed += t.relay_weight[a, b]
                dying = False
        elif dying and s.counts[topic, at] == 1:
            relayed -= t.relay_weight[a, b]
        else:
            dying = False
        if dying:
            s.chain[dead] = at
            dead += 1
        at = t.parents[row, at]
    growing = True
    at = target
    while t.parents[row, at] >= 0:
        a = _swapped(s.host[t.parents[row, at]], first, second)
        b = _swapped(s.host[at], first, second)
        farther += t.rtt_ms[a, b]
        # What the count will be once the subscriber has left source.
        count = s.counts[topic, at]
        if count == 1:
            for k in range(dead):
                if s.chain[k] == at:
                    count = 0
        if at == target:
            if count > 0:
                relayed -= t.relay_weight[a, b]
                growing = False
        elif growing and count == 0:
            relayed += t.relay_weight[a, b]
        else:
            growing = False
        at = t.parents[row, at]
    return float(t.delay_price[topic] * farther + t.relay_price[topic] * relayed)
