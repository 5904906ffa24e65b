"""What a broker tells the reconfiguration manager about itself and what happens at it."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.routing import Routing
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.stores.storing import Storing
from dynatops.v1.manager_pb2 import LoadReport, Registration, RoundTrip, TopicCount

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
_TALLY = "manager"


class Reporting:
    def __init__(
        self,
        context: BrokerContext,
        labels: Mapping[str, str],
        routing: Routing,
        registry: Registry,
        storing: Storing,
    ) -> None:
        self._storing = storing
        self._labels = labels
        self._plans = routing.plans
        self._measures = routing.measures
        self._registry = registry
        self._counters = context.counters
        self._told: set[str] = set()
        self._begun = False
        self._since_s = 0.0

    def begin(self, now_s: float) -> None:
        """There is, or may come, a manager: count and measure from now on, for whichever it is."""
        if self._begun:
            return
        self._begun = True
        self._measures.begin_tally(_TALLY)
        self._measures.begin_round_trips()
        self._since_s = now_s

    @property
    def version(self) -> int:
        """Whenever it has changed, the manager is to be told the registration again."""
        return self._plans.version + self._storing.assigning.version

    def registration(self) -> Registration:
        registration = self._plans.registration()
        registration.fence = max(registration.fence, self._storing.assigning.fence)
        registration.protocol_min = PROTOCOL_MIN
        registration.protocol_max = PROTOCOL_MAX
        registration.labels.update(self._labels)
        return registration

    def report(self, now_s: float, *, full: bool) -> LoadReport:
        """What happened since the last report; a full one says all that is subscribed to. Topics of
        the system's own are nobody's interest: they are not in it."""
        measures, sessions = self._measures, self._registry.clients.values()
        if full:
            self._told = set()
        wanted = measures.wanted()
        tally = measures.take_tally(_TALLY)
        report = LoadReport(
            window_s=max(now_s - self._since_s, 0.0),
            subscribed=sorted(wanted - self._told),
            unsubscribed=sorted(self._told - wanted),
            sessions=len(self._registry),
            subscriptions=sum(len(session.filters) for session in sessions),
            counters={
                **self._counters.as_dict(),
                **measures.counters(),
                **self._storing.past.reported_counters(),
            },
            store=self._storing.report(),
        )
        for topic, counted in tally.items():
            if counted.events:
                count = TopicCount(topic=topic, events=counted.events, bytes=counted.nbytes)
                report.publications.append(count)
            if counted.requests:
                report.requests.append(TopicCount(topic=topic, events=counted.requests))
        for broker_id, seconds in measures.take_round_trips(everything=full).items():
            report.round_trips.append(RoundTrip(broker_id=broker_id, ms=1000.0 * seconds))
        self._told, self._since_s = wanted, now_s
        return report
