"""What analytics compute, once more: one row after the other, in plain Python, without a thought of
speed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analytics.transforms.selection_settings import SelectionJobSettings

Event = tuple[str, str, int, int]  # topic, broker, period, events
Visit = tuple[str, int, str]  # user, time, broker
BILLION = 1e9


def filtered_rates(
    counts: Mapping[tuple[str, int], int],
    former: Mapping[str, float],
    *,
    alpha: float,
    period_s: float,
    before: int | None,
    until: int,
) -> dict[str, float]:
    """eq. 12, period by period; `counts` are events by (key, period)."""
    estimates = dict(former)
    periods = [period for _, period in counts]
    first = before if before is not None else min(periods, default=until)
    for period in range(first, until):
        for key in {key for key, _ in counts} | set(estimates):
            observed = counts.get((key, period), 0) / period_s
            if key in estimates:
                estimates[key] = (1 - alpha) * estimates[key] + alpha * observed
            elif observed > 0:
                estimates[key] = observed
    return estimates


def next_brokers(
    visits: Iterable[Visit], *, support: int, next_max: int
) -> set[tuple[str, int | None, str | None, str, int, float, int]]:
    """As NEXT_BROKERS."""
    contexts: dict[tuple[str, int | None, str | None], Counter[str]] = defaultdict(Counter)
    by_user: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for user, time_us, broker in set(visits):
        by_user[user].append((time_us, broker))
    for path in by_user.values():
        been: list[str] = []
        for time_us, broker in sorted(path):
            if been and been[-1] == broker:
                continue
            if been:
                hour = time_us // 3_600_000_000 % 24
                previous = been[-2] if len(been) > 1 else None
                for by_hour in (None, hour):
                    for by_path in {None, previous}:
                        contexts[(been[-1], by_hour, by_path)][broker] += 1
            been.append(broker)
    found = set()
    for context, nexts in contexts.items():
        moves = sum(nexts.values())
        if moves < support:
            continue
        ranked = sorted(nexts.items(), key=lambda entry: (-entry[1], entry[0]))[:next_max]
        for rank, (broker, count) in enumerate(ranked, 1):
            found.add((*context, broker, count, count / moves, rank))
    return found


# ---- selection -----------------------------------------------------------------------------------


@dataclass(slots=True)
class User:
    broker: str
    topics: frozenset[str]
    # Decides who waits in a round, and between equals.
    lot: int


@dataclass(slots=True)
class Placing:
    """Users of one cluster, placed round by round."""

    users: dict[str, User]
    brokers: list[str]
    # All brokers of all clusters in order: their numbers decide between equals.
    numbers: dict[str, int]
    settings: SelectionJobSettings
    at: dict[str, str] = field(default_factory=dict)
    followers: dict[str, Counter[str]] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = {name: user.broker for name, user in self.users.items()}
        self.count()

    @property
    def mean(self) -> float:
        return sum(self.loads.values()) / len(self.brokers)

    def count(self) -> None:
        self.followers = {broker: Counter() for broker in self.brokers}
        self.loads = dict.fromkeys(self.brokers, 0)
        for name, user in self.users.items():
            self.followers[self.at[name]].update(user.topics)
            self.loads[self.at[name]] += len(user.topics)

    def utility(self, name: str, broker: str) -> int:
        """In billionths."""
        user, here = self.users[name], self.at[name] == broker
        hits = sum(1 for t in user.topics if self.followers[broker][t] > here)
        load = self.loads[broker] + (0 if here else len(user.topics))
        floor = self.settings.load_floor
        relative = (load + floor) / (self.mean + floor)
        utility = hits / len(user.topics) - self.settings.load_weight * relative
        return math.floor(utility * BILLION + 0.5)

    def others(self, name: str) -> list[tuple[int, int, str]]:
        """Utility, number and name of the brokers that are considered, the best last."""
        user = self.users[name]
        least = min(self.brokers, key=lambda b: (self.loads[b], self.numbers[b]))
        sharing = {b for b in self.brokers if any(self.followers[b][t] for t in user.topics)}
        considered = (sharing | {least, user.broker}) - {self.at[name]}
        return sorted((self.utility(name, b), -self.numbers[b], b) for b in considered)

    def run(self, number: int) -> int:
        """One round; how many have moved."""
        wants: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for name, user in self.users.items():
            others = self.others(name) if (user.lot + number) % 2 == 0 else []
            if others:
                gain = others[-1][0] - self.utility(name, self.at[name])
                if gain > round(self.settings.margin * BILLION):
                    wants[others[-1][2]].append((-gain, user.lot, name))
        moves = {}
        for broker, queue in wants.items():
            room = min(
                self.settings.capacity * self.mean - self.loads[broker],
                self.settings.intake * self.mean,
            )
            taken = 0
            for _, _, name in sorted(queue):
                taken += len(self.users[name].topics)
                if room > 0 and taken <= room:
                    moves[name] = broker
        self.at |= moves
        self.count()
        return len(moves)


def place(clusters: Iterable[Placing], settings: SelectionJobSettings) -> int:
    """Rounds of all clusters together, as many as there were."""
    every = list(clusters)
    few = settings.settled * sum(len(placing.users) for placing in every)
    quiet = number = 0
    while number < settings.rounds_max and quiet < 2:
        moved = sum(placing.run(number) for placing in every)
        quiet = 0 if moved > few else quiet + 1
        number += 1
    return number
