"""A tiny world around managers: one leads at a time; messages, writes and brokers may be lost."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dynatops.v1.manager_pb2 import (
    Step,
    StepReply,
)
from overlay.base.identifiers import key_of, show_node
from reconfig_manager.manager import Manager
from reconfig_manager.model.core_settings import ExecutionSettings, ManagerSettings
from reconfig_manager.model.plan import (
    Phase,
    Plan,
    PlanState,
)
from reconfig_manager.model.refusals import Deposed
from reconfig_manager.ports import (
    AgentId,
    ManagerEffect,
    Outranked,
    Record,
    SendStep,
)
from reconfig_manager.store.memory import MemoryStore, at_once
from simulator.rotation import rotation
from tests.support.managed import FakeBroker
from tests.support.manager_store import lead_next

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
        self.store = MemoryStore(lambda: self.now_s)
        # Nobody hears from the store; what is being written then does not arrive.
        self.store_away = False
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
        self.do(lead_next(self.store, self.manager, self.now_s))
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
        self.store.kept.fence = max(self.store.kept.fence, fence)
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
        fence = manager.leader_state.fence
        fails = self.store_away or self.rng.random() < self.mishaps.unwritten
        arrives = not fails or (not self.store_away and self.rng.random() < 0.5)

        def write() -> None:
            try:
                if arrives:
                    at_once(self.store.write(fence, record))
            except Deposed:
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
        nodes = {name: self.brokers[name].node_id for name in sorted(self.brokers)[:movers]}
        plan = rotation(self.manager.leader_state, nodes, len(self.brokers), self.now_s)
        self.do(self.manager.leader_state.write(plan))
        return plan

    def begin(self, movers: int = 3) -> Plan:
        """Elected, registered, a plan approved."""
        self.elect()
        self.run(1.0)
        plan = self.rotation(movers)
        self.do(self.manager.approve(plan.id, "alice", "better so", self.now_s))
        return plan

    def stored(self, plan: Plan) -> Plan:
        return self.store.kept.plans[plan.id]

    def check(self) -> None:
        """After things have calmed down: one placement, nobody frozen, the plans' states true."""
        alive = [broker for broker in self.brokers.values() if broker.alive]
        nodes = sorted(broker.node_id for broker in alive)
        assert len(set(nodes)) == len(nodes), "a node has two hosts"
        assert all(not broker.frozen_by for broker in alive), "somebody is frozen"
        assert all(broker.repaired for broker in alive), "trees are not repaired"
        placement = self.store.kept.placement
        for placed in placement.hosts:
            broker = self.brokers[placed.broker_id]
            if broker.alive and broker.incarnation == placed.incarnation:
                assert show_node(broker.node_id) == placed.node, "not where the placement has it"
        for plan in self.store.kept.plans.values():
            assert plan.state is not PlanState.EXECUTING, f"{plan.id} never ended"
            in_use = any(broker.epoch == plan.epoch for broker in alive if plan.epoch)
            committed = plan.state is PlanState.COMMITTED
            assert committed or placement.plan_id != plan.id, "in use, and not committed"
            assert committed or not in_use, "rolled back, and in use"
            if committed and plan.epoch >= placement.epoch:
                assert placement.plan_id == plan.id, "committed, and not in use"


def over(world: World, plan: Plan) -> bool:
    return world.stored(plan).state.over if plan.id in world.store.kept.plans else False


def finish(world: World, plan: Plan, within_s: float = 60.0) -> Plan:
    assert world.run(within_s, lambda: over(world, plan))
    world.run(SETTINGS.execution.complete_timeout_s)
    world.check()
    return world.stored(plan)


def reached(world: World, plan: Plan, phase: Phase) -> bool:
    return plan.id in world.store.kept.plans and world.stored(plan).phase is phase
