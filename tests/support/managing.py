"""A tiny world around managers: brokers that keep the protocol's promises, a store, and mishaps.

Brokers here have no ring and no trees; they do what `manager.proto` and the phase table say. What a
correct manager must not do to them raises at once (`FrozenHostThawedError` and the like).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    Registration,
    Step,
    StepProblem,
    StepReply,
)
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.identifiers import key_of, show_node
from reconfig_manager.manager import Manager
from reconfig_manager.plan import (
    CostFigures,
    ModelFacts,
    Move,
    Placement,
    Plan,
    PlanState,
    Prediction,
)
from reconfig_manager.policy import SolverOptions, VersionedPolicy
from reconfig_manager.ports import (
    AgentId,
    Constants,
    LeaderState,
    ManagerEffect,
    Outranked,
    Record,
    SendStep,
)
from reconfig_manager.settings import ExecutionSettings, ManagerSettings

START_S = 1_700_000_000.0
SETTINGS = ManagerSettings(
    execution=ExecutionSettings(
        resend_s=0.5,
        frozen_max_s=12.0,
        prepare_timeout_s=5.0,
        complete_timeout_s=20.0,
        roll_back_timeout_s=14.0,
        gone_s=2.0,
        attend_s=4.0,
    )
)


class BrokenProtocolError(Exception):
    """The manager did something that loses events."""


@dataclass
class FakeBroker:
    broker_id: str
    node_id: int
    incarnation: int = 1
    epoch: int = 0
    fence: int = 0
    frozen_by: str = ""
    frozen_at_s: float = 0.0
    frozen_max_s: float = 0.0
    repaired: bool = True
    alive: bool = True
    streams: int = 0
    # Steps as they came, by kind.
    seen: list[int] = field(default_factory=list)
    # What it answers instead to steps of a kind, without obeying.
    answers: dict[int, StepReply] = field(default_factory=dict)

    @property
    def agent(self) -> AgentId:
        return AgentId(self.broker_id, self.incarnation, self.streams)

    def registration(self) -> Registration:
        node = NodeRef(
            node_id=self.node_id,
            broker_id=self.broker_id,
            address=f"{self.broker_id}:1",
            epoch=self.epoch,
            incarnation=self.incarnation,
        )
        return Registration(node=node, epoch=self.epoch, fence=self.fence, frozen_by=self.frozen_by)

    def obey(self, step: Step, now_s: float) -> StepReply:
        self.seen.append(step.kind)
        if step.kind in self.answers:
            reply = StepReply(fence=step.fence, plan=step.plan, epoch=step.epoch, kind=step.kind)
            reply.MergeFrom(self.answers[step.kind])
            return reply
        problem = self._obey(step, now_s)
        return StepReply(
            fence=step.fence,
            plan=step.plan,
            epoch=step.epoch,
            kind=step.kind,
            problem=problem,
            messages=2 if step.kind in (RCFG_DHT_UPDATE, RCFG_TREE_REPAIR) else 0,
            frozen_s=0.2 if step.kind == RCFG_FINISH else 0.0,
        )

    def _obey(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.fence < self.fence:
            return STEP_PROBLEM_STALE
        self.fence = step.fence
        return {
            RCFG_INIT: self._init,
            RCFG_DHT_UPDATE: self._update,
            RCFG_TREE_RESTORE: self._restore,
            RCFG_TREE_REPAIR: self._repair,
            RCFG_FINISH: self._finish,
            RCFG_ROLL_BACK: self._roll_back,
        }[step.kind](step, now_s)

    def _init(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch <= self.epoch:
            return STEP_PROBLEM_STALE
        if self.frozen_by != step.plan:
            self.frozen_by, self.frozen_at_s = step.plan, now_s
            self.frozen_max_s = step.frozen_max_s
        return STEP_PROBLEM_UNSPECIFIED

    def _update(self, step: Step, now_s: float) -> StepProblem.ValueType:
        return STEP_PROBLEM_UNSPECIFIED if self._is_frozen_by(step) else STEP_PROBLEM_NOT_FROZEN

    def _restore(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch < self.epoch:
            return STEP_PROBLEM_STALE
        if step.epoch > self.epoch:
            self.epoch = step.epoch
            for ref in step.moved:
                if ref.broker_id == self.broker_id and ref.incarnation == self.incarnation:
                    # Thawed already, it mends its trees by itself.
                    self.node_id, self.repaired = ref.node_id, not self.frozen_by
        return STEP_PROBLEM_UNSPECIFIED

    def _repair(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch != self.epoch:
            raise BrokenProtocolError(f"{self.broker_id} is to repair what it has not restored")
        self.repaired = True
        return STEP_PROBLEM_UNSPECIFIED

    def _finish(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch != self.epoch:
            raise BrokenProtocolError(f"{self.broker_id} is to finish what it has not restored")
        if not self._is_frozen_by(step):
            return STEP_PROBLEM_NOT_FROZEN
        self.frozen_by = ""
        return STEP_PROBLEM_UNSPECIFIED

    def _roll_back(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch == self.epoch:
            return STEP_PROBLEM_IN_USE
        if self._is_frozen_by(step):
            self.frozen_by = ""
        return STEP_PROBLEM_UNSPECIFIED

    def _is_frozen_by(self, step: Step) -> bool:
        return self.frozen_by == step.plan

    def thaw_if_late(self, now_s: float) -> None:
        if self.frozen_by and now_s >= self.frozen_at_s + self.frozen_max_s:
            self.frozen_by, self.repaired = "", True


@dataclass
class FakeStore:
    """With the promises of `ports.Store`, at once or never."""

    plans: dict[str, Plan] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    policy: VersionedPolicy = field(default_factory=VersionedPolicy)
    constants: Constants = field(default_factory=Constants)
    fence: int = 0
    away: bool = False
    # Every version of every plan that was ever written.
    history: list[Plan] = field(default_factory=list)

    def acquire(self, fence_min: int = 0) -> int:
        self.fence = max(self.fence + 1, fence_min)
        return self.fence

    def read(self) -> LeaderState:
        return LeaderState(
            plans=tuple(Plan.model_validate_json(p.model_dump_json()) for p in self.plans.values()),
            placement=self.placement,
            policy=self.policy,
            constants=self.constants,
            epoch=max([p.epoch for p in self.history], default=0),
        )

    def write(self, fence: int, record: Record) -> bool:
        """False: deposed."""
        if fence != self.fence:
            return False
        plan = record.plan
        if plan is not None:
            known = self.plans.get(plan.id)
            if known is not None and known.version >= plan.version:
                return True
            self.plans[plan.id] = plan
            self.history.append(plan)
        if record.placement is not None:
            self.placement = record.placement
        if record.policy is not None:
            self.policy = record.policy
        if record.constants is not None:
            self.constants = record.constants
        return True


@dataclass
class Mishaps:
    """Chances, for each message or write."""

    lost: float = 0.0
    doubled: float = 0.0
    delay_max_s: float = 0.02
    # A write that fails, and is there all the same half of the time.
    unwritten: float = 0.0


class World:
    """One leader at a time, its brokers, and the time."""

    def __init__(self, brokers: int, seed: int = 0, mishaps: Mishaps | None = None) -> None:
        self.rng = Random(seed)
        self.mishaps = mishaps or Mishaps()
        self.now_s = START_S
        self.store = FakeStore()
        self.brokers = {f"b{i}": FakeBroker(f"b{i}", key_of(f"b{i}")) for i in range(brokers)}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._streams = 0
        self.manager = Manager(SETTINGS, "m1")
        self.reigns = 0
        self.cut_off: set[str] = set()
        self.effects: list[ManagerEffect] = []
        # Looks at each record before it goes to the store.
        self.before_record: Callable[[Record], None] = lambda record: None

    # ---- leadership ------------------------------------------------------------------------------

    def elect(self) -> None:
        self.reigns += 1
        self.manager = Manager(SETTINGS, f"m{self.reigns}")
        fence = self.store.acquire()
        self.do(self.manager.lead(fence, self.store.read(), self.now_s))
        for broker in self.brokers.values():
            self.attend(broker)

    def kill_leader(self) -> None:
        self.manager.depose(self.now_s)

    def attend(self, broker: FakeBroker) -> None:
        if broker.alive:
            self._streams += 1
            broker.streams = self._streams
            delay_s = self.rng.uniform(0.0, 0.5)
            self.later(delay_s, lambda: self.register(broker, broker.agent))

    def register(self, broker: FakeBroker, agent: AgentId) -> None:
        if broker.alive and broker.agent == agent:
            self.do(self.manager.register(agent, broker.registration(), self.now_s))

    # ---- brokers ---------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        broker = self.brokers[name]
        broker.alive = False
        agent = broker.agent
        self.later(0.1, lambda: self.do(self.manager.gone(agent, self.now_s)))

    def restart(self, name: str) -> None:
        """As a new process, on a node of its own: nobody kept the old one's state."""
        old = self.brokers[name]
        incarnation = old.incarnation + 1
        broker = FakeBroker(name, key_of(f"{name} {incarnation}"), incarnation)
        self.brokers[name] = broker
        self.attend(broker)

    # ---- messages --------------------------------------------------------------------------------

    def do(self, effects: list[ManagerEffect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, SendStep):
                self._carry(effect)
            elif isinstance(effect, Record):
                self._record(effect)
            elif isinstance(effect, Outranked):
                fence = effect.fence
                self.later(0.0, lambda fence=fence: self._lead_above(fence))  # type: ignore[misc]

    def _lead_above(self, fence: int) -> None:
        self.store.fence = max(self.store.fence, fence)
        self.elect()

    def _carry(self, effect: SendStep) -> None:
        copies = 2 if self.rng.random() < self.mishaps.doubled else 1
        for _ in range(copies):
            if self.rng.random() >= self.mishaps.lost:
                delay_s = self.rng.uniform(0.0, self.mishaps.delay_max_s)
                self.later(delay_s, lambda: self._arrive(effect.agent, effect.step))

    def _arrive(self, agent: AgentId, step: Step) -> None:
        broker = self.brokers[agent.broker_id]
        if not broker.alive or broker.agent != agent or agent.broker_id in self.cut_off:
            return
        before = (broker.epoch, broker.frozen_by, broker.node_id)
        reply = broker.obey(step, self.now_s)
        if self.rng.random() >= self.mishaps.lost:
            manager = self.manager
            delay_s = self.rng.uniform(0.0, self.mishaps.delay_max_s)
            self.later(delay_s, lambda: self._answer(manager, agent, reply))
        if before != (broker.epoch, broker.frozen_by, broker.node_id):
            self.later(0.0, lambda: self.register(broker, agent))

    def _answer(self, manager: Manager, agent: AgentId, reply: StepReply) -> None:
        if manager is self.manager and agent.broker_id not in self.cut_off:
            self.do(manager.reply(agent, reply, self.now_s))

    def _record(self, record: Record) -> None:
        manager, token = self.manager, record.token
        if not manager.leads:
            return
        self.before_record(record)
        fence = manager.office.fence
        fails = self.store.away or self.rng.random() < self.mishaps.unwritten
        arrives = not fails or (not self.store.away and self.rng.random() < 0.5)

        def write() -> None:
            if arrives and not self.store.write(fence, record):
                self.do(manager.depose(self.now_s))
                return
            answer = manager.not_recorded if fails else manager.recorded
            if manager is self.manager:
                self.later(0.01, lambda: self.do(answer(token, self.now_s)))

        self.later(0.005, write)

    # ---- time ------------------------------------------------------------------------------------

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._count, what))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Whether it came to that."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            next_tick_s = self.now_s + 0.1
            while self._queue and self._queue[0][0] <= next_tick_s:
                at_s, _, what = heapq.heappop(self._queue)
                self.now_s = max(self.now_s, at_s)
                what()
                if until():
                    return True
            self.now_s = next_tick_s
            for broker in self.brokers.values():
                if broker.alive:
                    frozen_by = broker.frozen_by
                    broker.thaw_if_late(self.now_s)
                    if frozen_by != broker.frozen_by:
                        self.register(broker, broker.agent)
            self.do(self.manager.tick(self.now_s))
            if until():
                return True
        return False

    # ---- plans -----------------------------------------------------------------------------------

    def rotation(self, movers: int) -> Plan:
        """A plan by which the first brokers take each other's places, ready to be approved."""
        office = self.manager.office
        names = sorted(self.brokers)[:movers]
        nodes = [show_node(self.brokers[name].node_id) for name in names]
        moves = tuple(
            Move(broker_id=name, from_node=nodes[i], to_node=nodes[(i + 1) % movers])
            for i, name in enumerate(names)
        )
        figures = CostFigures(overhead=1e6, delay=0.0, total=1e6)
        plan = Plan(
            id=office.new_plan_id(),
            created_s=self.now_s,
            changed_s=self.now_s,
            expires_s=self.now_s + 3600,
            options=SolverOptions(),
            base=office.base(),
            model=ModelFacts(
                completeness=1.0,
                brokers=len(self.brokers),
                topics=5,
                topics_published=5,
                subscriptions=5,
                events_per_s=1.0,
                periods=9,
            ),
            prediction=Prediction(
                algorithm="refine",
                cost_before=figures,
                cost_after=figures.model_copy(update={"total": 1.0}),
                benefit=1e6,
                moving_cost=1e3,
                threshold=0.0,
                t_free_s=3600.0,
                accept=True,
                reason="benefit_above_cost",
                explanation="accept",
            ),
            moves=moves,
        )
        self.do(office.write(plan))
        return plan

    def begin(self, movers: int = 3) -> Plan:
        """Elected, registered, a plan approved."""
        self.elect()
        self.run(1.0)
        plan = self.rotation(movers)
        self.do(self.manager.approve(plan.id, "alice", "better so", self.now_s))
        return plan

    def stored(self, plan: Plan) -> Plan:
        return self.store.plans[plan.id]

    def check(self) -> None:
        """After things have calmed down: one placement, nobody frozen, the plans' states true."""
        alive = [broker for broker in self.brokers.values() if broker.alive]
        nodes = sorted(broker.node_id for broker in alive)
        assert len(set(nodes)) == len(nodes), "a node has two hosts"
        assert all(not broker.frozen_by for broker in alive), "somebody is frozen"
        assert all(broker.repaired for broker in alive), "trees are not repaired"
        placement = self.store.placement
        for placed in placement.hosts:
            broker = self.brokers[placed.broker_id]
            if broker.alive and broker.incarnation == placed.incarnation:
                assert show_node(broker.node_id) == placed.node, "not where the placement has it"
        for plan in self.store.plans.values():
            assert plan.state is not PlanState.EXECUTING, f"{plan.id} never ended"
            in_use = any(broker.epoch == plan.epoch for broker in alive if plan.epoch)
            committed = plan.state is PlanState.COMMITTED
            assert committed or placement.plan_id != plan.id, "in use, and not committed"
            assert committed or not in_use, "rolled back, and in use"
            if committed and plan.epoch >= placement.epoch:
                assert placement.plan_id == plan.id, "committed, and not in use"
