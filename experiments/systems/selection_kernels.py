"""Users at brokers, and the selection that brokers run, compiled: a step's changes in one call.

The plain twin of what is chosen is `Selection`, which brokers run (`shipped_selection.py` runs one
for each broker); tests compare them, change by change. Here only what a workload by hours needs of
it is computed: nobody falls silent, no summary is too long, and no limits are met (`check_settings`
in `selections.py` refuses settings by which that is not so).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynatops.kit.compiled import inlined, kernel
from experiments.sites import Floats, Ints

Flags = NDArray[np.bool_]
# [broker, word]: the state of a Mersenne Twister, and how many of its words are used up.
Randoms = NDArray[np.uint32]

# As in broker_agent/core/selection: utilities closer than this are equal, and fewer changes than
# this are no reason for a summary before its time.
_ROUNDING = 1e-9
_EARLY_CHANGES_MIN = 3
_WORDS, _MIDDLE = 624, 397


class Placed(NamedTuple):
    """Users at brokers, with what they follow."""

    # [user] -> its broker; -1: it has not come yet.
    broker_of: Ints
    # [user, i] -> a topic, ascending, as many as `sizes` says.
    follows: Ints
    sizes: Ints
    # [broker, topic] -> users there who follow it.
    counts: Ints
    # [broker] -> subscriptions of its users; topics among them; topics begun and ceased, ever.
    loads: Ints
    held: Ints
    changes: Ints
    # [0]: users who were at one broker and are at another, ever.
    handovers: Ints


class Told(NamedTuple):
    """What brokers of a cluster know of each other, and whom they have sent there since."""

    # [cluster, i] -> a broker, as many as `sizes` says.
    members: Ints
    sizes: Ints
    # [broker] -> its cluster, and its place there.
    cluster_of: Ints
    index_of: Ints
    # [cluster, topic, i]: broker i told that its users follow the topic.
    topics: Flags
    # [broker] -> the load that it told, when, in which summary (0: none), and `changes` then.
    loads: Ints
    told_s: Floats
    number: Ints
    changes: Ints
    # [broker, topic, i] -> the summary of i since which it has sent a user with this topic there.
    sent: Ints
    # [broker, i] -> subscriptions of users whom it has sent there since the last summary.
    sent_loads: Ints
    random: Randoms


class Rules(NamedTuple):
    """Of `SelectionSettings`, what matters here."""

    load_weight: float
    load_floor: float
    margin: float
    join_margin: float
    update_period_s: float
    early_share: float
    early_period_s: float


class ChangeLog(NamedTuple):
    """Changes of brokers' subscriptions, in order, and how many there are."""

    brokers: Ints
    topics: Ints
    joins: Flags
    size: Ints


# ---- chance --------------------------------------------------------------------------------------


@kernel
def _stir(state: NDArray[np.uint32]) -> None:
    """The next 624 words (Matsumoto, Nishimura, 1998)."""
    for i in range(_WORDS):
        high = state[i] & np.uint32(0x80000000)
        low = state[(i + 1) % _WORDS] & np.uint32(0x7FFFFFFF)
        word = high | low
        mixed = state[(i + _MIDDLE) % _WORDS] ^ (word >> np.uint32(1))
        if word & np.uint32(1):
            mixed ^= np.uint32(0x9908B0DF)
        state[i] = mixed
    state[_WORDS] = 0


@kernel
def random_below(state: NDArray[np.uint32], end: int) -> int:
    """As `random.Random` draws from a sequence of this length."""
    bits = 0
    while end >> bits:
        bits += 1
    while True:
        if state[_WORDS] >= _WORDS:
            _stir(state)
        word = state[state[_WORDS]]
        state[_WORDS] += np.uint32(1)
        word ^= word >> np.uint32(11)
        word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
        word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
        word ^= word >> np.uint32(18)
        drawn: int = np.int64(word) >> (32 - bits)  # type: ignore[assignment]
        if drawn < end:
            return drawn


# ---- users at brokers ----------------------------------------------------------------------------


@inlined
def _add(p: Placed, out: ChangeLog, broker: int, topic: int) -> None:
    p.counts[broker, topic] += 1
    if p.counts[broker, topic] == 1:
        _note(p, out, broker, topic, 1)


@inlined
def _remove(p: Placed, out: ChangeLog, broker: int, topic: int) -> None:
    p.counts[broker, topic] -= 1
    if p.counts[broker, topic] == 0:
        _note(p, out, broker, topic, -1)


@inlined
def _note(p: Placed, out: ChangeLog, broker: int, topic: int, more: int) -> None:
    p.held[broker] += more
    p.changes[broker] += 1
    out.brokers[out.size[0]] = broker
    out.topics[out.size[0]] = topic
    out.joins[out.size[0]] = more > 0
    out.size[0] += 1


@kernel
def _kept(p: Placed, user: int, dropped: Ints, topics: Ints) -> int:
    """What it follows without these, into `topics`; how many."""
    size = 0
    for topic in p.follows[user, : p.sizes[user]]:
        is_dropped = False
        for other in dropped:
            if other == topic:
                is_dropped = True
        if not is_dropped:
            topics[size] = topic
            size += 1
    return size


@kernel
def _settle(p: Placed, out: ChangeLog, user: int, broker: int, dropped: Ints, added: Ints) -> None:
    """The user is at this broker from now on: first there, then no more where it was."""
    before = p.broker_of[user]
    if before == broker:
        for topic in dropped:
            _remove(p, out, broker, topic)
    elif before >= 0:
        p.handovers[0] += 1
        p.loads[before] -= p.sizes[user]
    old = p.follows[user, : p.sizes[user]].copy()
    size = _kept(p, user, dropped, p.follows[user])
    for topic in added:
        at = size
        while at > 0 and p.follows[user, at - 1] > topic:
            p.follows[user, at] = p.follows[user, at - 1]
            at -= 1
        p.follows[user, at] = topic
        size += 1
    p.sizes[user] = size
    if before == broker:
        for topic in added:
            _add(p, out, broker, topic)
        p.loads[broker] += size - len(old)
        return
    for topic in p.follows[user, :size]:
        _add(p, out, broker, topic)
    p.loads[broker] += size
    if before >= 0:
        for topic in old:
            _remove(p, out, before, topic)
    p.broker_of[user] = broker


@kernel
def settle_all(
    p: Placed,
    out: ChangeLog,
    users: Ints,
    brokers: Ints,
    first_dropped: Ints,
    dropped: Ints,
    first_added: Ints,
    added: Ints,
) -> None:
    """Each change's user is at the broker that is named for it."""
    for i in range(len(users)):
        drops = dropped[first_dropped[i] : first_dropped[i + 1]]
        adds = added[first_added[i] : first_added[i + 1]]
        _settle(p, out, users[i], brokers[i], drops, adds)


# ---- similarity ----------------------------------------------------------------------------------


@kernel
def exchange(t: Told, p: Placed, rules: Rules, now_s: float) -> int:
    """Whoever has something to tell tells it to all of its cluster; how many messages."""
    messages = 0
    for cluster in range(len(t.sizes)):
        size = t.sizes[cluster]
        if size < 2:
            continue
        for i in range(size):
            broker = t.members[cluster, i]
            if not _is_due(t, p, rules, broker, now_s):
                continue
            messages += size - 1
            t.loads[broker] = p.loads[broker]
            t.told_s[broker] = now_s
            t.changes[broker] = p.changes[broker]
            t.number[broker] += 1
            for topic in range(p.counts.shape[1]):
                t.topics[cluster, topic, i] = p.counts[broker, topic] > 0
            for other in t.members[cluster, :size]:
                t.sent_loads[other, i] = 0
    return messages


@inlined
def _is_due(t: Told, p: Placed, rules: Rules, broker: int, now_s: float) -> bool:
    if now_s >= t.told_s[broker] + rules.update_period_s:
        return True
    changed = p.changes[broker] - t.changes[broker]
    enough = max(float(_EARLY_CHANGES_MIN), rules.early_share * p.held[broker])
    return bool(
        rules.early_share > 0
        and changed >= enough
        and now_s >= t.told_s[broker] + rules.early_period_s
    )


@kernel
def _similarities(t: Told, asked: int, topics: Ints, out: Floats) -> None:
    """Sim(b, u) of each broker b of the cluster, as the broker that is asked knows them."""
    cluster = t.cluster_of[asked]
    members = t.members[cluster, : t.sizes[cluster]]
    out[: len(members)] = 0.0
    for topic in topics:
        for i in range(len(members)):
            is_sent = t.sent[asked, topic, i] == t.number[members[i]]
            out[i] += t.topics[cluster, topic, i] or is_sent
    out[: len(members)] /= len(topics)


@kernel
def _choose(
    t: Told,
    p: Placed,
    rules: Rules,
    asked: int,
    topics: Ints,
    kept: int,
    gone: int,
    utilities: Floats,
) -> int:
    """Algorithm 1: the broker where a user with these topics had better be. The first `kept` are
    counted at the broker that is asked, and so are `gone` others that it follows no more."""
    size = len(topics)
    cluster, own = t.cluster_of[asked], t.index_of[asked]
    members = t.members[cluster, : t.sizes[cluster]]
    here = p.loads[asked] - gone - kept + size
    total, known = here, 0
    for i in range(len(members)):
        if i != own and t.number[members[i]] > 0:
            total += t.loads[members[i]] + t.sent_loads[asked, i]
            known += 1
    if not known or not size:
        return asked
    mean = total / (1 + known) + rules.load_floor
    common = 0
    for i in range(size):
        common += p.counts[asked, topics[i]] > (i < kept)
    least = common / size - rules.load_weight * ((here + rules.load_floor) / mean)
    least = least + (rules.margin if kept else rules.join_margin) + _ROUNDING
    _similarities(t, asked, topics, utilities)
    best = least
    for i in range(len(members)):
        load = t.loads[members[i]] + t.sent_loads[asked, i]
        utilities[i] -= rules.load_weight * ((load + size + rules.load_floor) / mean)
        if i == own or t.number[members[i]] == 0:
            utilities[i] = -np.inf
        best = max(best, utilities[i])
    if best <= least:
        return asked
    there = _one_of_the_best(t, members, utilities, best, least, asked)
    for topic in topics:
        t.sent[asked, topic, there] = t.number[members[there]]
    t.sent_loads[asked, there] += size
    chosen: int = members[there]
    return chosen


@kernel
def _one_of_the_best(
    t: Told, members: Ints, utilities: Floats, best: float, least: float, asked: int
) -> int:
    count = 0
    for i in range(len(members)):
        count += utilities[i] > least and utilities[i] >= best - _ROUNDING
    left = random_below(t.random[asked], count)
    for i in range(len(members)):
        if utilities[i] > least and utilities[i] >= best - _ROUNDING:
            if left == 0:
                return i
            left -= 1
    return -1


@kernel
def select_all(
    p: Placed,
    t: Told,
    rules: Rules,
    out: ChangeLog,
    users: Ints,
    here: Ints,
    home: Ints,
    chance: NDArray[np.uint32],
    counts_itself: bool,
    first_dropped: Ints,
    dropped: Ints,
    first_added: Ints,
    added: Ints,
) -> None:
    """`here` is the broker of each change's place; -1: there are none, and a user's cluster is
    `home`. Whoever comes into a cluster asks the broker here, or any. A user that counts itself is
    taken for one who comes to where its like is already."""
    topics = np.empty(p.follows.shape[1], dtype=np.int32)
    utilities = np.empty(t.members.shape[1])
    for i in range(len(users)):
        user = users[i]
        before = p.broker_of[user]
        cluster = t.cluster_of[here[i]] if here[i] >= 0 else home[user]
        drops = dropped[first_dropped[i] : first_dropped[i + 1]]
        adds = added[first_added[i] : first_added[i + 1]]
        size = _kept(p, user, drops, topics)
        stays = before >= 0 and t.cluster_of[before] == cluster
        kept = size if stays and not counts_itself else 0
        gone = len(drops) if stays else 0
        for topic in adds:
            topics[size] = topic
            size += 1
        if stays:
            asked = before
        elif here[i] >= 0:
            asked = here[i]
        else:
            asked = t.members[cluster, random_below(chance, t.sizes[cluster])]
        broker = _choose(t, p, rules, asked, topics[:size], kept, gone, utilities)
        _settle(p, out, user, broker, drops, adds)
