"""The reconfiguration manager, as a pure state machine: what happens goes in, effects come out.

    lead / depose                          the lease, by the driver
    register, report, reply, gone          brokers, each on its stream (`AgentId`)
    propose, propose_stores, approve,      people; a refusal is raised (`refusals.py`)
    cancel, set_policy
    solved, topics_placed, recorded, not_recorded         how effects ended
    tick                                   time passes; several times a second
    status, topics_status                  what watchers are shown, as values (`status.py`)

It does nothing unless it leads. Under a leadership, `LeaderState` holds what is known, `Proposals`
has the plans until they are approved, `PlanExecutor` from then on, `Process` is Algorithm 3. The
service drives it in real time, the simulator in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynatops.v1.manager_pb2 import (
    STEP_PROBLEM_STALE,
    STORE_ASSIGN,
    LoadReport,
    Registration,
    StepReply,
)
from reconfig_manager.execution.plan_executor import PlanExecutor
from reconfig_manager.execution.store_executor import StoreExecutor
from reconfig_manager.leader.leader_state import POLICY, LeaderState, audit
from reconfig_manager.model.core_settings import ADVICE_TTL_S, ManagerSettings
from reconfig_manager.model.network import Model
from reconfig_manager.model.notices import (
    BrokerGone,
    BrokerRegistered,
    LeadershipLost,
    LeadershipTaken,
    PolicyChanged,
)
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import ModelTooThin, NotLeading, RefusalError, StalePolicy
from reconfig_manager.monitor.monitor import RateAdvice
from reconfig_manager.monitor.stores import DemandAdvice
from reconfig_manager.placement.problem import Solution
from reconfig_manager.planning.process import Found, Process
from reconfig_manager.planning.proposals import PROCESS_ACTOR, Proposals
from reconfig_manager.planning.store_proposals import StoreProposals
from reconfig_manager.ports import (
    AgentId,
    Drop,
    KeepRates,
    ManagerEffect,
    Notify,
    ProposalRequest,
    Record,
    Solve,
    StoredState,
    StoreProposalRequest,
)
from reconfig_manager.status import LeaderStatus, ManagerStatus, TopicsStatus
from reconfig_manager.storing.demand import AdvisedDemand
from reconfig_manager.storing.problem import StoringSolution

Effects = list[ManagerEffect]
# What the process has solved is no plan yet.
CHECK = "check"


class _Leading:
    """The parts of one leadership."""

    def __init__(self, leader: LeaderState, now_s: float) -> None:
        self.leader = leader
        self.proposals = Proposals(leader)
        self.executor = PlanExecutor(leader)
        self.store_proposals = StoreProposals(leader, self.proposals)
        self.store_executor = StoreExecutor(leader)
        self.process = Process(now_s, leader.rules, self.executor.reconfigured_s)
        self.keep_rates_s = now_s + leader.settings.keep_rates_s
        self.checks = 0
        self.check_id = ""

    def forget_broker(self, broker_id: str) -> None:
        """It is gone, or another process than before: whatever was known of it does not hold."""
        self.leader.monitor.forget_broker(broker_id)
        self.leader.meter.forget_broker(broker_id)
        self.leader.stores.forget_broker(broker_id)


class Manager:
    def __init__(
        self, settings: ManagerSettings, me: str, *, advice_ttl_s: float = ADVICE_TTL_S
    ) -> None:
        self.settings = settings
        self._advice_ttl_s = advice_ttl_s
        self.me = me
        self._led: _Leading | None = None
        self._advice: RateAdvice | None = None
        self._demand: DemandAdvice | None = None

    # ---- leadership ------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._led is not None

    def lead(self, fence: int, state: StoredState, now_s: float) -> Effects:
        """It got the lease, and read the state after that."""
        leader = LeaderState(
            self.settings, self.me, fence, state, now_s, advice_ttl_s=self._advice_ttl_s
        )
        if self._advice is not None:
            leader.monitor.advise(self._advice)
        if self._demand is not None:
            leader.stores.advise(self._demand)
        led = self._led = _Leading(leader, now_s)
        return [
            Notify(LeadershipTaken(self.me, fence, now_s)),
            *led.proposals.left_behind(now_s),
            *led.executor.take_over(now_s),
            *led.store_executor.take_over(now_s),
            *self._first_policy(leader, now_s),
        ]

    def _first_policy(self, leader: LeaderState, now_s: float) -> Effects:
        """Of a network that nobody has set one for. Once it is in the store, it is as a person's:
        the next leader finds it there, and whatever has been said since."""
        policy = self.settings.first_policy
        if policy is None or leader.policy.version:
            return []
        record = Record(0, policy=VersionedPolicy(policy=policy, version=1))
        reason = "nobody has set one: manager.first_policy"
        return [
            leader.journal.write(POLICY, record),
            audit(now_s, self.me, "set_policy", "policy", reason, "accepted"),
        ]

    def depose(self, now_s: float) -> Effects:
        """It lost the lease: nothing more is sent, whatever it was doing."""
        if self._led is None:
            return []
        self._led = None
        return [Notify(LeadershipLost(self.me, now_s))]

    def _leading(self) -> _Leading:
        if self._led is None:
            raise NotLeading
        return self._led

    # ---- brokers ---------------------------------------------------------------------------------

    def register(self, agent: AgentId, registration: Registration, now_s: float) -> Effects:
        """Its first frame, and again when something in it has changed. A Drop says it is not in."""
        if self._led is None:
            return []
        led, leader, executor = self._led, self._led.leader, self._led.executor
        admission = leader.members.register(agent, registration, now_s)
        effects: Effects = executor.obeyed(agent.broker_id, registration.fence)
        if admission.member is None:
            return [Drop(agent, admission.problem)]
        if admission.replaced is not None:
            effects.append(Drop(admission.replaced, "the broker has opened another stream"))
        if admission.new:
            led.forget_broker(agent.broker_id)
            effects.append(Notify(BrokerRegistered(agent.broker_id, now_s)))
        return [
            *effects,
            *executor.registered(admission, now_s),
            *led.store_executor.registered(admission, now_s),
        ]

    def report(self, agent: AgentId, report: LoadReport, now_s: float) -> Effects:
        if self._led is not None and self._led.leader.members.by_agent(agent) is not None:
            self._led.leader.monitor.report(agent, report, now_s)
            self._led.leader.meter.report(agent.broker_id, report.counters, now_s)
            self._led.leader.stores.report(agent, report, now_s)
        return []

    def reply(self, agent: AgentId, reply: StepReply, now_s: float) -> Effects:
        if self._led is None:
            return []
        if reply.kind != STORE_ASSIGN:
            return self._led.executor.reply(agent, reply, now_s)
        effects = self._led.store_executor.reply(agent, reply, now_s)
        if reply.problem == STEP_PROBLEM_STALE:
            effects += self._led.executor.obeyed(agent.broker_id, reply.fence)
        return effects

    def gone(self, agent: AgentId, now_s: float) -> Effects:
        """Its stream ended; the broker may come back on another."""
        if self._led is not None:
            self._led.leader.members.ended(agent, now_s)
        return []

    def advise(self, rates: dict[str, float], at_s: float, fresh_until_s: float) -> Effects:
        """Publication rates computed by Spark, events/s by topic."""
        self._advice = RateAdvice(rates, at_s, fresh_until_s)
        if self._led is not None:
            self._led.leader.monitor.advise(self._advice)
        return []

    def advise_demand(
        self, demand: Mapping[str, AdvisedDemand], at_s: float, fresh_until_s: float
    ) -> None:
        """Requests for the past by topic, computed by Spark."""
        self._demand = DemandAdvice(demand, at_s, fresh_until_s)
        if self._led is not None:
            self._led.leader.stores.advise(self._demand)

    # ---- people ----------------------------------------------------------------------------------

    def propose(self, request: ProposalRequest, now_s: float) -> Effects:
        """The new plan is in the Record among the effects (`proposed`)."""
        led = self._leading()

        def do() -> Effects:
            return led.proposals.propose(request, now_s)

        return self._command(do, "propose", "", request.actor, request.reason, now_s)

    def propose_stores(self, request: StoreProposalRequest, now_s: float) -> Effects:
        """Which stores had better keep which topics; as `propose`."""
        led = self._leading()

        def do() -> Effects:
            return led.store_proposals.propose(request, now_s)

        return self._command(do, "propose_stores", "", request.actor, request.reason, now_s)

    def approve(self, plan_id: str, actor: str, reason: str, now_s: float) -> Effects:
        led = self._leading()

        def do() -> Effects:
            return led.proposals.approve(plan_id, actor, now_s)

        return self._command(do, "approve", plan_id, actor, reason, now_s)

    def cancel(self, plan_id: str, actor: str, reason: str, now_s: float) -> Effects:
        led = self._leading()

        def do() -> Effects:
            plan = led.leader.plan(plan_id)
            if plan.state is PlanState.EXECUTING and plan.stores is not None:
                return led.store_executor.cancel(plan, actor, reason, now_s)
            if plan.state is PlanState.EXECUTING:
                return led.executor.cancel(plan, actor, reason, now_s)
            return led.proposals.cancel(plan, actor, reason, now_s)

        return self._command(do, "cancel", plan_id, actor, reason, now_s)

    def set_policy(
        self, policy: Policy, actor: str, reason: str, now_s: float, if_version: int | None = None
    ) -> Effects:
        """In force once recorded. With `if_version`, only if nobody has changed it since."""
        led = self._leading()

        def do() -> Effects:
            pending = led.leader.journal.waits_for(POLICY)
            current = (pending.policy if pending else None) or led.leader.policy
            if if_version is not None and if_version != current.version:
                raise StalePolicy(if_version, current.version)
            following = VersionedPolicy(policy=policy, version=current.version + 1)
            return [led.leader.journal.write(POLICY, Record(0, policy=following))]

        return self._command(do, "set_policy", "policy", actor, reason, now_s)

    def _command(
        self,
        do: Callable[[], Effects],
        action: str,
        subject: str,
        actor: str,
        reason: str,
        now_s: float,
    ) -> Effects:
        """Refused or not, it is in the audit log; a refusal's entry comes with the next tick."""
        leader = self._leading().leader
        try:
            effects = do()
        except RefusalError as refusal:
            outcome = type(refusal).__name__
            entry = audit(now_s, actor, action, subject, reason, outcome, str(refusal))
            leader.outbox.append(entry)
            raise
        plan = proposed(effects)
        name = subject or (plan.id if plan else "")
        return [*effects, audit(now_s, actor, action, name, reason, "accepted")]

    def take_refusals(self) -> Effects:
        """Audit entries of refused commands; without this they come with the next tick."""
        leader = self._leading().leader
        refusals, leader.outbox = leader.outbox, []
        return refusals

    # ---- how effects ended -----------------------------------------------------------------------

    def solved(self, plan_id: str, solution: Solution | str, now_s: float) -> Effects:
        """The solution, or what went wrong as a sentence."""
        if self._led is None:
            return []
        if plan_id != self._led.check_id:
            return self._led.proposals.solved(plan_id, solution, now_s)
        process, rules = self._led.process, self._led.leader.rules
        return self._checked(self._led, process.solved(solution, rules, now_s), now_s)

    def topics_placed(self, plan_id: str, solution: StoringSolution | str, now_s: float) -> Effects:
        """The solution, or what went wrong as a sentence."""
        return self._led.store_proposals.placed(plan_id, solution, now_s) if self._led else []

    def recorded(self, token: int, now_s: float) -> Effects:
        if self._led is None:
            return []
        led, leader = self._led, self._led.leader
        record = leader.journal.recorded(token)
        if record is None:
            return []
        if record.placement is not None:
            leader.placement = record.placement
        effects: Effects = []
        if record.policy is not None:
            leader.policy = record.policy
            led.process.start_again(now_s, leader.rules)
            effects.append(Notify(PolicyChanged(record.policy, now_s)))
        plan = record.plan
        if plan is None:
            return effects
        if plan.stores is not None:
            return [*effects, *self._stores_recorded(led, plan, now_s)]
        if plan.state is PlanState.APPROVED:
            effects += led.executor.approved(plan, now_s)
        effects += led.proposals.recorded(plan)
        recorded = led.executor.recorded(record, now_s)
        if recorded.is_ended:
            led.process.start_again(now_s, leader.rules)
        return [*effects, *recorded.effects]

    def _stores_recorded(self, led: _Leading, plan: Plan, now_s: float) -> Effects:
        effects: Effects = []
        if plan.state is PlanState.APPROVED:
            effects += led.store_executor.approved(plan, now_s)
        effects += led.store_proposals.recorded(plan)
        return [*effects, *led.store_executor.recorded(plan, now_s)]

    def not_recorded(self, token: int, now_s: float) -> Effects:
        """The store did not take it, or nobody knows: it is written again soon."""
        if self._led is not None:
            self._led.leader.journal.not_recorded(token, now_s)
        return []

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Effects:
        if self._led is None:
            return []
        led, leader = self._led, self._led.leader
        effects = self.take_refusals()
        for member in leader.members.sweep(now_s):
            led.forget_broker(member.broker_id)
            effects.append(Notify(BrokerGone(member.broker_id, now_s)))
        leader.monitor.tick(now_s)
        leader.stores.tick(now_s)
        effects += leader.journal.due(now_s)
        effects += led.executor.tick(now_s)
        effects += led.store_executor.tick(now_s)
        effects += led.proposals.tick(now_s)
        led.store_proposals.forget_ended()
        effects += self._run_process(led, now_s)
        if now_s >= led.keep_rates_s:
            led.keep_rates_s = now_s + self.settings.keep_rates_s
            effects.append(KeepRates(leader.monitor.rates(), now_s))
        return effects

    def _run_process(self, led: _Leading, now_s: float) -> Effects:
        leader, process, rules = led.leader, led.process, led.leader.rules
        busy = any(
            plan.state in (PlanState.APPROVED, PlanState.EXECUTING)
            for plan in leader.plans.values()
        )
        if busy or not process.due(now_s, rules):
            return []
        try:
            model = leader.model(rules, now_s)
        except ModelTooThin as thin:
            process.too_thin(str(thin), now_s)
            return self._check_event(led)
        problem = led.proposals.problem(model, rules)
        found = process.check(model, problem, rules, now_s)
        effects = self._checked(led, found, now_s)
        if process.wants is not None:
            led.checks += 1
            led.check_id = f"{CHECK}{leader.fence}-{led.checks}"
            options = rules.solver
            effects.append(Solve(led.check_id, problem, options.task(), options.algorithm))
        return effects

    def _checked(self, led: _Leading, found: Found | None, now_s: float) -> Effects:
        effects = self._check_event(led)
        if found is not None:
            effects += led.proposals.found(found, now_s)
        return effects

    def _check_event(self, led: _Leading) -> Effects:
        last = led.process.last
        return [Notify(last)] if last else []

    # ---- read-only -------------------------------------------------------------------------------

    def status(self, now_s: float) -> ManagerStatus:
        if self._led is None:
            return ManagerStatus(self.me)
        led = self._led
        shown = LeaderStatus.of(self.me, led.leader, led.executor, led.process, now_s)
        return ManagerStatus(self.me, shown)

    def topics_status(self, now_s: float) -> TopicsStatus:
        """Raises NotLeading."""
        return TopicsStatus.of(self._leading().leader, now_s)

    def subscribers(self, topic: str) -> frozenset[str]:
        """Brokers in the topic's tree for their own sake. Raises NotLeading."""
        return frozenset(self._leading().leader.monitor.subscribers(topic))

    def plan(self, plan_id: str) -> Plan:
        """One at hand. Raises UnknownPlan and NotLeading."""
        return self._leading().leader.plan(plan_id)

    def model(self, now_s: float) -> Model:
        """What it would plan from now. Raises ModelTooThin and NotLeading."""
        leader = self._leading().leader
        return leader.model(leader.rules, now_s)

    @property
    def leader_state(self) -> LeaderState:
        """For the simulator and tests, which write plans of their own. Raises NotLeading."""
        return self._leading().leader


def proposed(effects: Effects) -> Plan | None:
    """The plan that `propose` made."""
    for effect in effects:
        if isinstance(effect, Record) and effect.plan is not None:
            return effect.plan
    return None


__all__ = ["PROCESS_ACTOR", "Manager", "proposed"]
