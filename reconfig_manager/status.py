"""What a manager says of itself: to REST views, metrics, probes and tests.

Values, asked for by `Manager.status` and `Manager.topics_status` and never changed: nothing that
reads them reaches into the core. What one more reader wants to know is a field here, and what it is
taken from stands beside it, in `of`. What is known of topics is apart, as putting it together takes
long on large networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dynatops.kit.advice.job_records import JobRecord
from reconfig_manager.execution.plan_executor import PlanExecutor
from reconfig_manager.leader.leader_state import LeaderState
from reconfig_manager.model.notices import ProcessChecked
from reconfig_manager.model.plan import PlacedNode, Placement, Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import ModelTooThin
from reconfig_manager.monitor.members import Member
from reconfig_manager.monitor.stores import KnownStore
from reconfig_manager.planning.process import Process
from reconfig_manager.ports import Constants


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A registered broker, and what it reported last."""

    placed: PlacedNode
    node_id: int
    # The newest placement that it has taken part in.
    epoch: int
    labels: Mapping[str, str]
    # Its stream is open.
    attached: bool
    # The plan that holds it, as it said when it registered; or nothing.
    frozen_by: str
    # When it reported last; None before the first time.
    heard_s: float | None = None
    sessions: int = 0
    topics: int = 0
    subscriptions: int = 0

    @classmethod
    def of(cls, member: Member, leader: LeaderState) -> Self:
        load = leader.monitor.load(member.broker_id)
        return cls(
            placed=member.placed,
            node_id=member.node_id,
            epoch=member.epoch,
            labels=dict(member.labels),
            attached=member.attached,
            frozen_by=member.frozen_by,
            heard_s=load.heard_s if load else None,
            sessions=load.sessions if load else 0,
            topics=load.topics if load else 0,
            subscriptions=load.subscriptions if load else 0,
            store=leader.stores.get(member.broker_id),
        )

    # What it said of itself as a store last; None of one that is none, and cannot be one.
    store: KnownStore | None = None

    @property
    def broker_id(self) -> str:
        return self.placed.broker_id


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """What a manager holds because it leads."""

    manager: str
    at_s: float
    fence: int
    placement: Placement
    policy: VersionedPolicy
    constants: Constants
    # In the order of their names.
    brokers: tuple[MemberStatus, ...]
    # Those at hand: all that are not over, and the newest of the others.
    plans: tuple[Plan, ...]
    # The plan that is being carried out.
    executing: Plan | None
    # Brokers that are being told of a plan that went on without them.
    catching_up: tuple[str, ...]
    # Things that are not in the store yet.
    store_behind: int
    # How Algorithm 3 ended last, None before the first time; when it checks again; and in how many
    # periods in a row the candidate that it has was worth it.
    last_check: ProcessChecked | None
    next_check_s: float
    streak: int

    @classmethod
    def of(
        cls,
        manager: str,
        leader: LeaderState,
        executor: PlanExecutor,
        process: Process,
        now_s: float,
    ) -> Self:
        return cls(
            manager=manager,
            at_s=now_s,
            fence=leader.fence,
            placement=leader.placement,
            policy=leader.policy,
            constants=leader.constants,
            brokers=tuple(MemberStatus.of(member, leader) for member in leader.members),
            plans=tuple(leader.plans.values()),
            executing=executor.executing,
            catching_up=tuple(executor.catching_up),
            store_behind=leader.journal.behind,
            last_check=process.last,
            next_check_s=process.next_s,
            streak=process.streak,
        )

    @property
    def rules(self) -> Policy:
        return self.policy.policy

    @property
    def open_proposals(self) -> int:
        return sum(plan.state is PlanState.PROPOSED for plan in self.plans)


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    manager: str
    # None if it does not lead.
    leader: LeaderStatus | None = None


@dataclass(frozen=True, slots=True)
class TopicsStatus:
    """Topics and the model, as far as brokers have reported."""

    at_s: float
    # Of the leader that it is of.
    fence: int
    # Of all topics, in their order.
    names: tuple[str, ...]
    # Of each topic: events/s, requests/s, and how many brokers subscribe to it.
    rates: Mapping[str, float]
    requests: Mapping[str, float]
    subscribers: Mapping[str, int]
    # Why it cannot be planned from; empty if it can.
    model_problem: str
    # Share of brokers heard of lately.
    completeness: float
    periods: int

    @classmethod
    def of(cls, leader: LeaderState, now_s: float) -> Self:
        problem = ""
        try:
            leader.model(leader.rules, now_s)
        except ModelTooThin as thin:
            problem = str(thin)
        monitor = leader.monitor
        rates, requests = monitor.rates(), monitor.request_rates()
        subscribers = monitor.subscriptions_by_topic()
        return cls(
            at_s=now_s,
            fence=leader.fence,
            names=tuple(sorted({*rates, *requests, *subscribers})),
            rates=rates,
            requests=requests,
            subscribers=subscribers,
            model_problem=problem,
            completeness=monitor.completeness(leader.members, now_s),
            periods=monitor.periods,
        )


@dataclass(frozen=True, slots=True)
class AdviceStatus:
    """What a job of analytics said of the advice that it left."""

    computed_s: float
    # By table.
    entries: Mapping[str, int] = field(default_factory=dict)
    # When Redis forgets it; infinite, if it never does.
    expires_s: float = math.inf


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job of analytics, as it has left word of itself."""

    job: str
    # None of one that never ran, or has not for a month.
    record: JobRecord | None = None
    # None if there is none that readers would take.
    advice: AdviceStatus | None = None
