"""Plans from their approval on: begun, carried out or undone, measured, learnt from.

Those of stores are `store_executor.py`'s. One at a time. What the coordinator wants written goes
through the journal of the leader's state;
brokers that the plan leaves behind are caught up with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynatops.v1.manager_pb2 import StepReply
from reconfig_manager.execution.catching_up import CatchingUp
from reconfig_manager.execution.coordinator import Coordinator, CoordinatorEffect
from reconfig_manager.execution.steps import prepare
from reconfig_manager.leader.leader_state import CONSTANTS, LeaderState, audit
from reconfig_manager.model.plan import PHASES, CostRate, Plan, PlanState
from reconfig_manager.model.refusals import IllegalTransition
from reconfig_manager.monitor.measuring import NOT_MEASURED, calibrated, measure
from reconfig_manager.monitor.members import Admission, Member
from reconfig_manager.ports import AgentId, ManagerEffect, Outranked, Record, SendStep


@dataclass(frozen=True, slots=True)
class _Measuring:
    plan_id: str
    since_s: float
    until_s: float


class RecordedPlan(NamedTuple):
    """What follows from a record, and whether an execution is over with it."""

    effects: list[ManagerEffect]
    is_ended: bool = False


class PlanExecutor:
    def __init__(self, leader: LeaderState) -> None:
        self._leader = leader
        self._coordinator: Coordinator | None = None
        self._catching_up = CatchingUp(leader.settings.execution, leader.fence, leader.members)
        self._measuring: _Measuring | None = None
        self._outranked_by = 0
        # How it is known that the store has forgotten leaders; empty if it is not.
        self._past_lost = ""
        # When brokers were last moved, or were to be.
        self.reconfigured_s: float | None = max(
            (
                plan.changed_s
                for plan in leader.plans.values()
                if plan.state is PlanState.COMMITTED and plan.stores is None
            ),
            default=None,
        )

    @property
    def executing(self) -> Plan | None:
        return self._coordinator.plan if self._coordinator else None

    @property
    def catching_up(self) -> list[str]:
        return self._catching_up.busy_with

    # ---- beginning -------------------------------------------------------------------------------

    def take_over(self, now_s: float) -> list[ManagerEffect]:
        """What the leader before left in the middle; at most one plan, unless it was mended."""
        for plan in list(self._leader.plans.values()):
            is_mine = plan.state is PlanState.EXECUTING and plan.stores is None
            if is_mine and self._coordinator is None:
                coordinator = self._new_coordinator(plan)
                return self._effects_of(coordinator.take_over(now_s))
        self._go_on_measuring(now_s)
        return []

    def approved(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        """It is in the store: brokers may be told."""
        leader = self._leader
        why = self._past_lost or leader.changed_since(plan.base) or leader.members.unready()
        if why:
            return leader.write(plan.became(PlanState.EXPIRED, now_s, f"{why}; propose again"))
        effects = self._give_up_measuring(now_s)
        execution = prepare(
            plan,
            leader.members,
            epoch=leader.next_epoch(),
            fence=leader.fence,
            manager=leader.me,
            now_s=now_s,
        )
        window_s = min(leader.settings.measuring.measure_s, leader.rules.t_free_s)
        before = self._cost_rate(plan, now_s - window_s, now_s)
        execution = execution.model_copy(update={"before": before})
        coordinator = self._new_coordinator(plan)
        return [*effects, *self._effects_of(coordinator.begin(execution, now_s))]

    def _new_coordinator(self, plan: Plan) -> Coordinator:
        leader = self._leader
        self._coordinator = Coordinator(
            leader.settings.execution,
            plan,
            leader.fence,
            leader.me,
            leader.placement,
            leader.members,
            leader.since_s,
        )
        return self._coordinator

    # ---- what happens ----------------------------------------------------------------------------

    def recorded(self, record: Record, now_s: float) -> RecordedPlan:
        coordinator, plan = self._coordinator, record.plan
        if coordinator is None or plan is None or plan.id != coordinator.plan.id:
            return RecordedPlan([])
        effects = self._effects_of(coordinator.recorded(plan.version, now_s))
        if not coordinator.over:
            return RecordedPlan(effects)
        return RecordedPlan([*effects, *self._ended(coordinator, now_s)], is_ended=True)

    def registered(self, admission: Admission, now_s: float) -> list[ManagerEffect]:
        member = admission.member
        if member is None or self._past_lost:
            return []
        if self._coordinator is not None and self._serves(member.broker_id):
            if not admission.on_new_stream:
                return []
            return self._effects_of(self._coordinator.registered(member.broker_id, now_s))
        effects = self._check_member(member, now_s)
        for other in self._leader.members:
            # The broker that said so before may be the one that is behind.
            both = other.node_id == member.node_id and other is not member
            if both and not self._serves(other.broker_id):
                effects += self._check_member(other, now_s)
        return effects

    def _serves(self, broker_id: str) -> bool:
        """Whether the broker hears from the plan that is being executed."""
        return self._coordinator is not None and self._coordinator.serves(broker_id)

    def _check_member(self, member: Member, now_s: float) -> list[ManagerEffect]:
        frozen_by = self._leader.plans.get(member.frozen_by)
        return list(
            self._catching_up.check_member(
                member,
                self._leader.placement,
                now_s,
                epoch_of_frozen=frozen_by.epoch if frozen_by else 0,
            )
        )

    def reply(self, agent: AgentId, reply: StepReply, now_s: float) -> list[ManagerEffect]:
        coordinator = self._coordinator
        ours = coordinator is not None and reply.plan == coordinator.plan.id
        if coordinator is not None and ours and self._serves(agent.broker_id):
            return [
                *self._effects_of(coordinator.reply(agent, reply, now_s)),
                *self._outranked(coordinator.outranked_by),
            ]
        sending = self._catching_up.reply(agent, reply, self._leader.placement, now_s)
        return [*sending, *self._outranked(self._catching_up.outranked_by)]

    def obeyed(self, broker_id: str, fence: int) -> list[ManagerEffect]:
        """A broker says that it has obeyed this fence.

        A fence is given out once. A broker that has obeyed this leader's, and was sent nothing by
        it, obeyed another, which the store has forgotten: plans of this leader may have the names
        of plans that the broker knows.
        """
        ours = self._leader.fence
        if fence == ours and not self._leader.members.was_told(broker_id):
            self._past_lost = self._past_lost or (
                f"the store has lost its past: {broker_id} has obeyed fence {fence} before"
            )
        elif fence <= ours:
            return []
        return self._outranked(fence)

    def _outranked(self, fence: int) -> list[ManagerEffect]:
        if fence <= self._outranked_by:
            return []
        self._outranked_by = fence
        return [Outranked(fence, past_lost=fence == self._leader.fence)]

    def cancel(self, plan: Plan, actor: str, reason: str, now_s: float) -> list[ManagerEffect]:
        """Before the commit point only; raises IllegalTransition."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.plan.id != plan.id or not coordinator.may_cancel:
            state = f"{plan.state}, {plan.phase}"
            raise IllegalTransition(plan.id, state, "cancelled", PHASES[plan.phase])
        return self._effects_of(coordinator.cancel(actor, reason, now_s))

    def tick(self, now_s: float) -> list[ManagerEffect]:
        effects: list[ManagerEffect] = []
        if self._coordinator is not None:
            effects += self._effects_of(self._coordinator.tick(now_s))
        effects += self._catching_up.tick(now_s)
        return [*effects, *self._measure(now_s)]

    def _effects_of(self, wanted: Sequence[CoordinatorEffect]) -> list[ManagerEffect]:
        effects: list[ManagerEffect] = []
        for effect in wanted:
            if isinstance(effect, SendStep):
                effects.append(effect)
            else:
                effects += self._leader.write(effect.plan, effect.placement)
        return effects

    # ---- afterwards ------------------------------------------------------------------------------

    def _ended(self, coordinator: Coordinator, now_s: float) -> list[ManagerEffect]:
        plan, leader = coordinator.plan, self._leader
        self._coordinator = None
        actor = plan.approved_by or plan.actor
        effects: list[ManagerEffect] = [
            audit(now_s, actor, "execute", plan.id, plan.reason, plan.state, plan.note)
        ]
        self.reconfigured_s = now_s
        if plan.state is PlanState.COMMITTED:
            for broker_id in coordinator.stragglers:
                member = leader.members.get(broker_id)
                if member is not None and member.epoch < plan.epoch:
                    effects += self._catching_up.check_member(
                        member, leader.placement, now_s, straggler=True
                    )
            constants = calibrated(leader.constants, plan, leader.settings.measuring)
            if constants != leader.constants:
                leader.constants = constants
                effects.append(leader.journal.write(CONSTANTS, Record(0, constants=constants)))
            self._plan_to_measure(plan, now_s)
        return [*effects, *self.take_over(now_s)]

    def _cost_rate(self, plan: Plan, since_s: float, until_s: float) -> CostRate | None:
        """On the scale of the plan's prediction."""
        return self._leader.meter.between(
            since_s, until_s, plan.options.delay_weight, plan.model.rtt_mean_ms
        )

    def _plan_to_measure(self, plan: Plan, now_s: float) -> None:
        settings = self._leader.settings.measuring
        ended_s = plan.execution.ended_s if plan.execution else None
        since_s = max(now_s, (ended_s or now_s) + settings.settle_s)
        window_s = min(settings.measure_s, self._leader.rules.t_free_s)
        self._measuring = _Measuring(plan.id, since_s, since_s + window_s)

    def _go_on_measuring(self, now_s: float) -> None:
        """Of the newest plan, if the leader before had no time to."""
        if self._measuring is not None:
            return
        for plan in reversed(list(self._leader.plans.values())):
            if plan.state is PlanState.COMMITTED and plan.stores is None:
                fresh = now_s < plan.changed_s + self._leader.rules.t_free_s
                if fresh and plan.measurement is None and NOT_MEASURED not in plan.flags:
                    self._plan_to_measure(plan, now_s)
                return

    def _give_up_measuring(self, now_s: float) -> list[ManagerEffect]:
        """Brokers are moved again before it was over."""
        if self._measuring is None:
            return []
        plan = self._leader.plans.get(self._measuring.plan_id)
        self._measuring = None
        if plan is None:
            return []
        flags = (*plan.flags, NOT_MEASURED)
        return self._leader.write(plan.changed(now_s, flags=flags))

    def _measure(self, now_s: float) -> list[ManagerEffect]:
        measuring, leader = self._measuring, self._leader
        if measuring is None or now_s < measuring.until_s:
            return []
        self._measuring = None
        plan = leader.plans.get(measuring.plan_id)
        if plan is None or plan.execution is None or plan.prediction is None:
            return []
        after = self._cost_rate(plan, measuring.since_s, now_s)
        settings = leader.settings.measuring
        return leader.write(measure(plan, plan.execution.before, after, settings, now_s))
