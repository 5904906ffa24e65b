"""Broker selection against random assignment: how often brokers' subscriptions change, and how
even the load is.

    python -m experiments.selection [--json] [--seeds N] [--first N]

The `Selection` that brokers run decides, with summaries that are a period old; the network between
is left out: a summary takes `TICK_S`, a move no time. A change is a topic that a broker begins
or ceases to subscribe to. Random assignment gives every user a broker drawn once.
"""

from __future__ import annotations

import argparse
import enum
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from broker_agent.core.selection.selection import Selection, User
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.v1.selection_pb2 import BrokerSummary
from experiments.workloads.churn import Change, ChurnSpec, changes
from experiments.workloads.modes import topic_name
from overlay.base.identifiers import key_of

TICK_S = 0.05
SAMPLE_S = 1.0


class Asking(enum.StrEnum):
    """How users tell their broker of a change."""

    TOGETHER = "together"
    ADDED_FIRST = "added first"
    ONE_BY_ONE = "one by one"

    def parts_of(self, change: Change) -> Iterator[Change]:
        match self:
            case Asking.TOGETHER:
                yield change
            case Asking.ADDED_FIRST:
                yield replace(change, dropped=())
                if change.dropped:
                    yield replace(change, added=())
            case Asking.ONE_BY_ONE:
                for topic in change.dropped:
                    yield replace(change, dropped=(topic,), added=())
                for topic in change.added:
                    yield replace(change, dropped=(), added=(topic,))


@dataclass(frozen=True, slots=True)
class SelectionOutcome:
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
    random: SelectionOutcome
    selected: SelectionOutcome

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


def run(
    spec: ChurnSpec,
    brokers: int,
    settings: SelectionSettings,
    seed: int,
    asking: Asking = Asking.TOGETHER,
) -> SelectionOutcome:
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
        for part in asking.parts_of(change):
            model.apply(part)
    return SelectionOutcome(
        broker_subscription_changes=model.changes,
        later_changes=model.changes - changes_by_half,
        load_std=statistics.fmean(spreads),
        load_mean=statistics.fmean(means),
        topics_held=statistics.fmean(topics),
        moves=model.moves,
        summary_messages=model.count("summary_messages"),
        summary_keys=model.count("summary_keys_sent"),
    )


def compare(
    spec: ChurnSpec,
    brokers: int,
    settings: SelectionSettings,
    seed: int,
    asking: Asking = Asking.TOGETHER,
) -> Comparison:
    return Comparison(
        random=run(spec, brokers, replace(settings, enabled=False), seed),
        selected=run(spec, brokers, settings, seed, asking),
    )


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SelectionCase:
    name: str
    spec: ChurnSpec
    brokers: int = 12
    settings: SelectionSettings = field(default_factory=SelectionSettings)
    asking: Asking = Asking.TOGETHER


_USUAL = ChurnSpec()
CASES = (
    *(
        SelectionCase(f"{b} brokers, {u} users, {t} topics", replace(_USUAL, users=u, topics=t), b)
        for b in (8, 16)
        for u, t in ((200, 100), (200, 200), (200, 500), (400, 200), (400, 500), (1000, 500))
    ),
    SelectionCase("usual: 12 brokers, 400 users, 300 topics", _USUAL),
    SelectionCase("usual, two minutes", replace(_USUAL, seconds=120.0)),
    SelectionCase("usual, changes every 3 s", replace(_USUAL, change_every_s=3.0)),
    SelectionCase("usual, changes every 30 s", replace(_USUAL, change_every_s=30.0)),
    SelectionCase("usual, all come within 1 s", replace(_USUAL, arrival_s=1.0)),
    SelectionCase("usual, 1 of 4 changes is of mode", replace(_USUAL, mode_changes=0.25)),
    SelectionCase("usual, no strays", replace(_USUAL, strays=0.0)),
    SelectionCase("usual, 1 of 10 topics is a stray", replace(_USUAL, strays=0.1)),
    SelectionCase("usual, skewed modes", replace(_USUAL, skew=0.8)),
    SelectionCase(
        "usual, topics dropped after others are added", _USUAL, asking=Asking.ADDED_FIRST
    ),
    SelectionCase("usual, topics told one by one", _USUAL, asking=Asking.ONE_BY_ONE),
    SelectionCase("usual, T_update 1 s", _USUAL, settings=SelectionSettings(update_period_s=1.0)),
    SelectionCase(
        "usual, T_update 5 s",
        _USUAL,
        settings=SelectionSettings(update_period_s=5.0, stale_after_s=17.0),
    ),
    SelectionCase(
        "usual, nothing before its time", _USUAL, settings=SelectionSettings(early_share=0.0)
    ),
    SelectionCase("usual, load weight 0", _USUAL, settings=SelectionSettings(load_weight=0.0)),
    SelectionCase("usual, load weight 0.6", _USUAL, settings=SelectionSettings(load_weight=0.6)),
    SelectionCase("usual, load weight 2.4", _USUAL, settings=SelectionSettings(load_weight=2.4)),
    SelectionCase("8 brokers, 1000 users, 200 topics", replace(_USUAL, users=1000, topics=200), 8),
    SelectionCase("8 brokers, 1000 users, 100 topics", replace(_USUAL, users=1000, topics=100), 8),
)


def measure(case: SelectionCase, seeds: Sequence[int]) -> dict[str, object]:
    """The case as a row: means over the seeds, and the worst of them."""
    results = [compare(case.spec, case.brokers, case.settings, seed, case.asking) for seed in seeds]

    def mean(of: Callable[[Comparison], float]) -> float:
        return statistics.fmean(of(result) for result in results)

    return {
        "case": case.name,
        "broker_subscription_changes_random": mean(lambda c: c.random.broker_subscription_changes),
        "broker_subscription_changes": mean(lambda c: c.selected.broker_subscription_changes),
        "fewer": mean(lambda c: c.reduction),
        "fewer_worst": min(result.reduction for result in results),
        "fewer_later": mean(lambda c: c.later_reduction),
        "load_std_ratio": mean(lambda c: c.load_std_ratio),
        "load_std_ratio_worst": max(result.load_std_ratio for result in results),
        "topics_held_ratio": mean(lambda c: c.selected.topics_held / c.random.topics_held),
        "moves": mean(lambda c: c.selected.moves),
        "summary_messages": mean(lambda c: c.selected.summary_messages),
    }


_HEADINGS = {
    "broker_subscription_changes_random": ("random", ".0f"),
    "broker_subscription_changes": ("selection", ".0f"),
    "fewer": ("fewer", ".2f"),
    "fewer_worst": ("worst", ".2f"),
    "fewer_later": ("later", ".2f"),
    "load_std_ratio": ("std", ".2f"),
    "load_std_ratio_worst": ("worst", ".2f"),
    "topics_held_ratio": ("topics", ".2f"),
    "moves": ("moves", ".0f"),
    "summary_messages": ("messages", ".0f"),
}


def _lines(rows: Iterable[dict[str, object]]) -> Iterator[str]:
    yield f"{'':46}" + "".join(f"{heading:>10}" for heading, _ in _HEADINGS.values())
    for row in rows:
        cells = (format(row[name], form) for name, (_, form) in _HEADINGS.items())
        yield f"{row['case']:46}" + "".join(f"{cell:>10}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Broker selection against random assignment.")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each case")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="the first seed")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    rows = (measure(case, seeds) for case in CASES if arguments.only in case.name)
    text = [json.dumps(list(rows), indent=2)] if arguments.json else _lines(rows)
    for line in text:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
