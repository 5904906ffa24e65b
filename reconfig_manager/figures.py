"""What a manager counts and measures, for Prometheus."""

from __future__ import annotations

from collections import Counter

from reconfig_manager.manager import Manager
from reconfig_manager.office import Office
from reconfig_manager.plan import PlanState
from reconfig_manager.policy import Mode
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.rest.metrics import Family, Sample, counter, gauge
from reconfig_manager.survey import Survey


def figures_of(manager: Manager, found: Survey | None, broadcast: Broadcast) -> list[Family]:
    """`found`: of the network, if this manager leads."""
    families = [
        gauge("dynatops_leading", "Whether this manager leads.", float(manager.leads)),
        gauge("dynatops_watchers", "Open streams of events.", len(broadcast)),
        counter("dynatops_events_total", "Events told to watchers.", broadcast.told),
        counter(
            "dynatops_watcher_overflows_total",
            "Streams of events ended because they were too slow.",
            broadcast.overflows,
        ),
        counter(
            "dynatops_watchers_refused_total",
            "Streams of events refused because there were too many.",
            broadcast.turned_away,
        ),
    ]
    if found is not None:
        families += _of_the_network(manager.office, found)
        families += _of_plans(manager)
    return families


def _of_the_network(office: Office, found: Survey) -> list[Family]:
    members = list(office.members)
    return [
        gauge("dynatops_fence", "The leader's fencing number.", office.fence),
        gauge("dynatops_epoch", "Epoch of the present placement.", office.placement.epoch),
        gauge("dynatops_brokers", "Registered brokers.", len(members)),
        gauge(
            "dynatops_brokers_attached",
            "Brokers with an open stream.",
            sum(member.attached for member in members),
        ),
        gauge(
            "dynatops_brokers_frozen",
            "Brokers that said, when they registered, that a plan holds them.",
            sum(bool(member.frozen_by) for member in members),
        ),
        gauge(
            "dynatops_model_completeness",
            "Share of brokers heard of lately.",
            found.model.completeness,
        ),
        gauge("dynatops_model_ready", "Whether enough is known to plan.", found.model.ready),
        gauge("dynatops_topics", "Topics known.", len(found.names)),
        gauge(
            "dynatops_subscriptions",
            "Pairs of a broker and a topic that it subscribes to.",
            sum(found.subscribers.values()),
        ),
        gauge("dynatops_published_events_per_s", "Filtered (eq. 12).", sum(found.rates.values())),
    ]


def _of_plans(manager: Manager) -> list[Family]:
    office = manager.office
    states = Counter(plan.state for plan in office.plans.values())
    executing = manager.executing
    mode = office.rules.mode
    return [
        Family(
            "dynatops_plans",
            "gauge",
            "Plans at hand, by state.",
            tuple(Sample(states[state], {"state": state.lower()}) for state in PlanState),
        ),
        gauge("dynatops_executing", "Whether a plan is being executed.", executing is not None),
        gauge(
            "dynatops_catching_up",
            "Brokers being told of a plan that went on without them.",
            len(manager.catching_up),
        ),
        gauge("dynatops_store_behind", "Things not in the store yet.", office.journal.behind),
        Family(
            "dynatops_policy_mode",
            "gauge",
            "The policy's mode: 1 for the one in force.",
            tuple(Sample(float(each is mode), {"mode": each.value}) for each in Mode),
        ),
        Family(
            "dynatops_moving_cost_constant",
            "gauge",
            "Constants of the moving cost (eq. 11), as calibrated.",
            tuple(Sample(getattr(office.constants, name), {"of": name}) for name in "abc"),
        ),
    ]
