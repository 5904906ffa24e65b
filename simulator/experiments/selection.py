"""Broker selection against random assignment, on one workload: what brokers subscribe to changes how
often, and how even is the load?

    python -m simulator.experiments.selection [--json] [--seeds N]

The `Selection` that brokers run decides, with summaries that are a period old; the network between
is left out: a summary takes `TICK_S`, a move no time. A change is a topic that a broker begins
or ceases to subscribe to. Random assignment gives every user a broker drawn once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random

from broker_agent.core.selection import Selection, User
from broker_agent.core.selection_settings import SelectionSettings
from dynatops.churn_workload import Change, ChurnSpec, changes, topic_name
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.identifiers import key_of

TICK_S = 0.05
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    broker_subscription_changes: int
    # Of these, in the second half: without the time in which users come and are sorted.
    later_changes: int
    # Of the brokers' loads in subscriptions, averaged over time.
    load_std: float
    load_mean: float
    # Topics that brokers subscribe to, all brokers together, averaged over time.
    topics_held: float
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
    def later_reduction(self) -> float:
        return 1.0 - _ratio(self.selected.later_changes, self.random.later_changes)

    @property
    def load_std_ratio(self) -> float:
        return _ratio(self.selected.load_std, self.random.load_std)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class _Model:
    """Brokers and users in virtual time, decided on by `Selection`."""

    def __init__(self, brokers: int, settings: SelectionSettings, seed: int) -> None:
        self._rng = Random(f"model {seed}")
        self._brokers = [
            Selection(f"b{i}", f"b{i}:7400", 1, settings, Random(f"{seed} {i}"))
            for i in range(brokers)
        ]
        # Brokers were not started all at once.
        period_s = settings.update_period_s
        self._begin_s = [self._rng.uniform(0.0, period_s) for _ in self._brokers]
        self._on_the_way: list[BrokerSummary] = []
        self._ticks = 0
        self._at: dict[int, int] = {}
        self._follows: dict[int, set[int]] = {}
        self.moves = 0

    @property
    def changes(self) -> int:
        return sum(broker.local.changes for broker in self._brokers)

    @property
    def topics_held(self) -> int:
        return sum(len(broker.local.counts) for broker in self._brokers)

    @property
    def loads(self) -> list[int]:
        return [broker.local.subscriptions for broker in self._brokers]

    def count(self, counter: str) -> int:
        return sum(broker.counters.as_dict()[counter] for broker in self._brokers)

    def advance(self, until_s: float) -> None:
        """Exchange summaries: what is told in one tick is heard in the next."""
        while (now_s := self._ticks * TICK_S) <= until_s:
            self._ticks += 1
            for summary in self._on_the_way:
                for broker in self._brokers:
                    broker.on_summary(summary, now_s)
            told = [
                broker.summary(now_s)
                for broker, begin_s in zip(self._brokers, self._begin_s, strict=True)
                if now_s >= begin_s
            ]
            self._on_the_way = [summary for summary in told if summary is not None]

    def apply(self, change: Change) -> None:
        """The user drops topics; then its broker is asked, and perhaps it moves; then it adds."""
        user, name = change.user, f"u{change.user}"
        follows = self._follows.setdefault(user, set())
        at = self._at.setdefault(user, self._rng.randrange(len(self._brokers)))
        dropped = [_key(topic) for topic in change.dropped]
        added = [_key(topic) for topic in change.added]
        self._brokers[at].local.remove(dropped)
        held = follows.difference(dropped)
        follows = self._follows[user] = held.union(added)
        choice = self._brokers[at].choose(User(name, follows, held), change.at_s)
        if not choice.moves:
            self._brokers[at].local.add(added)
            return
        self.moves += 1
        to = self._at[user] = int(choice.broker_id[1:])
        self._brokers[to].note_arrival(name, change.at_s)
        # First there, then no more here: nothing is missed.
        self._brokers[to].local.add(follows)
        self._brokers[at].local.remove(held)


@cache
def _key(topic: int) -> int:
    return key_of(topic_name(topic))


def run(spec: ChurnSpec, brokers: int, settings: SelectionSettings, seed: int) -> Outcome:
    """One run. With `settings.enabled` off, users stay where chance put them."""
    model = _Model(brokers, settings, seed)
    spreads: list[float] = []
    means: list[float] = []
    topics: list[int] = []
    changes_by_half = 0
    next_sample_s = spec.arrival_s
    for change in changes(spec, seed):
        while next_sample_s <= change.at_s:
            spreads.append(statistics.pstdev(model.loads))
            means.append(statistics.fmean(model.loads))
            topics.append(model.topics_held)
            next_sample_s += SAMPLE_S
        if change.at_s <= spec.seconds / 2:
            changes_by_half = model.changes
        model.advance(change.at_s)
        model.apply(change)
    return Outcome(
        broker_subscription_changes=model.changes,
        later_changes=model.changes - changes_by_half,
        load_std=statistics.fmean(spreads),
        load_mean=statistics.fmean(means),
        topics_held=statistics.fmean(topics),
        moves=model.moves,
        summary_messages=model.count("summary_messages"),
        summary_keys=model.count("summary_keys_sent"),
    )


def compare(spec: ChurnSpec, brokers: int, settings: SelectionSettings, seed: int) -> Comparison:
    return Comparison(
        random=run(spec, brokers, replace(settings, enabled=False), seed),
        selected=run(spec, brokers, settings, seed),
    )
