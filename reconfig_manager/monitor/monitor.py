"""What brokers report, boiled down to a model of the network (DYNATOPS III-D1).

Publication rates are filtered (eq. 12, `rates.py`); subscriptions are as they are now, put together
from differences. Rates computed elsewhere (by Spark) take the place of the filtered ones while they
are fresh; topics that they do not know, being newer, are as brokers report them. A model is given
only where enough is known; otherwise `ModelTooThin` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dynatops.kit.advice.freshness import is_fresh
from dynatops.v1.manager_pb2 import LoadReport, TopicCount
from overlay.base.catalogue import is_system
from overlay.placement.cost_kernels import Floats, Ints
from reconfig_manager.model.core_settings import MonitorSettings
from reconfig_manager.model.network import Model, Snapshot, make_model
from reconfig_manager.model.plan import Base
from reconfig_manager.model.policy import DelayIn, Policy, RatesFrom
from reconfig_manager.model.rates import Rates, TopicNumbers
from reconfig_manager.model.refusals import ModelTooThin
from reconfig_manager.monitor.members import Member, Members
from reconfig_manager.ports import AgentId

_NOTHING: Ints = np.empty(0, dtype=np.int32)
# Rates that are kept and shown; below, a topic had no event for long.
RATE_MIN = 1e-6
REPORT_WINDOW_MAX_S = 86_400.0


@dataclass(slots=True)
class _Heard:
    """Of one broker."""

    agent: AgentId
    # Of the last report.
    at_s: float
    # Numbers of topics, ascending.
    subscribed: Ints = field(default_factory=lambda: _NOTHING)
    round_trips_ms: dict[str, float] = field(default_factory=dict)
    sessions: int = 0
    subscriptions: int = 0


@dataclass(frozen=True, slots=True)
class RateAdvice:
    """Publication rates computed elsewhere, events/s."""

    rates: Mapping[str, float]
    at_s: float
    fresh_until_s: float


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What a broker reported of itself last."""

    heard_s: float
    topics: int
    sessions: int
    subscriptions: int


class Monitor:
    def __init__(self, settings: MonitorSettings, now_s: float) -> None:
        self._settings = settings
        self._topics = TopicNumbers(settings.topics_max)
        self._publications = Rates(settings.alpha)
        self._requests = Rates(settings.alpha)
        self._heard: dict[str, _Heard] = {}
        self._subscriptions = 0
        # Subscriptions that were not taken in because there are too many.
        self._subscriptions_refused = 0
        self._period_ends_s = now_s + settings.period_s
        self._advice: RateAdvice | None = None

    # ---- what comes in ---------------------------------------------------------------------------

    def report(self, agent: AgentId, report: LoadReport, now_s: float) -> None:
        """The first report of a stream says all that later ones change."""
        heard = self._heard.get(agent.broker_id)
        if heard is None or heard.agent != agent:
            self._forget_subscriptions(agent.broker_id)
            heard = self._heard[agent.broker_id] = _Heard(agent, now_s)
        heard.at_s = now_s
        heard.sessions = report.sessions
        heard.subscriptions = report.subscriptions
        self._count(agent.broker_id, report)
        self._subscribe(heard, report)
        for trip in report.round_trips:
            known = heard.round_trips_ms
            room = len(known) < self._settings.round_trip_brokers_max
            is_time = trip.ms > 0 and math.isfinite(trip.ms)
            if is_time and (room or trip.broker_id in known):
                known[trip.broker_id] = float(trip.ms)

    def _count(self, broker_id: str, report: LoadReport) -> None:
        seconds = report.window_s
        if not 0 < seconds <= REPORT_WINDOW_MAX_S:
            return
        for rates, counts in (
            (self._publications, report.publications),
            (self._requests, report.requests),
        ):
            rates.count(broker_id, self._numbered(counts), seconds)

    def _numbered(self, counts: Iterable[TopicCount]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for count in counts:
            number = self._topics.number(count.topic) if count.events else None
            if number is not None:
                found.append((number, count.events))
        return found

    def _subscribe(self, heard: _Heard, report: LoadReport) -> None:
        before = len(heard.subscribed)
        if report.unsubscribed:
            known = [
                number
                for name in report.unsubscribed
                if (number := self._topics.known(name)) is not None
            ]
            heard.subscribed = np.setdiff1d(heard.subscribed, np.array(known, dtype=np.int32))
        if report.subscribed:
            room = self._settings.subscriptions_max - self._subscriptions
            wanted = report.subscribed[: max(room, 0)]
            self._subscriptions_refused += len(report.subscribed) - len(wanted)
            heard.subscribed = np.union1d(heard.subscribed, self._topics.numbers(wanted))
        self._subscriptions += len(heard.subscribed) - before

    def forget_broker(self, broker_id: str) -> None:
        """It is gone, or another process now."""
        self._forget_subscriptions(broker_id)
        self._heard.pop(broker_id, None)
        for heard in self._heard.values():
            heard.round_trips_ms.pop(broker_id, None)
        self._publications.forget_broker(broker_id)
        self._requests.forget_broker(broker_id)

    def _forget_subscriptions(self, broker_id: str) -> None:
        heard = self._heard.get(broker_id)
        if heard is not None:
            self._subscriptions -= len(heard.subscribed)

    def advise(self, advice: RateAdvice) -> None:
        self._advice = advice

    def restore(self, rates: Mapping[str, float]) -> None:
        """What the leader before had estimated."""
        numbered = {
            number: rate
            for name, rate in rates.items()
            if rate >= 0
            and math.isfinite(rate)
            and (number := self._topics.number(name)) is not None
        }
        self._publications.restore(numbered, self._topics.bound)

    def tick(self, now_s: float) -> None:
        if now_s < self._period_ends_s:
            return
        periods = self._publications.periods
        self._publications.close_period(self._topics.bound)
        self._requests.close_period(self._topics.bound)
        self._period_ends_s = now_s + self._settings.period_s
        if self._publications.periods > periods and not (
            self._publications.periods % self._settings.topic_idle_periods
        ):
            self._forget_idle_topics()

    def _forget_idle_topics(self) -> None:
        subscribed = np.zeros(self._topics.bound, dtype=np.bool_)
        for heard in self._heard.values():
            subscribed[heard.subscribed] = True
        limit = self._settings.topic_idle_periods
        idle = np.intersect1d(self._publications.idle(limit), self._requests.idle(limit))
        for number in idle.tolist():
            # Of a number that is free already the name is nobody's, or another number's.
            free = number >= self._topics.bound or (
                self._topics.known(self._topics.name(number)) != number
            )
            if not free and not subscribed[number]:
                self._topics.forget_topic(number)
                self._publications.forget_topic(number)
                self._requests.forget_topic(number)

    # ---- what is known ---------------------------------------------------------------------------

    @property
    def periods(self) -> int:
        return self._publications.periods

    def rates(self) -> dict[str, float]:
        """Events/s of each topic that has any."""
        return self._named(self._publications)

    def request_rates(self) -> dict[str, float]:
        return self._named(self._requests)

    def _named(self, rates: Rates) -> dict[str, float]:
        estimates = rates.estimates(self._topics.bound)
        found = np.nonzero(estimates >= RATE_MIN)[0].tolist()
        return {self._topics.name(number): float(estimates[number]) for number in found}

    def load(self, broker_id: str) -> BrokerLoad | None:
        heard = self._heard.get(broker_id)
        if heard is None:
            return None
        return BrokerLoad(heard.at_s, len(heard.subscribed), heard.sessions, heard.subscriptions)

    def subscribers(self, topic: str) -> list[str]:
        """Brokers in the topic's tree for their own sake."""
        number = self._topics.known(topic)
        if number is None:
            return []
        return [
            broker_id
            for broker_id in sorted(self._heard)
            if _contains(self._heard[broker_id].subscribed, number)
        ]

    def subscriptions_by_topic(self) -> dict[str, int]:
        """How many brokers subscribe to each topic."""
        counts = np.zeros(self._topics.bound, dtype=np.int64)
        for heard in self._heard.values():
            counts[heard.subscribed] += 1
        return {
            self._topics.name(number): int(counts[number])
            for number in np.nonzero(counts)[0].tolist()
        }

    def topics_of(self, broker_id: str) -> list[str]:
        heard = self._heard.get(broker_id)
        return sorted(self._topics.name(n) for n in heard.subscribed.tolist()) if heard else []

    def completeness(self, members: Members, now_s: float) -> float:
        """Share of registered brokers heard within the window."""
        return len(self._lately(members, now_s)) / len(members) if len(members) else 0.0

    def _lately(self, members: Members, now_s: float) -> list[Member]:
        since_s = now_s - self._settings.window_s
        return [
            member
            for member in members
            if (heard := self._heard.get(member.broker_id)) is not None
            and heard.agent.incarnation == member.incarnation
            and heard.at_s >= since_s
        ]

    def snapshot(self, members: Members, policy: Policy, base: Base, now_s: float) -> Model:
        """Raises ModelTooThin."""
        self._check(members, policy, now_s)
        rates, source, age_s, notes = self._rates_for(policy, now_s)
        present = list(members)
        heard = [self._heard.get(member.broker_id) for member in present]
        rtt_ms = None
        if policy.solver.delay_in is DelayIn.RTT:
            rtt_ms = self._round_trips(present, notes)
        if not rates.any():
            raise ModelTooThin("no publications have been reported: there is nothing to save")
        if self._topics.refused:
            notes.append(f"more topics than {self._settings.topics_max}: some are not in the model")
        if self._subscriptions_refused:
            notes.append("more subscriptions than are kept: some are not in the model")
        return make_model(
            Snapshot(
                brokers=tuple(member.broker_id for member in present),
                node_ids=tuple(member.node_id for member in present),
                subscriptions=[h.subscribed if h else _NOTHING for h in heard],
                rates=rates,
                name_of=self._topics.name,
                rtt_ms=rtt_ms,
                base=base,
                completeness=self.completeness(members, now_s),
                periods=self.periods,
                rates_from=source,
                rates_age_s=age_s,
                notes=tuple(notes),
            )
        )

    def _round_trips(self, present: list[Member], notes: list[str]) -> Floats | None:
        most = self._settings.round_trip_brokers_max
        if len(present) > most:
            notes.append(f"round trips are kept of up to {most:,} brokers: delays are in hops")
            return None
        heard = [self._heard.get(member.broker_id) for member in present]
        rtt_ms = round_trip_matrix(
            [m.broker_id for m in present], [h.round_trips_ms if h else {} for h in heard]
        )
        if rtt_ms is None:
            notes.append("not every round trip time is known: delays are in hops")
        return rtt_ms

    def _check(self, members: Members, policy: Policy, now_s: float) -> None:
        if len(members) < 2:
            raise ModelTooThin(f"{len(members)} broker(s) registered: two at least can be moved")
        known = len(self._lately(members, now_s))
        if known < policy.completeness_min * len(members):
            raise ModelTooThin(
                f"{known} of {len(members)} brokers reported in the last "
                f"{self._settings.window_s:g} s: {policy.completeness_min:.0%} are needed"
            )
        if self.periods < self._settings.periods_min:
            raise ModelTooThin(
                f"reports of {self.periods} period(s) of {self._settings.period_s:g} s so far: "
                f"{self._settings.periods_min} are needed"
            )

    def _rates_for(
        self, policy: Policy, now_s: float
    ) -> tuple[Floats, RatesFrom, float | None, list[str]]:
        """Events/s, where they are from and how old they are, and what is to be said of them."""
        advice, wanted = self._advice, policy.rates_from
        if wanted is RatesFrom.REPORTS or (advice is None and wanted is RatesFrom.AUTO):
            return self._reported(), RatesFrom.REPORTS, None, []
        if advice is None:
            raise ModelTooThin("no rates were computed, and the policy wants rates_from=advice")
        age_s = max(0.0, now_s - advice.at_s)
        if is_fresh(now_s, advice.fresh_until_s):
            return self._advised(advice), RatesFrom.ADVICE, age_s, []
        stale = f"rates were computed {age_s:,.0f} s ago, which is too long"
        if wanted is RatesFrom.ADVICE:
            raise ModelTooThin(f"{stale}, and the policy wants rates_from=advice")
        return self._reported(), RatesFrom.REPORTS, None, [f"{stale}: those reported are used"]

    def _reported(self) -> Floats:
        rates = self._publications.estimates(self._topics.bound)
        rates[rates < RATE_MIN] = 0.0
        return rates

    def _advised(self, advice: RateAdvice) -> Floats:
        numbered = [
            (number, rate)
            for name, rate in advice.rates.items()
            if rate >= 0
            and math.isfinite(rate)
            # A lake of an earlier version may have them.
            and not is_system(name)
            and (number := self._topics.number(name)) is not None
        ]
        rates = self._reported()
        for number, rate in numbered:
            rates[number] = rate
        return rates


def _contains(numbers: Ints, number: int) -> bool:
    position = int(np.searchsorted(numbers, number))
    return position < len(numbers) and int(numbers[position]) == number


def round_trip_matrix(brokers: list[str], trips: list[dict[str, float]]) -> Floats | None:
    """[from, to] in ms; a pair measured from one side only counts for both. None if one is not."""
    matrix = np.zeros((len(brokers), len(brokers)))
    for i, name in enumerate(brokers):
        for j in range(i):
            there, back = trips[i].get(brokers[j]), trips[j].get(name)
            if there is None and back is None:
                return None
            matrix[i, j] = there if there is not None else back
            matrix[j, i] = back if back is not None else there
    return matrix
