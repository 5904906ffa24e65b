"""What a broker answers over HTTP: that it lives, whether it may be sent clients, its figures.

    /livez     200 while it looks at the time as often as it should; else 503, and for how long not
    /readyz    200 while it is a member of the ring with its range in hand, and not on its way out;
               else 503, and why; nor while its disk takes no sessions, or clients cannot come in
               yet by all ways that it has
    /metrics   Prometheus' text format: docs/metrics.md

Nothing here says which topics or users there are.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from broker_agent.core.status.broker_status import BrokerStatus
from broker_agent.runtime.observing.broker_metrics import metrics_for
from broker_agent.runtime.observing.http_server import Answer, Pages
from broker_agent.runtime.observing.readings import BrokerReadings, readings_of
from dynatops.kit.observing.metrics import CONTENT_TYPE, families, render

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

_LEAVING = "the broker is leaving the ring"
LIVE, READY, FIGURES = "/livez", "/readyz", "/metrics"


def pages(agent: Agent) -> Pages:
    return {
        LIVE: lambda: _liveness(agent),
        READY: lambda: _readiness(agent),
        FIGURES: lambda: _figures(readings_of(agent)),
    }


def _figures(readings: BrokerReadings) -> Answer:
    found = families(metrics_for(readings.status), readings)
    return Answer(render(found), CONTENT_TYPE)


def unready(status: BrokerStatus) -> str:
    """Why no client should be sent here; empty if one may."""
    return _LEAVING if status.is_leaving else status.unready


def _liveness(agent: Agent) -> Answer:
    late_s, late_max_s = agent.late_s, agent.settings.http.late_max_s
    if late_s <= late_max_s:
        return Answer(json.dumps({"status": "alive"}) + "\n")
    reason = f"the broker has not looked at the time for {late_s:.1f} s"
    return _not_so("late", reason)


def _not_so(status: str, reason: str) -> Answer:
    text = json.dumps({"status": status, "reason": reason})
    return Answer(text + "\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


def _readiness(agent: Agent) -> Answer:
    reason = _LEAVING if agent.is_stopping else unready(agent.core.status())
    if not reason and not agent.listeners.are_open:
        reason = "the broker does not listen to clients yet"
    unsaved_s = agent.unsaved_for_s
    if not reason and unsaved_s >= agent.settings.runtime.session_unsaved_s:
        reason = f"sessions have not been written to disk for {unsaved_s:.0f} s; the log says why"
    if reason:
        return _not_so("unready", reason)
    return Answer(json.dumps({"status": "ready", "broker": agent.broker_id}) + "\n")
