"""What a broker tells the reconfiguration manager about itself and what happens at it."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.hosting.node_hosting import NodeHosting
from broker_agent.core.hosting.reconfiguration import Reconfiguration
from broker_agent.core.sessions.registry import Registry
from dynatops.v1.manager_pb2 import LoadReport, Registration, RoundTrip, TopicCount
from overlay.base.catalogue import is_system

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
_TALLY = "manager"


class Reporting:
    def __init__(
        self,
        context: BrokerContext,
        labels: Mapping[str, str],
        hosting: NodeHosting,
        reconfiguration: Reconfiguration,
        registry: Registry,
    ) -> None:
        self._labels = labels
        self._hosting = hosting
        self._reconfiguration = reconfiguration
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
        self._hosting.begin_tally(_TALLY)
        self._hosting.node.round_trips.measuring = True
        self._since_s = now_s

    @property
    def version(self) -> int:
        """Whenever it has changed, the manager is to be told the registration again."""
        return self._reconfiguration.version

    def registration(self) -> Registration:
        part = self._reconfiguration
        node = self._hosting.node.status()
        return Registration(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            node=node.me.ref,
            labels=self._labels,
            epoch=part.epoch,
            fence=part.fence,
            frozen_by=part.frozen_by,
            predecessor=node.predecessor.ref if node.predecessor is not None else None,
            successor=node.successor.ref if node.successor is not None else None,
        )

    def report(self, now_s: float, *, full: bool) -> LoadReport:
        """What happened since the last report; a full one says all that is subscribed to. Topics of
        the system's own are nobody's interest: they are not in it."""
        node, sessions = self._hosting.node, self._registry.clients.values()
        if full:
            self._told = set()
        wanted = {topic for topic in node.interests.wanted if not is_system(topic)}
        tally = self._hosting.take_tally(_TALLY)
        report = LoadReport(
            window_s=max(now_s - self._since_s, 0.0),
            subscribed=sorted(wanted - self._told),
            unsubscribed=sorted(self._told - wanted),
            sessions=len(self._registry),
            subscriptions=sum(len(session.filters) for session in sessions),
            counters={**self._counters.as_dict(), **node.counters.as_dict()},
        )
        for topic, counted in tally.items():
            if counted.events:
                count = TopicCount(topic=topic, events=counted.events, bytes=counted.nbytes)
                report.publications.append(count)
            if counted.requests:
                report.requests.append(TopicCount(topic=topic, events=counted.requests))
        for broker_id, seconds in node.round_trips.take_measured(everything=full).items():
            report.round_trips.append(RoundTrip(broker_id=broker_id, ms=1000.0 * seconds))
        self._told, self._since_s = wanted, now_s
        return report
