"""Broker selection against random assignment, on one workload: what brokers subscribe to changes how
often, and how even is the load?

    python -m simulator.experiments.selection [--json] [--seeds N]

The `Selection` that brokers run decides, with summaries that are a period old; the network between
is left out: a summary takes `SUMMARY_DELAY_S`, a move none. A change is a topic that a broker begins
or ceases to subscribe to. Random assignment gives every user a broker drawn once.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from random import Random

from broker_agent.core.selection import Selection, User
from broker_agent.core.selection_settings import SelectionSettings
from broker_agent.core.summaries import SelectionCounters
from dynatops.churn_workload import Change, ChurnSpec, changes, topic_name
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.identifiers import key_of

SUMMARY_DELAY_S = 0.05
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    broker_subscription_changes: int
    # The same without the time in which users come and are sorted.
    settled_changes: int
    # Standard deviation of the brokers' subscriptions over time, of all users, and their mean.
    load_std: float
    load_mean: float
    moves: int
    summary_messages: int
    summary_keys: int


@dataclass(frozen=True, slots=True)
class Comparison:
    random: Outcome
    selected: Outcome

    @property
    def reduction(self) -> float:
        """The share of broker subscription changes that selection avoids."""
        return 1.0 - _ratio(
            self.selected.broker_subscription_changes, self.random.broker_subscription_changes
        )

    @property
    def settled_reduction(self) -> float:
        return 1.0 - _ratio(self.selected.settled_changes, self.random.settled_changes)

    @property
    def load_std_ratio(self) -> float:
        return _ratio(self.selected.load_std, self.random.load_std)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class _Model:
    """Brokers and users in virtual time, decided on by `Selection`."""

    def __init__(self, brokers: int, settings: SelectionSettings, seed: int) -> None:
        self._rng = Random(f"model {seed}")
        self._period_s = settings.update_period_s
        self._brokers = [
            Selection(f"b{i}", f"b{i}:7400", 1, settings, SelectionCounters(), Random(f"{seed} {i}"))
            for i in range(brokers)
        ]
        self._ticks = [(self._rng.uniform(0.0, self._period_s), i) for i in range(brokers)]
        heapq.heapify(self._ticks)
        self._on_the_way: list[tuple[float, int, BrokerSummary]] = []
        self._at: dict[int, int] = {}
        self._follows: dict[int, set[int]] = {}
        self.changes = 0
        self.moves = 0

    def advance(self, now_s: float) -> None:
        """Summaries until now."""
        while True:
            tick_s = self._ticks[0][0]
            arrival_s = self._on_the_way[0][0] if self._on_the_way else float("inf")
            if min(tick_s, arrival_s) > now_s:
                return
            if arrival_s <= tick_s:
                at_s, sender, summary = heapq.heappop(self._on_the_way)
                for i, broker in enumerate(self._brokers):
                    if i != sender:
                        broker.on_summary(summary, at_s)
            else:
                at_s, sender = heapq.heappop(self._ticks)
                made = self._brokers[sender].summary(at_s)
                if made is not None:
                    heapq.heappush(self._on_the_way, (at_s + SUMMARY_DELAY_S, sender, made))
                heapq.heappush(self._ticks, (at_s + self._period_s, sender))

    def apply(self, change: Change) -> None:
        user = change.user
        if change.arrives:
            self._at[user] = self._rng.randrange(len(self._brokers))
            self._follows[user] = {key_of(topic_name(topic)) for topic in change.added}
        else:
            at = self._at[user]
            self._leave(at, [key_of(topic_name(topic)) for topic in change.dropped])
            added = [key_of(topic_name(topic)) for topic in change.added]
            self._follow(at, added)
            self._follows[user] -= {key_of(topic_name(topic)) for topic in change.dropped}
            self._follows[user] |= set(added)
        at = self._at[user]
        interests = sorted(self._follows[user])
        choice = self._brokers[at].choose(
            User(f"u{user}", interests, counted=not change.arrives), change.at_s
        )
        if choice.moves:
            target = int(choice.broker_id[1:])
            self.moves += 1
            self._brokers[target].note_arrival(f"u{user}", change.at_s)
            self._follow(target, interests)
            if not change.arrives:
                self._leave(at, interests)
            self._at[user] = target
        elif change.arrives:
            self._follow(at, interests)

    def _follow(self, broker: int, keys: list[int]) -> None:
        local = self._brokers[broker].local
        before = len(local.counts)
        local.add(keys)
        self.changes += len(local.counts) - before

    def _leave(self, broker: int, keys: list[int]) -> None:
        local = self._brokers[broker].local
        before = len(local.counts)
        local.remove(keys)
        self.changes += before - len(local.counts)

    def loads(self) -> list[int]:
        return [broker.local.subscriptions for broker in self._brokers]

    def sent(self) -> tuple[int, int]:
        counters = [broker.counters for broker in self._brokers]
        return (
            sum(c.summary_messages for c in counters),
            sum(c.summary_keys_sent for c in counters),
        )


def run(spec: ChurnSpec, brokers: int, settings: SelectionSettings, seed: int) -> Outcome:
    """One run; with `settings.enabled` off it is random assignment."""
    model = _Model(brokers, settings, seed)
    spreads: list[float] = []
    means: list[float] = []
    settled_from_s = spec.seconds / 2
    before_settled = 0
    next_sample_s = spec.arrival_s
    for change in changes(spec, seed):
        while next_sample_s <= change.at_s:
            loads = model.loads()
            spreads.append(statistics.pstdev(loads))
            means.append(statistics.fmean(loads))
            next_sample_s += SAMPLE_S
        if change.at_s < settled_from_s:
            before_settled = model.changes
        model.advance(change.at_s)
        model.apply(change)
    messages, keys = model.sent()
    return Outcome(
        model.changes,
        model.changes - before_settled,
        statistics.fmean(spreads),
        statistics.fmean(means),
        model.moves,
        messages,
        keys,
    )


def compare(spec: ChurnSpec, brokers: int, settings: SelectionSettings, seed: int) -> Comparison:
    return Comparison(
        random=run(spec, brokers, replace(settings, enabled=False), seed),
        selected=run(spec, brokers, settings, seed),
    )
