"""What brokers report of the past: who can keep it, what each keeps and how far that is, and who
asks for it.

Requests are filtered as publications are (`RequestRates`); what Spark computed of them takes their
place while it is fresh. How far requests go is counted by the brokers that make them: counters that
grow, taken in here as if no broker had ever been started again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dynatops.kit.advice.freshness import is_fresh
from dynatops.kit.filters import FilterError, check_pattern, is_wildcard
from dynatops.v1.manager_pb2 import LoadReport, StoreReport
from overlay.base.catalogue import is_system
from overlay.base.identifiers import NUMBER_MAX
from reconfig_manager.model.core_settings import MonitorSettings, StoringSettings
from reconfig_manager.model.policy import RatesFrom
from reconfig_manager.model.refusals import ModelTooThin
from reconfig_manager.model.store_plan import AnswerRate
from reconfig_manager.ports import AgentId
from reconfig_manager.storing.demand import (
    AdvisedDemand,
    PastDemand,
    RequestRates,
    demand_of_advice,
)

_COUNTERS = ("past_answers", "past_answer_hops", "past_events_received")
_WINDOW_MAX_S = 86_400.0
_SAMPLES_MAX = 512

Counts = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """A topic, or a pattern of topics, at one store."""

    ready: bool
    # About; 0 of a pattern, which nobody counts.
    events: int


@dataclass(frozen=True, slots=True)
class KnownStore:
    """What a broker said of itself as a store last."""

    agent: AgentId
    at_s: float
    capacity: int
    # Of the newest assignment that it has obeyed.
    epoch: int
    failure: str
    keeps: Mapping[str, KeptTopic]

    @property
    def may_be_told(self) -> bool:
        return self.capacity > 0 and not self.failure


@dataclass(frozen=True, slots=True)
class DemandAdvice:
    """Requests by topic, computed elsewhere."""

    advised: Mapping[str, AdvisedDemand]
    at_s: float
    fresh_until_s: float


@dataclass(frozen=True, slots=True)
class KnownDemand:
    demand: PastDemand
    source: RatesFrom
    age_s: float | None = None


@dataclass(slots=True)
class AnswerMeter:
    """Requests that stores answered, over all brokers, in about the last `keep_s`."""

    keep_s: float
    _last: dict[str, Counts] = field(default_factory=dict)
    _total: Counts = (0, 0, 0)
    _samples: deque[tuple[float, Counts]] = field(default_factory=deque)

    def report(self, broker_id: str, counters: Mapping[str, int]) -> None:
        answers, hops, events = (int(counters.get(name, 0)) for name in _COUNTERS)
        counts = (answers, hops, events)
        last = self._last.get(broker_id)
        self._last[broker_id] = counts
        if last is None:
            return
        if any(now < before for now, before in zip(counts, last, strict=True)):
            last = (0, 0, 0)
        total = self._total
        self._total = (
            total[0] + answers - last[0],
            total[1] + hops - last[1],
            total[2] + events - last[2],
        )

    def forget_broker(self, broker_id: str) -> None:
        self._last.pop(broker_id, None)

    def sample(self, now_s: float) -> None:
        samples = self._samples
        spacing_s = self.keep_s / _SAMPLES_MAX
        # The newest always; those before it at their distance.
        if len(samples) >= 2 and samples[-1][0] - samples[-2][0] < spacing_s:
            samples.pop()
        samples.append((now_s, self._total))
        while len(samples) > 2 and samples[1][0] <= now_s - self.keep_s:
            samples.popleft()

    def between(self, since_s: float, until_s: float) -> AnswerRate | None:
        """None if nothing was answered then."""
        within = [sample for sample in self._samples if since_s <= sample[0] <= until_s]
        if len(within) < 2:
            return None
        (first_s, first), (last_s, last) = within[0], within[-1]
        answers, hops, events = (end - start for start, end in zip(first, last, strict=True))
        if answers <= 0:
            return None
        return AnswerRate(
            requests=answers,
            seconds=last_s - first_s,
            hops_per_request=hops / answers,
            events_per_request=events / answers,
        )


class StoreMonitor:
    def __init__(self, monitor: MonitorSettings, settings: StoringSettings, now_s: float) -> None:
        self._period_s = monitor.period_s
        self._window_s = monitor.window_s
        self._patterns_max = settings.patterns_max
        self._rates = RequestRates(monitor.alpha, settings.demand_pairs_max)
        self._known: dict[str, KnownStore] = {}
        self.meter = AnswerMeter(2 * settings.measure_s)
        self._period_ends_s = now_s + monitor.period_s
        self._advice: DemandAdvice | None = None

    def report(self, agent: AgentId, report: LoadReport, now_s: float) -> None:
        if 0 < report.window_s <= _WINDOW_MAX_S:
            counts = [
                (count.topic, count.events)
                for count in report.requests
                if count.events and not is_system(count.topic) and not is_wildcard(count.topic)
            ]
            self._rates.count(agent.broker_id, counts, report.window_s)
        self.meter.report(agent.broker_id, report.counters)
        if report.HasField("store") and report.store.epoch <= NUMBER_MAX:
            self._known[agent.broker_id] = self._store_of(agent, report.store, now_s)
        else:
            self._known.pop(agent.broker_id, None)

    def _store_of(self, agent: AgentId, said: StoreReport, now_s: float) -> KnownStore:
        keeps = {
            unit.pattern: KeptTopic(unit.ready, unit.events)
            for unit in said.keeps[: self._patterns_max]
            if _is_sound(unit.pattern)
        }
        return KnownStore(agent, now_s, said.capacity, said.epoch, said.failure, keeps)

    def forget_broker(self, broker_id: str) -> None:
        self._known.pop(broker_id, None)
        self._rates.forget_broker(broker_id)
        self.meter.forget_broker(broker_id)

    def advise(self, advice: DemandAdvice) -> None:
        self._advice = advice

    def tick(self, now_s: float) -> None:
        if now_s >= self._period_ends_s:
            self._rates.close_period()
            self.meter.sample(now_s)
            self._period_ends_s = now_s + self._period_s

    # ---- what is known ---------------------------------------------------------------------------

    def get(self, broker_id: str) -> KnownStore | None:
        return self._known.get(broker_id)

    def heard_lately(self, store: KnownStore, now_s: float) -> bool:
        return now_s - store.at_s <= self._window_s

    @property
    def epoch_max(self) -> int:
        """Of all assignments that any store has said it has."""
        return max((store.epoch for store in self._known.values()), default=0)

    def demand(self, brokers: Sequence[str], wanted: RatesFrom, now_s: float) -> KnownDemand:
        """Raises ModelTooThin."""
        advice = self._advice
        may_be_advised = wanted is not RatesFrom.REPORTS and advice is not None
        if advice is not None and may_be_advised and is_fresh(now_s, advice.fresh_until_s):
            found = demand_of_advice(advice.advised, brokers)
            return KnownDemand(found, RatesFrom.ADVICE, max(0.0, now_s - advice.at_s))
        if wanted is RatesFrom.ADVICE:
            raise ModelTooThin("no fresh demand was computed, and the policy wants advice")
        return KnownDemand(self._rates.demand(brokers), RatesFrom.REPORTS)


def _is_sound(pattern: str) -> bool:
    try:
        check_pattern(pattern)
    except FilterError:
        return False
    return True
