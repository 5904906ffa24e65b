"""Who asks for the past of which topics, as brokers report it or as Spark advises it.

A *request* is a user's request for the past of one topic: counted once, at the broker where the
user is, whoever answers it and however often what was missed is fetched. Brokers tell the same
count to managers (`LoadReport.requests`) and to the lake (table `requests`), so both ways lead to
requests in a second by topic and broker.

Reports are filtered as publications are (DYNATOPS eq. 12), for each pair of broker and topic.
Advice names the brokers that ask most for a topic, and their shares; what is left of the topic's
rate, and the shares of brokers that are gone, are spread evenly over the others: their users are
somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reconfig_manager.storing.network import Floats

# Requests in a second; below, nobody has asked for long.
RATE_MIN = 1e-6


@dataclass(frozen=True, slots=True)
class PastDemand:
    """Rows are in the order of the topics' names, columns in that of the brokers."""

    topics: tuple[str, ...]
    brokers: tuple[str, ...]
    # [topic, broker] -> requests in a second.
    requests: Floats


@dataclass(frozen=True, slots=True)
class AdvisedDemand:
    """Of one topic: all its requests in a second, and the shares of those who ask most."""

    rate: float
    shares: Mapping[str, float]


def demand_of_advice(advised: Mapping[str, AdvisedDemand], brokers: Sequence[str]) -> PastDemand:
    topics = tuple(sorted(advised))
    column = {broker: number for number, broker in enumerate(brokers)}
    requests = np.zeros((len(topics), len(brokers)))
    for row, topic in enumerate(topics):
        demand = advised[topic]
        here = {column[b]: share for b, share in demand.shares.items() if b in column}
        others = np.ones(len(brokers), dtype=np.bool_)
        others[list(here)] = False
        # Where all are named, the rest is theirs.
        rest = others if others.any() else ~others
        for broker, share in here.items():
            requests[row, broker] = demand.rate * share
        left = max(0.0, 1.0 - sum(here.values()))
        if len(brokers):
            requests[row, rest] += demand.rate * left / np.count_nonzero(rest)
    return PastDemand(topics, tuple(brokers), requests)


class RequestRates:
    """What brokers report, filtered. Pairs past `pairs_max` are not taken in, and counted."""

    def __init__(self, alpha: float, pairs_max: int) -> None:
        self._alpha = alpha
        self._pairs_max = pairs_max
        # Broker -> topic -> requests in this period; and how long the broker's reports are of.
        self._counts: dict[str, dict[str, int]] = {}
        self._seconds: dict[str, float] = {}
        # Broker -> topic -> requests in a second.
        self._rates: dict[str, dict[str, float]] = {}
        self._pairs = 0
        self.pairs_refused = 0

    def __len__(self) -> int:
        return self._pairs

    def count(self, broker_id: str, counts: Iterable[tuple[str, int]], seconds: float) -> None:
        counted = self._counts.setdefault(broker_id, {})
        known = self._rates.setdefault(broker_id, {})
        self._seconds[broker_id] = self._seconds.get(broker_id, 0.0) + seconds
        for topic, requests in counts:
            if topic in counted:
                counted[topic] += requests
            elif topic in known or self._pairs < self._pairs_max:
                self._pairs += topic not in known
                counted[topic] = requests
            else:
                self.pairs_refused += 1

    def close_period(self) -> None:
        """A broker that did not report counts as before: a late report is no silence."""
        for broker_id, seconds in self._seconds.items():
            counted, rates = self._counts.pop(broker_id), self._rates[broker_id]
            if seconds <= 0:
                self._pairs -= len(counted.keys() - rates.keys())
                continue
            for topic, requests in counted.items():
                # The first observation is the first estimate.
                rates.setdefault(topic, requests / seconds)
            for topic in list(rates):
                seen = counted.get(topic, 0) / seconds
                rates[topic] += self._alpha * (seen - rates[topic])
                if rates[topic] < RATE_MIN:
                    del rates[topic]
                    self._pairs -= 1
        self._seconds = {}

    def forget_broker(self, broker_id: str) -> None:
        rates = self._rates.pop(broker_id, {})
        counted = self._counts.pop(broker_id, {})
        self._seconds.pop(broker_id, None)
        self._pairs -= len(rates.keys() | counted.keys())

    def demand(self, brokers: Sequence[str]) -> PastDemand:
        known = [self._rates.get(broker, {}) for broker in brokers]
        topics = tuple(sorted({topic for rates in known for topic in rates}))
        requests = np.zeros((len(topics), len(brokers)))
        row = {topic: number for number, topic in enumerate(topics)}
        for column, rates in enumerate(known):
            for topic, rate in rates.items():
                requests[row[topic], column] = rate
        return PastDemand(topics, tuple(brokers), requests)
