"""Plans of stores from their approval on: new stores are told, they catch up, former ones are told.

    approved --> KEEPING: whoever is to have a topic is told; they say in reports how far they are
        all have caught up --> RELEASING: whoever is to have it no more is told --> COMMITTED
        one cannot, or time is over --> ROLLING_BACK --> ROLLED_BACK

One at a time. A phase is in the store before anybody is told of it. What a broker is told is all
that it is to keep, with the phase's epoch, until it answers; on a new stream it is told again. A
new leader goes on with the phase that it finds, under the same epoch. Afterwards it is counted how
far requests have to go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynatops.v1.manager_pb2 import (
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    STORE_ASSIGN,
    Step,
    StepReply,
)
from reconfig_manager.leader.leader_state import LeaderState, audit
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.refusals import IllegalTransition
from reconfig_manager.model.store_plan import (
    STORE_PHASES,
    AnswerRate,
    StoreExecution,
    StoreJournalEntry,
    StoreMeasurement,
    StorePart,
    StorePhase,
)
from reconfig_manager.monitor.measuring import NOT_MEASURED
from reconfig_manager.monitor.members import Admission
from reconfig_manager.monitor.stores import KeptTopic
from reconfig_manager.ports import AgentId, ManagerEffect, SendStep

STRAGGLERS = "stragglers"
_NOTES: Mapping[StorePhase, str] = {
    StorePhase.KEEPING: "new stores catch up",
    StorePhase.RELEASING: "former stores are told to go",
}


@dataclass(frozen=True, slots=True)
class _MeasuringStores:
    plan_id: str
    since_s: float
    until_s: float


class StoreExecutor:
    def __init__(self, leader: LeaderState) -> None:
        self._leader = leader
        self._plan: Plan | None = None
        # The version of it that is in the store: until then nobody is told.
        self._recorded = 0
        # Brokers that have not answered in this phase, and when each was told last.
        self._waiting: dict[str, float] = {}
        # All that this phase tells each.
        self._told: dict[str, tuple[str, ...]] = {}
        self._phase_since_s = 0.0
        self._messages = 0
        self._measuring: _MeasuringStores | None = None

    @property
    def executing(self) -> Plan | None:
        return self._plan

    # ---- beginning -------------------------------------------------------------------------------

    def take_over(self, now_s: float) -> list[ManagerEffect]:
        """What the leader before left in the middle."""
        for plan in list(self._leader.plans.values()):
            part = plan.stores
            if plan.state is PlanState.EXECUTING and part is not None and part.phase is not None:
                self._messages = part.execution.messages if part.execution else 0
                return self._enter(plan, part.phase, now_s, epoch=plan.epoch)
        self._go_on_measuring(now_s)
        return []

    def approved(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        """It is in the store: stores may be told."""
        leader, part = self._leader, plan.stores
        assert part is not None
        why = leader.plan_is_stale(plan)
        if why:
            return leader.write(plan.became(PlanState.EXPIRED, now_s, f"{why}; propose again"))
        effects = self._give_up_measuring(now_s)
        measure_s = leader.settings.storing.measure_s
        execution = StoreExecution(
            epoch=0,
            fence=leader.fence,
            manager=leader.me,
            started_s=now_s,
            before=leader.stores.meter.between(now_s - measure_s, now_s),
        )
        part = part.model_copy(update={"execution": execution})
        note = _NOTES[StorePhase.KEEPING]
        plan = plan.became(PlanState.EXECUTING, now_s, note, stores=part)
        self._messages = 0
        return [*effects, *self._enter(plan, StorePhase.KEEPING, now_s)]

    def _enter(
        self, plan: Plan, phase: StorePhase, now_s: float, epoch: int = 0, failure: str = ""
    ) -> list[ManagerEffect]:
        """With another epoch, unless a new leader begins a phase again."""
        leader, part = self._leader, plan.stores
        assert part is not None
        assert part.execution is not None
        if phase not in STORE_PHASES[part.phase]:
            raise IllegalTransition(plan.id, str(part.phase), phase, STORE_PHASES[part.phase])
        entry = StoreJournalEntry(phase=phase, at_s=now_s, fence=leader.fence, manager=leader.me)
        execution = part.execution.model_copy(
            update={
                "epoch": epoch or leader.next_epoch(),
                "fence": leader.fence,
                "manager": leader.me,
                "journal": (*part.execution.journal, entry),
                "messages": self._messages,
                "failure": failure or part.execution.failure,
            }
        )
        part = part.model_copy(update={"phase": phase, "execution": execution})
        note = f"rolled back: {execution.failure}" if execution.failure else _NOTES[phase]
        self._plan = plan.changed(now_s, stores=part, note=note)
        self._told = _told(part, phase)
        self._waiting = dict.fromkeys(self._told, float("-inf"))
        self._phase_since_s = now_s
        return leader.write(self._plan)

    # ---- what happens ----------------------------------------------------------------------------

    def recorded(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        mine = self._plan
        if mine is None or (plan.id, plan.version) != (mine.id, mine.version):
            return []
        self._recorded = plan.version
        if mine.state is PlanState.EXECUTING:
            return self._tell_waiting(now_s)
        self._plan = None
        actor = mine.approved_by or mine.actor
        ended = audit(now_s, actor, "execute", mine.id, mine.reason, mine.state, mine.note)
        if mine.state is PlanState.COMMITTED:
            self._measure_later(mine, now_s)
        return [ended, *self.take_over(now_s)]

    def registered(self, admission: Admission, now_s: float) -> list[ManagerEffect]:
        """On a new stream: what was said on the old one may be lost, and its disk be another."""
        member = admission.member
        if member is None or not admission.on_new_stream or not self._is_acting:
            return []
        if member.broker_id not in self._told:
            return []
        self._waiting[member.broker_id] = float("-inf")
        return self._tell_waiting(now_s)

    def reply(self, agent: AgentId, reply: StepReply, now_s: float) -> list[ManagerEffect]:
        plan = self._plan
        if plan is None or not self._is_acting or self._leader.members.by_agent(agent) is None:
            return []
        if (reply.plan, reply.epoch) != (plan.id, plan.epoch):
            return []
        if agent.broker_id not in self._waiting:
            return []
        self._messages += 1
        if reply.problem == STEP_PROBLEM_UNSPECIFIED:
            del self._waiting[agent.broker_id]
            return self._go_on(plan, now_s)
        if reply.problem == STEP_PROBLEM_STALE and reply.fence > self._leader.fence:
            # Whoever leads by then goes on.
            return []
        if self._phase is StorePhase.KEEPING:
            why = f"{agent.broker_id} refused: {reply.message[:200] or 'no reason given'}"
            return self._enter(plan, StorePhase.ROLLING_BACK, now_s, failure=why)
        # It is asked again; in the end it is a straggler.
        return []

    def cancel(self, plan: Plan, actor: str, reason: str, now_s: float) -> list[ManagerEffect]:
        """Before the commit point only; raises IllegalTransition."""
        mine = self._plan
        if mine is None or mine.id != plan.id or self._phase is not StorePhase.KEEPING:
            phase = plan.stores.phase if plan.stores is not None else None
            state = f"{plan.state}, {phase}"
            raise IllegalTransition(plan.id, state, "cancelled", STORE_PHASES[phase])
        why = f"cancelled by {actor}" + (f": {reason}" if reason else "")
        return self._enter(mine, StorePhase.ROLLING_BACK, now_s, failure=why)

    def tick(self, now_s: float) -> list[ManagerEffect]:
        effects: list[ManagerEffect] = []
        if self._plan is not None and self._is_acting:
            effects = self._go_on(self._plan, now_s) or self._tell_waiting(now_s)
        return [*effects, *self._measure(now_s)]

    @property
    def _phase(self) -> StorePhase | None:
        return self._plan.stores.phase if self._plan is not None and self._plan.stores else None

    @property
    def _is_acting(self) -> bool:
        """The phase is in the store."""
        plan = self._plan
        return (
            plan is not None
            and plan.state is PlanState.EXECUTING
            and plan.version == self._recorded
        )

    def _tell_waiting(self, now_s: float) -> list[ManagerEffect]:
        plan, members = self._plan, self._leader.members
        assert plan is not None
        effects: list[ManagerEffect] = []
        for broker_id, told_s in self._waiting.items():
            member = members.get(broker_id)
            if member is None or not member.attached:
                continue
            if now_s - told_s < self._leader.settings.storing.resend_s:
                continue
            self._waiting[broker_id] = now_s
            self._messages += 1
            members.note_told(broker_id)
            step = Step(
                fence=self._leader.fence,
                plan=plan.id,
                epoch=plan.epoch,
                kind=STORE_ASSIGN,
                keep=self._told[broker_id],
            )
            effects.append(SendStep(member.agent, step))
        return effects

    # ---- going on --------------------------------------------------------------------------------

    def _go_on(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        settings = self._leader.settings.storing
        if self._phase is StorePhase.KEEPING:
            if not self._waiting and not self._behind(plan):
                return self._enter(plan, StorePhase.RELEASING, now_s)
            why = self._failure(plan, now_s)
            if why:
                return self._enter(plan, StorePhase.ROLLING_BACK, now_s, failure=why)
            return []
        if self._waiting and now_s < self._phase_since_s + settings.complete_timeout_s:
            return []
        return self._end(plan, now_s)

    def _behind(self, plan: Plan) -> list[str]:
        """Stores that lack something of what they are to have."""
        assert plan.stores is not None
        found = []
        for change in plan.stores.changes:
            if not change.begins:
                continue
            store = self._leader.stores.get(change.broker_id)
            is_told = store is not None and store.epoch >= plan.epoch
            if (
                store is None
                or not is_told
                or store.failure
                or not all(_is_ready(store.keeps.get(topic)) for topic in change.begins)
            ):
                found.append(change.broker_id)
        return found

    def _failure(self, plan: Plan, now_s: float) -> str:
        """Why it cannot be brought to its end; empty if it may be."""
        leader, part = self._leader, plan.stores
        assert part is not None
        assert part.execution is not None
        settings = leader.settings.storing
        # A new leader gives brokers time to come and to report.
        if now_s >= leader.since_s + leader.settings.execution.attend_s:
            for change in part.changes:
                if change.begins and leader.members.get(change.broker_id) is None:
                    return f"{change.broker_id} is gone"
                store = leader.stores.get(change.broker_id)
                if change.begins and store is not None and store.failure:
                    return f"{change.broker_id} cannot store anything: {store.failure[:200]}"
        grace_s = leader.since_s + 2 * leader.settings.monitor.report_period_s
        if now_s < max(part.execution.started_s + settings.catch_up_timeout_s, grace_s):
            return ""
        behind = ", ".join(self._behind(plan)[:5])
        return f"not caught up in {settings.catch_up_timeout_s:g} s: {behind}"

    def _end(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        part = plan.stores
        assert part is not None
        assert part.execution is not None
        stragglers = tuple(sorted(self._waiting))
        execution = part.execution.model_copy(
            update={"stragglers": stragglers, "messages": self._messages, "ended_s": now_s}
        )
        part = part.model_copy(update={"execution": execution})
        if part.phase is StorePhase.RELEASING:
            state, note = PlanState.COMMITTED, "topics are where the plan has them"
        else:
            state, note = PlanState.ROLLED_BACK, execution.failure
        flags = (*plan.flags, STRAGGLERS) if stragglers else plan.flags
        self._waiting = {}
        self._plan = plan.became(state, now_s, note, stores=part, flags=flags)
        return self._leader.write(self._plan)

    # ---- afterwards ------------------------------------------------------------------------------

    def _measure_later(self, plan: Plan, now_s: float) -> None:
        settle_s = self._leader.settings.measuring.settle_s
        until_s = now_s + settle_s + self._leader.settings.storing.measure_s
        self._measuring = _MeasuringStores(plan.id, now_s + settle_s, until_s)

    def _go_on_measuring(self, now_s: float) -> None:
        """Of the newest plan, if the leader before had no time to."""
        plans = [p for p in self._leader.plans.values() if p.stores is not None]
        plan = next((p for p in reversed(plans) if p.state is PlanState.COMMITTED), None)
        if self._measuring is not None or plan is None or plan.stores is None:
            return
        fresh = now_s < plan.changed_s + self._leader.settings.storing.measure_s
        if fresh and plan.stores.measurement is None and NOT_MEASURED not in plan.flags:
            self._measure_later(plan, now_s)

    def _give_up_measuring(self, now_s: float) -> list[ManagerEffect]:
        """Topics are moved again before it was over."""
        measuring, self._measuring = self._measuring, None
        plan = self._leader.plans.get(measuring.plan_id) if measuring is not None else None
        return self._leader.write(_not_measured(plan, now_s)) if plan is not None else []

    def _measure(self, now_s: float) -> list[ManagerEffect]:
        measuring, leader = self._measuring, self._leader
        if measuring is None or now_s < measuring.until_s:
            return []
        self._measuring = None
        plan = leader.plans.get(measuring.plan_id)
        if plan is None or plan.stores is None or plan.stores.execution is None:
            return []
        part = plan.stores
        before = plan.stores.execution.before
        after = leader.stores.meter.between(measuring.since_s, now_s)
        least = leader.settings.storing.requests_min
        found = part.prediction
        if before is None or after is None or found is None:
            return leader.write(_not_measured(plan, now_s))
        if min(before.requests, after.requests) < least:
            return leader.write(_not_measured(plan, now_s))
        measurement = _measurement(before, after, found.hops_before - found.hops_after, now_s)
        part = part.model_copy(update={"measurement": measurement})
        return leader.write(plan.changed(now_s, stores=part))


def _told(part: StorePart, phase: StorePhase) -> dict[str, tuple[str, ...]]:
    """By broker: all that it is to keep from this phase on."""
    match phase:
        case StorePhase.KEEPING:
            return {c.broker_id: c.together for c in part.changes if c.begins}
        case StorePhase.RELEASING:
            return {c.broker_id: c.after for c in part.changes if c.ends}
        case StorePhase.ROLLING_BACK:
            return {c.broker_id: c.kept for c in part.changes if c.begins}


def _is_ready(kept: KeptTopic | None) -> bool:
    return kept is not None and kept.ready


def _not_measured(plan: Plan, now_s: float) -> Plan:
    return plan.changed(now_s, flags=(*plan.flags, NOT_MEASURED))


def _measurement(
    before: AnswerRate, after: AnswerRate, predicted: float, now_s: float
) -> StoreMeasurement:
    return StoreMeasurement(
        before=before,
        after=after,
        predicted_hops_saved=predicted,
        measured_hops_saved=before.hops_per_request - after.hops_per_request,
        at_s=now_s,
    )
