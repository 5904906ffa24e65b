"""Users of one day whose log analytics reads, and who come again the next day.

The first day is that of `experiments.selection`, to its middle. On the second the same
users come to brokers drawn by chance, with what they followed in the end, and go on changing as
before. Brokers are up and have heard of each other when the first user comes.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.lake.fields import SUBSCRIBE, UNSUBSCRIBE
from experiments.selection import _Model
from experiments.workloads.churn import Change, ChurnSpec, changes
from experiments.workloads.modes import topic_name
from overlay.base.identifiers import key_of
from tests.support.spark_frames import START_S, at

# Users of the second day come from here on.
BEGIN_S = 3.0
_FRESH_S = 1e9


@dataclass(slots=True)
class Day:
    brokers: int
    changes: list[Change]
    # Rows of the lake's table of subscriptions, and who was where in the end.
    log: list[tuple[object, ...]] = field(default_factory=list)
    follows: dict[int, frozenset[int]] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"b{i}" for i in range(self.brokers)]


@dataclass(frozen=True, slots=True)
class Outcome:
    changes: int
    load_std: float


def first_day(spec: ChurnSpec, brokers: int, seed: int) -> Day:
    """Users where online selection puts them, and what brokers logged of it."""
    every = list(changes(spec, seed))
    day = Day(brokers, [c for c in every if c.at_s > spec.seconds / 2])
    model = _Model(brokers, SelectionSettings(), seed)
    held: dict[int, set[int]] = {}
    for change in every:
        if change.at_s > spec.seconds / 2:
            break
        model.advance(change.at_s)
        before = model._at.get(change.user)
        model.apply(change)
        topics = held.setdefault(change.user, set())
        day.log += _rows(change, topics, before, model._at[change.user])
        topics.difference_update(change.dropped)
        topics.update(change.added)
    day.follows = {user: frozenset(topics) for user, topics in held.items()}
    day.at = {user: f"b{model._at[user]}" for user in held}
    return day


def _rows(
    change: Change, held: set[int], before: int | None, now: int
) -> Iterator[tuple[object, ...]]:
    """A user who goes elsewhere takes up everything there, and gives up everything here."""
    when, user = at(START_S + change.at_s), f"u{change.user}"
    moved = before is not None and before != now
    dropped = held if moved else change.dropped
    added = held.difference(change.dropped) | set(change.added) if moved else change.added
    yield from ((when, f"b{now}", user, topic_name(t), SUBSCRIBE) for t in sorted(added))
    yield from ((when, f"b{before}", user, topic_name(t), UNSUBSCRIBE) for t in sorted(dropped))


def second_day(
    day: Day, seed: int, settings: SelectionSettings, advice: SelectionAdvice | None
) -> Outcome:
    model = _Model(day.brokers, settings, seed)
    for broker in model._brokers:
        broker.advise(advice, 0.0)
    spreads, next_sample_s = [], BEGIN_S + 5.0
    for change in _second(day, Random(seed)):
        while next_sample_s <= change.at_s:
            spreads.append(statistics.pstdev(model.loads))
            next_sample_s += 1.0
        model.advance(change.at_s)
        model.apply(change)
    return Outcome(model.changes, statistics.fmean(spreads))


def _second(day: Day, rng: Random) -> list[Change]:
    """Everybody comes within 5 s, then the rest of the first day's changes."""
    first_s = min(change.at_s for change in day.changes)
    coming = [
        Change(BEGIN_S + rng.uniform(0.0, 5.0), user, (), tuple(sorted(topics)), arrives=True)
        for user, topics in day.follows.items()
    ]
    later = [
        replace(change, at_s=change.at_s - first_s + BEGIN_S + 5.0)
        for change in day.changes
        if change.user in day.follows
    ]
    return sorted([*coming, *later], key=lambda change: change.at_s)


def advice(clients: Mapping[str, str], topics: Mapping[str, str]) -> SelectionAdvice:
    keys = {int(key_of(topic)): broker for topic, broker in topics.items()}
    return SelectionAdvice("1", _FRESH_S, dict(clients), keys)


def gathering(follows: Mapping[str, Iterable[str]], at: Mapping[str, str]) -> dict[str, str]:
    """Of each topic the broker at which most follow it."""
    counts = Counter((topic, at[user]) for user, topics in follows.items() for topic in topics)
    found: dict[str, str] = {}
    for (topic, broker), _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        found.setdefault(topic, broker)
    return found
