"""Reconfiguration managers in virtual time, and the streams that brokers keep to their leader.

The cores are the ones that ship. What the service does around them is done here with a lease in a
simulated store, streams that break when the network does, and a solver that shuffles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from dynatops.v1.manager_pb2 import AgentFrame, Step, StepReply
from reconfig_manager.manager import Manager
from reconfig_manager.model.core_settings import ManagerSettings
from reconfig_manager.model.plan import Plan
from reconfig_manager.model.refusals import Deposed, RefusalError, StoreAway
from reconfig_manager.placement.problem import PlacementProblem, Solution, SolverRun, Task
from reconfig_manager.ports import (
    AgentId,
    Audit,
    Drop,
    KeepRates,
    ManagerEffect,
    Notify,
    Outranked,
    ProposalRequest,
    Record,
    SendStep,
    Solve,
)
from reconfig_manager.store.memory import MemoryStore, at_once
from simulator.uplinks import KEEPALIVE_S, RECONNECT_S, SimulatedStream, SimulatedUplink

if TYPE_CHECKING:
    from simulator.world import SimulatedBroker, World

TICK_S = 0.2
LEASE_TTL_S = 3.0
LEASE_PERIOD_S = 1.0
STORE_MAX_S = 0.02
SOLVE_MAX_S = 0.3
SHUFFLES = 60


class SimulatedManager:
    """One life of a manager."""

    def __init__(self, group: Managers, name: str) -> None:
        self.name = name
        self.group = group
        self.world = group.world
        self.alive = True
        self.fence: int | None = None
        self.core = Manager(group.settings, name)
        # While it leads: until when it may, by what it knows.
        self._lease_until_s = 0.0
        self._fence_min = 0
        self._streams: dict[int, SimulatedStream] = {}
        rng = group.world.rng
        self.world.scheduler.after(rng.uniform(0, TICK_S), self._tick)
        self.world.scheduler.after(rng.uniform(0, LEASE_PERIOD_S), self._look_after_lease)

    @property
    def leads(self) -> bool:
        return self.alive and self.fence is not None

    @property
    def _now_s(self) -> float:
        return self.world.scheduler.now_s

    def crash(self) -> None:
        self.world.trace.note(f"{self.name} crashes")
        self.alive = False
        for stream in list(self._streams.values()):
            self.world.scheduler.after(self.world.rng.uniform(0.0, 0.3), stream.close)

    # ---- the lease ------------------------------------------------------------------------------

    def _look_after_lease(self) -> None:
        if not self.alive:
            return
        try:
            self._hold_lease()
        except Deposed:
            self._depose()
        except StoreAway:
            if self.leads and self._now_s >= self._lease_until_s:
                self._depose()
        self.world.scheduler.after(LEASE_PERIOD_S, self._look_after_lease)

    def _hold_lease(self) -> None:
        store, now_s = self.group.store, self._now_s
        if self.fence is not None:
            at_once(store.renew(self.name, self.fence, LEASE_TTL_S))
            self._lease_until_s = now_s + LEASE_TTL_S
            return
        fence = at_once(store.acquire(self.name, LEASE_TTL_S, self._fence_min))
        if fence is not None:
            self.fence, self._lease_until_s = fence, now_s + LEASE_TTL_S
            self.world.trace.note(f"{self.name} leads with fence {fence}")
            self._perform(self.core.lead(fence, at_once(store.read_state()), now_s))

    def _depose(self) -> None:
        if self.fence is None:
            return
        self.world.trace.note(f"{self.name} leads no more")
        self.fence = None
        for stream in list(self._streams.values()):
            stream.close()
        self._perform(self.core.depose(self._now_s))

    # ---- inputs ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.alive:
            if self.leads:
                self._perform(self.core.tick(self._now_s))
            self.world.scheduler.after(TICK_S, self._tick)

    def accept(self, broker: SimulatedBroker) -> SimulatedStream:
        number = self.group.next_stream()
        stream = self._streams[number] = SimulatedStream(broker, self, number)
        return stream

    def stream_ended(self, stream: SimulatedStream) -> None:
        self._streams.pop(stream.agent.stream, None)
        if self.leads:
            self._perform(self.core.gone(stream.agent, self._now_s))

    def on_frame(self, stream: SimulatedStream, frame: AgentFrame) -> None:
        if not self.leads:
            return
        now_s, agent = self._now_s, stream.agent
        kind = frame.WhichOneof("body")
        if kind == "registration":
            self._perform(self.core.register(agent, frame.registration, now_s))
        elif kind == "report":
            self._perform(self.core.report(agent, frame.report, now_s))
        elif kind == "reply":
            self._perform(self.core.reply(agent, frame.reply, now_s))

    def propose(self, request: ProposalRequest) -> None:
        try:
            effects = self.core.propose(request, self._now_s)
        except RefusalError as error:
            self.world.trace.note(f"{self.name} refuses: {error}")
            return
        self._perform(effects)

    def carry_out(self, plan: Plan) -> None:
        """One that was made by hand."""
        self._perform(self.core.leader_state.write(plan))
        self._perform(self.core.approve(plan.id, "simulator", "a run", self._now_s))

    def cancel(self, plan_id: str) -> None:
        self._perform(self.core.cancel(plan_id, "simulator", "a run", self._now_s))

    # ---- effects --------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[ManagerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendStep(agent=agent, step=step):
                    self._send(agent, step)
                case Record():
                    self._record(effect)
                case Solve():
                    takes_s = self.world.rng.uniform(0.0, SOLVE_MAX_S)
                    self.world.scheduler.after(takes_s, lambda e=effect: self._solved(e))  # type: ignore[misc]
                case Drop(agent=agent):
                    stream = self._streams.get(agent.stream)
                    if stream is not None:
                        stream.close()
                case Outranked(fence=fence):
                    self._step_back(fence)
                case KeepRates() | Notify() | Audit():
                    pass

    def _send(self, agent: AgentId, step: Step) -> None:
        stream = self._streams.get(agent.stream)
        self.group.on_step(self, step)
        if stream is None or not self.alive:
            return
        raw = step.SerializeToString(deterministic=True)
        self.world.trace.note(f"{self.name}=>{agent.broker_id} step {step.kind} of {step.plan}")
        stream.to_broker(lambda: stream.broker.on_step(Step.FromString(raw)))

    def _record(self, record: Record) -> None:
        fence = self.fence
        if fence is None:
            return
        rng = self.world.rng
        takes_s = rng.uniform(0.0, STORE_MAX_S)
        self.world.scheduler.after(takes_s, lambda: self._written(record, fence))

    def _written(self, record: Record, fence: int) -> None:
        """The write reaches the store, whoever has died meanwhile."""
        problem: Exception | None = None
        try:
            at_once(self.group.store.write(fence, record))
        except (Deposed, StoreAway) as error:
            problem = error
        if self.alive and self.fence == fence:
            self.group.on_written(self, record)
        if not self.alive or self.fence != fence:
            return
        if isinstance(problem, Deposed):
            self._depose()
        elif problem is not None or self.group.loses_answer():
            self._perform(self.core.not_recorded(record.token, self._now_s))
        else:
            self._perform(self.core.recorded(record.token, self._now_s))

    def _solved(self, effect: Solve) -> None:
        if self.leads:
            solution = shuffled(effect.problem, effect.task, self.world.rng.getrandbits(32))
            self._perform(self.core.solved(effect.plan_id, solution, self._now_s))

    def _step_back(self, fence: int) -> None:
        """Lead again, above whoever a broker has obeyed."""
        self._fence_min = fence + 1
        if self.fence is not None:
            with contextlib.suppress(StoreAway):
                at_once(self.group.store.release(self.name, self.fence))
            self._depose()


def shuffled(problem: PlacementProblem, task: Task, seed: int) -> Solution:
    """Some brokers change places: the best of some such changes."""
    run = SolverRun(problem, task)
    rng = np.random.default_rng(seed)
    for _ in range(SHUFFLES):
        place = problem.place.copy()
        size = min(len(place), 2 + int(rng.integers(0, 4)))
        chosen = rng.choice(len(place), size=size, replace=False)
        place[chosen] = place[np.roll(chosen, 1)]
        run.offer(place, problem.model.evaluate(place).total)
    return run.solution("shuffle", finished=True)


class Managers:
    """All managers of a network, their store, and the brokers' streams to them."""

    def __init__(self, world: World, names: Iterable[str], settings: ManagerSettings) -> None:
        self.world = world
        self.settings = settings
        self.store = self._new_store()
        self.uplinks: dict[str, SimulatedUplink] = {}
        self.managers: dict[str, SimulatedManager] = {}
        # Called before each step is sent, and after each write: where tests strike.
        self.on_step: Callable[[SimulatedManager, Step], None] = lambda manager, step: None
        self.on_written: Callable[[SimulatedManager, Record], None] = lambda manager, record: None
        # Of this share of writes nobody learns that they were done.
        self.answers_lost = 0.0
        self._streams = 0
        for name in names:
            self.start(name)
        world.on_started = self.attach
        world.on_reply = self._reply
        world.on_died = self.broker_died
        for broker in world.living():
            self.attach(broker)

    def _new_store(self) -> MemoryStore:
        return MemoryStore(lambda: self.world.scheduler.now_s)

    def start(self, name: str) -> SimulatedManager:
        self.world.trace.note(f"{name} starts")
        manager = self.managers[name] = SimulatedManager(self, name)
        return manager

    def lose_store(self) -> None:
        """All that managers knew is gone: each starts again, beside an empty store."""
        self.world.trace.note("the store is lost")
        self.store = self._new_store()
        for name, manager in list(self.managers.items()):
            if manager.alive:
                manager.crash()
                self.start(name)

    def attach(self, broker: SimulatedBroker) -> None:
        """A broker has started: it looks for the leader from now on."""
        former = self.uplinks.get(broker.broker_id)
        if former is not None and former.stream is not None:
            former.stream.close()
        uplink = self.uplinks[broker.broker_id] = SimulatedUplink(self, broker)
        self.world.scheduler.after(self.world.rng.uniform(0.0, RECONNECT_S), uplink.tick)

    def _reply(self, broker: SimulatedBroker, reply: StepReply) -> None:
        uplink = self.uplinks.get(broker.broker_id)
        if uplink is not None and uplink.broker is broker:
            uplink.reply(reply)

    @property
    def leader(self) -> SimulatedManager | None:
        return next((manager for manager in self.managers.values() if manager.leads), None)

    def reachable_leader(self, broker: SimulatedBroker) -> SimulatedManager | None:
        blocked = self.world.network.is_blocked
        return next(
            (m for m in self.managers.values() if m.leads and not blocked(broker.address, m.name)),
            None,
        )

    def broker_died(self, broker_id: str) -> None:
        uplink = self.uplinks.get(broker_id)
        if uplink is not None and uplink.stream is not None:
            self.world.scheduler.after(
                self.world.rng.uniform(0.0, KEEPALIVE_S), uplink.stream.close
            )

    def next_stream(self) -> int:
        self._streams += 1
        return self._streams

    def loses_answer(self) -> bool:
        return self.answers_lost > 0 and self.world.rng.random() < self.answers_lost
