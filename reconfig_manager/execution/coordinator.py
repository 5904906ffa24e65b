"""Carrying a plan out, or undoing it: the coordinator of the protocol (DYNATOPS III-D4).

    phase         command              to                  done when
    FREEZING      RCFG_INIT            every participant   frozen, nothing on its way
    MOVING        RCFG_DHT_UPDATE      brokers that move   node state given and received
    -- commit point: phase RESTORING and the placement are recorded together --
    RESTORING     RCFG_TREE_RESTORE    every participant   the new nodes are used (3.1)
    REPAIRING     RCFG_TREE_REPAIR     brokers that move   trees agree with subscriptions (3.2)
    FINISHING     RCFG_FINISH          every participant   thawed            --> COMMITTED
    ROLLING_BACK  RCFG_ROLL_BACK       every participant   thawed            --> ROLLED_BACK

Before the commit point anything that goes wrong leads to ROLLING_BACK: a refusal, a broker that is
gone, the deadline, a cancellation, a new leader. After it there is only forward: commands are
repeated to brokers that have not answered and are still there. One that is gone, or out of time,
is a straggler: it gets no later step here (its node is not the one it should use), and is caught up
with later (`catching_up.py`).

A phase is recorded before it is acted on wherever a successor that reads an older one would do
something else. That is up to the commit point. After it, and in rolling back, successors do the
same anyway, so brokers are not kept frozen for the store's sake. One exception: once the commit has
been sent to the store and no answer came, it may be there; rolling back is then recorded (over it,
with the former placement) before anybody is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dynatops.v1.manager_pb2 import (
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    Step,
    StepKind,
    StepProblem,
    StepReply,
)
from reconfig_manager.execution.steps import (
    AS_GOOD_AS_DONE,
    NEXT,
    OF_MOVERS,
    STEP_OF,
    make_step,
    placement_of,
)
from reconfig_manager.execution.tally import StepTally
from reconfig_manager.model.core_settings import ExecutionSettings
from reconfig_manager.model.plan import Execution, Phase, Placement, Plan, PlanState
from reconfig_manager.monitor.members import Member, Members
from reconfig_manager.ports import AgentId, SendStep

# By when a phase past the commit point ends, as a share of complete_timeout_s.
_SHARE: Mapping[Phase, float] = MappingProxyType(
    {Phase.RESTORING: 0.5, Phase.REPAIRING: 0.75, Phase.FINISHING: 1.0}
)
_STRAGGLERS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Write:
    """To be recorded; what follows from it waits for `recorded` with the plan's version."""

    plan: Plan
    placement: Placement | None = None


CoordinatorEffect = SendStep | Write


@dataclass(slots=True)
class Coordinator:
    """One plan's execution under one leader. Each method gives what is to be done, in order."""

    settings: ExecutionSettings
    plan: Plan
    fence: int
    manager: str
    # The placement before, which a doubtful commit is overwritten with.
    former: Placement
    members: Members
    # Since when this leader leads: brokers get some time to register with it.
    led_since_s: float
    tally: StepTally = field(default_factory=StepTally)
    # The last state is recorded.
    over: bool = False
    # A broker has obeyed a leader with this fence.
    outranked_by: int = 0
    # Participants of which no more is expected here.
    stragglers: dict[str, None] = field(default_factory=dict)
    # Participants and their incarnations; and the node that each mover is to have.
    _incarnations: dict[str, int] = field(default_factory=dict)
    _new_nodes: dict[str, int] = field(default_factory=dict)
    # Whether the present phase is being acted on, and whether its record is confirmed.
    _acting: bool = False
    _recorded: bool = False
    # The command of this phase, one object for all.
    _step: Step = field(default_factory=Step)
    # Brokers that have not answered in this phase, and when each was last told.
    _waiting: dict[str, float] = field(default_factory=dict)
    # Since when brokers wait: from the first command, from the commit, from rolling back.
    _since_s: float = 0.0
    # The plan as it was before its commit was sent to the store; None if it never was.
    _before_commit: Plan | None = None
    # It is known to be committed, whatever the journal says.
    _only_forward: bool = False

    # ---- the two ways to begin -------------------------------------------------------------------

    def begin(self, execution: Execution, now_s: float) -> list[CoordinatorEffect]:
        """The plan is APPROVED; `execution` has its brokers, and what moves (`prepare`)."""
        self.plan = self.plan.became(
            PlanState.EXECUTING, now_s, "brokers are being moved", execution=execution
        )
        self._remember(execution)
        return self._enter(Phase.FREEZING, now_s)

    def take_over(self, now_s: float) -> list[CoordinatorEffect]:
        """The plan was left by another leader in whatever phase its journal says."""
        execution = self._execution
        self._remember(execution)
        self.tally = StepTally.of(execution)
        phase = self._phase
        if phase.committed:
            self._only_forward = True
            return self._enter(Phase.RESTORING, now_s)
        why = execution.failure or f"its leader was lost while {phase.lower()}"
        return self._roll_back(why, now_s)

    def _remember(self, execution: Execution) -> None:
        self._incarnations = {p.broker_id: p.incarnation for p in execution.participants}
        self._new_nodes = {placed.broker_id: int(placed.node, 16) for placed in execution.moved}

    # ---- what happens ----------------------------------------------------------------------------

    def recorded(self, version: int, now_s: float) -> list[CoordinatorEffect]:
        if version != self.plan.version:
            return []
        self._recorded = True
        if self.plan.state is not PlanState.EXECUTING:
            self.over = True
            return []
        return [] if self._acting else self._act(now_s)

    def reply(self, agent: AgentId, reply: StepReply, now_s: float) -> list[CoordinatorEffect]:
        if reply.plan != self.plan.id or reply.epoch != self._execution.epoch:
            return []
        self.tally.answered(reply, agent.broker_id)
        if reply.problem == STEP_PROBLEM_STALE and reply.fence > self.fence:
            self.outranked_by = max(self.outranked_by, reply.fence)
            return []
        member = self.members.by_agent(agent)
        expected = self._acting and reply.kind == STEP_OF[self._phase]
        if not expected or reply.fence != self.fence or member is None:
            return []
        if agent.broker_id not in self._waiting or self._present(agent.broker_id) is None:
            return []
        return self._answered(member, reply, now_s)

    def _answered(self, member: Member, reply: StepReply, now_s: float) -> list[CoordinatorEffect]:
        phase, problem = self._phase, reply.problem
        fine = AS_GOOD_AS_DONE.get(phase, frozenset())
        if problem == STEP_PROBLEM_UNSPECIFIED or problem in fine:
            del self._waiting[member.broker_id]
            if phase is Phase.RESTORING:
                node_id = self._new_nodes.get(member.broker_id, member.node_id)
                self.members.moved_to(member.broker_id, node_id, self._execution.epoch)
            elif phase in (Phase.FINISHING, Phase.ROLLING_BACK):
                member.frozen_by = ""
            return self._go_on_if_done(now_s)
        if phase is Phase.ROLLING_BACK:
            return self._forward_after_all(now_s) if problem == STEP_PROBLEM_IN_USE else []
        if phase.committed:
            # It is asked again; in the end it is a straggler.
            return []
        why = StepProblem.Name(problem).removeprefix("STEP_PROBLEM_").lower().replace("_", " ")
        command = StepKind.Name(reply.kind)
        return self._roll_back(
            f"{member.broker_id} refused {command}: {reply.message[:200] or why}", now_s
        )

    def registered(self, broker_id: str, now_s: float) -> list[CoordinatorEffect]:
        """On a new stream: what was said on the old one may be lost."""
        return self._send(broker_id, now_s) if broker_id in self._waiting else []

    def tick(self, now_s: float) -> list[CoordinatorEffect]:
        if self.plan.state is not PlanState.EXECUTING:
            return []
        if self._may_fail:
            failure = self._failure(now_s)
            if failure:
                return self._roll_back(failure, now_s)
        if not self._acting:
            return []
        effects = self._go_on_if_done(now_s)
        if effects:
            return effects
        if now_s >= self._ends_s:
            return self._go_on(now_s)
        for broker_id, sent_s in list(self._waiting.items()):
            if now_s >= sent_s + self.settings.resend_s:
                effects += self._send(broker_id, now_s)
        return effects

    @property
    def may_cancel(self) -> bool:
        """Not once its commit has been tried."""
        return self.plan.state is PlanState.EXECUTING and (
            self._phase in (Phase.FREEZING, Phase.MOVING)
        )

    def cancel(self, actor: str, reason: str, now_s: float) -> list[CoordinatorEffect]:
        return self._roll_back(f"cancelled by {actor}" + (f": {reason}" if reason else ""), now_s)

    def serves(self, broker_id: str) -> bool:
        """Whether this broker's steps come from here (else from `catching_up`)."""
        return (
            self.plan.state is PlanState.EXECUTING
            and broker_id not in self.stragglers
            and self._present(broker_id) is not None
        )

    # ---- phases ----------------------------------------------------------------------------------

    @property
    def _execution(self) -> Execution:
        execution = self.plan.execution
        if execution is None:
            raise ValueError(f"plan {self.plan.id} is not being executed")
        return execution

    @property
    def _phase(self) -> Phase:
        phase = self.plan.phase
        if phase is None:
            raise ValueError(f"plan {self.plan.id} has no phase")
        return phase

    def _enter(self, phase: Phase, now_s: float) -> list[CoordinatorEffect]:
        before = self.plan.phase
        committing = phase is Phase.RESTORING and not (before and before.committed)
        if committing:
            self._before_commit = self.plan
        # Rolling back over a commit that may be there, too, is recorded before it is acted on.
        doubtful = phase is Phase.ROLLING_BACK and self._before_commit is not None
        self._update(messages=self.tally.messages())
        self.plan = self.plan.entered(phase, now_s, self.fence, self.manager)
        self._acting = self._recorded = False
        self._waiting = {}
        if phase in (Phase.FREEZING, Phase.RESTORING, Phase.ROLLING_BACK) and not committing:
            self._since_s = now_s
        placement = placement_of(self.plan, self.members, now_s) if committing else None
        write = Write(self.plan, self.former if doubtful else placement)
        if phase in (Phase.FREEZING, Phase.MOVING) or committing or doubtful:
            return [write]
        return [write, *self._act(now_s)]

    def _act(self, now_s: float) -> list[CoordinatorEffect]:
        """Tell all brokers that this phase is for."""
        phase = self._phase
        self._acting = True
        self._step = make_step(
            self.plan, STEP_OF[phase], self.fence, self._execution.epoch, self.settings.frozen_max_s
        )
        if phase in (Phase.FREEZING, Phase.RESTORING, Phase.ROLLING_BACK):
            self._since_s = now_s
        names = self._new_nodes if phase in OF_MOVERS else self._incarnations
        self._waiting = {
            participant.broker_id: now_s
            for participant in self._execution.participants
            if participant.broker_id in names and participant.broker_id not in self.stragglers
        }
        effects: list[CoordinatorEffect] = []
        for broker_id in list(self._waiting):
            effects += self._send(broker_id, now_s)
        return effects if self._waiting else [*effects, *self._go_on(now_s)]

    def _send(self, broker_id: str, now_s: float) -> list[CoordinatorEffect]:
        member = self._present(broker_id)
        if member is None or not member.attached:
            return []
        self._waiting[broker_id] = now_s
        self.tally.sent(self._step.kind)
        self.members.note_told(broker_id)
        return [SendStep(member.agent, self._step)]

    def _go_on_if_done(self, now_s: float) -> list[CoordinatorEffect]:
        if any(not self._gone(broker_id, now_s) for broker_id in self._waiting):
            return []
        return self._go_on(now_s)

    def _go_on(self, now_s: float) -> list[CoordinatorEffect]:
        """Without brokers that have not answered: they are gone, or their time is up."""
        self.stragglers.update(dict.fromkeys(self._waiting))
        following = NEXT.get(self._phase)
        return self._enter(following, now_s) if following else self._end(now_s)

    @property
    def _ends_s(self) -> float:
        """When brokers that are silent are not waited for any more."""
        phase = self._phase
        if phase is Phase.ROLLING_BACK:
            return self._since_s + self.settings.roll_back_timeout_s
        return self._since_s + self.settings.complete_timeout_s * _SHARE.get(phase, float("inf"))

    def _end(self, now_s: float) -> list[CoordinatorEffect]:
        rolled_back = self._phase is Phase.ROLLING_BACK
        state = PlanState.ROLLED_BACK if rolled_back else PlanState.COMMITTED
        stragglers = tuple(sorted(self.stragglers))
        self._update(
            stragglers=stragglers,
            ended_s=now_s,
            messages=self.tally.messages(),
            paused=self.tally.paused(),
        )
        moved = len(self._execution.moved)
        note = self._execution.failure if rolled_back else f"{moved} brokers moved"
        flags = self.plan.flags
        if stragglers:
            note += f"; not answered: {', '.join(stragglers[:_STRAGGLERS_SHOWN])}"
            flags = (*flags, "stragglers")
        self._acting = self._recorded = False
        self._waiting = {}
        self.plan = self.plan.became(state, now_s, note, flags=flags)
        return [Write(self.plan)]

    def _update(self, **changes: object) -> None:
        execution = self._execution.model_copy(update=changes)
        self.plan = self.plan.model_copy(update={"execution": execution})

    # ---- going wrong -----------------------------------------------------------------------------

    @property
    def _may_fail(self) -> bool:
        """Before the commit point, or while it is not known whether it was reached."""
        if self._phase is Phase.RESTORING:
            return not self._acting and not self._only_forward
        return self._phase in (Phase.FREEZING, Phase.MOVING)

    def _failure(self, now_s: float) -> str:
        """Why it cannot go on to its commit point; empty if it can."""
        for broker_id in self._incarnations:
            if self._gone(broker_id, now_s):
                return f"{broker_id} is gone"
        if now_s < self._since_s + self.settings.prepare_timeout_s:
            return ""
        if not self._acting:
            return f"the store did not take phase {self._phase} in time"
        silent = list(self._waiting)
        return f"out of time while {self._phase.lower()}: {len(silent)} not ready ({silent[0]} ...)"

    def _roll_back(self, why: str, now_s: float) -> list[CoordinatorEffect]:
        if self._before_commit is not None:
            # Over a commit that may be there: newer than it.
            update = {"version": self.plan.version}
            self.plan = self._before_commit.model_copy(update=update)
        self._update(failure=why)
        self.plan = self.plan.model_copy(update={"note": why})
        self.stragglers.clear()
        return self._enter(Phase.ROLLING_BACK, now_s)

    def _forward_after_all(self, now_s: float) -> list[CoordinatorEffect]:
        """The journal said too little: a broker uses the placement, so it was committed."""
        self._only_forward = True
        self._update(failure="")
        note = "a broker uses the placement: the journal had lost its commit"
        flags = (*self.plan.flags, "commit_recovered")
        self.plan = self.plan.model_copy(update={"note": note, "flags": flags})
        return self._enter(Phase.RESTORING, now_s)

    # ---- which brokers are there -----------------------------------------------------------------

    def _present(self, broker_id: str) -> Member | None:
        """The participant, in the process that it was when the plan began."""
        member = self.members.get(broker_id)
        if member is None or member.incarnation != self._incarnations.get(broker_id):
            return None
        return member

    def _gone(self, broker_id: str, now_s: float) -> bool:
        if self._present(broker_id) is not None:
            return False
        # Under a new leader they have yet to register; another process is another process.
        return (
            self.members.get(broker_id) is not None
            or now_s >= self.led_since_s + self.settings.attend_s
        )
