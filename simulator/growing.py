"""What a quiet network takes as it grows: joining, rest, building trees, one reconfiguration.

Nothing breaks, nothing is lost, links keep their order; what there is to do is as much for each
broker, however many there are: fifty join a second, each has a client that subscribes to a few of
half as many topics, and as many brokers change places. So what a broker sends should grow like the
routes, with the logarithm of their number.
"""

from __future__ import annotations

import io
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from reconfig_manager.model.plan import Plan, PlanState
from simulator.managers import Managers
from simulator.network import Weather
from simulator.reconfiguring import SETTINGS
from simulator.ring.ring_checkers import check_rest
from simulator.rotation import rotation
from simulator.run import SimulatedRun
from simulator.scenario import Scenario

JOINS_PER_S = 50.0
SUBSCRIPTIONS_PER_S = 200.0
TOPICS_OF_CLIENT = 4
MOVERS = 8
REST_S = 10.0
# What takes longer is not going to happen.
PATIENCE_S = 60.0
_STEP_S = 0.25
_IN_ORDER = Weather(delay_min_s=0.005, delay_max_s=0.005)


class StuckError(Exception):
    """A phase did not end."""


class MessageKinds(io.StringIO):
    """A trace that is not kept, but counted: `b1->b2 120 ping pong`, or LOST or DEAD before it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def write(self, line: str) -> int:
        words = line.split()
        if len(words) > 3 and "->" in words[1]:
            self.counts.update(word for word in words[2:] if word.islower())
        return len(line)


@dataclass(frozen=True, slots=True)
class GrowthPhase:
    name: str
    # Of virtual time, and of the processor.
    seconds: float
    processor_s: float
    frames: int
    messages: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.messages.values())


@dataclass(frozen=True, slots=True)
class Growth:
    """One network, from the first broker to the end of its reconfiguration."""

    brokers: int
    seed: int
    phases: tuple[GrowthPhase, ...]
    # What the manager counted of its plan: steps, answers, states of nodes.
    plan_messages: int
    memory_mib: float
    trace: str

    def beside_rest(self, phase: GrowthPhase) -> float:
        """Messages of a phase without those that flow anyway."""
        rest = next(p for p in self.phases if p.name == "rest")
        return max(0.0, phase.total - rest.total * phase.seconds / rest.seconds)


class _GrowingRun:
    def __init__(self, brokers: int, seed: int) -> None:
        self._kinds = MessageKinds()
        scenario = Scenario(
            seed=seed,
            brokers=brokers,
            minutes=1.0,
            weather=_IN_ORDER,
            clients=brokers,
            topics=max(TOPICS_OF_CLIENT, brokers // 2),
            publications_per_s=0.0,
            faults=(),
        )
        self._scenario = scenario
        self._run = SimulatedRun(scenario, self._kinds)
        self._rng = Random(f"growing {seed}")
        self._phases: list[GrowthPhase] = []

    def play(self) -> Growth:
        names = [f"b{i}" for i in range(self._scenario.brokers)]
        self._phase("joining", lambda: self._join(names), self._is_at_rest)
        self._phase("rest", lambda: REST_S, lambda: True)
        self._phase("trees", self._subscribe, self._are_subscribed)
        managers = Managers(self._run.world, ("m0",), SETTINGS)
        # It comes to lead, and brokers find it.
        self._go_on(SETTINGS.monitor.report_period_s + 2.0)
        self._phase("plan", lambda: self._move(managers, names), lambda: _is_over(managers))
        (plan,) = managers.store.kept.plans.values()
        if plan.state is not PlanState.COMMITTED or plan.execution is None:
            raise StuckError(f"the plan is {plan.state}")
        if found := check_rest(list(self._run.world.brokers.values())):
            raise StuckError(found[0])
        return Growth(
            brokers=self._scenario.brokers,
            seed=self._scenario.seed,
            phases=tuple(self._phases),
            plan_messages=plan.execution.messages_total,
            memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            trace=self._run.trace.digest,
        )

    # ---- phases ---------------------------------------------------------------------------------

    def _phase(self, name: str, begin: Callable[[], float], is_done: Callable[[], bool]) -> None:
        """Begin something, let so much time pass as that asks for, and more until it is done."""
        network, scheduler = self._run.network, self._run.scheduler
        before, frames, began_s = self._kinds.counts.copy(), network.frames, scheduler.now_s
        processor_s = self._go_on(begin())
        while not is_done():
            if scheduler.now_s > began_s + PATIENCE_S + self._scenario.brokers / JOINS_PER_S:
                raise StuckError(f"{name}: not done after {scheduler.now_s - began_s:.0f} s")
            processor_s += self._go_on(_STEP_S)
        messages = dict(self._kinds.counts - before)
        seconds, sent = scheduler.now_s - began_s, network.frames - frames
        self._phases.append(GrowthPhase(name, seconds, processor_s, sent, messages))

    def _go_on(self, seconds: float) -> float:
        began_s = time.process_time()
        self._run.scheduler.run_until(self._run.scheduler.now_s + seconds)
        return time.process_time() - began_s

    def _join(self, names: list[str]) -> float:
        self._run.world.start_broker(names[0], [])
        for i, name in enumerate(names[1:], 1):
            self._run.later(i / JOINS_PER_S, self._run.start_broker, name)
        return len(names) / JOINS_PER_S

    def _is_at_rest(self) -> bool:
        return not check_rest(list(self._run.world.brokers.values()))

    def _subscribe(self) -> float:
        topics = [f"topic/{i}" for i in range(self._scenario.topics)]
        for i in range(self._scenario.clients):
            chosen = self._rng.sample(topics, TOPICS_OF_CLIENT)
            self._run.later(i / SUBSCRIPTIONS_PER_S, self._add_client, f"c{i}", chosen)
        return self._scenario.clients / SUBSCRIPTIONS_PER_S

    def _add_client(self, name: str, topics: list[str]) -> None:
        self._run.world.add_client(name).subscribe([(topic, "") for topic in topics])

    def _are_subscribed(self) -> bool:
        clients = self._run.world.clients
        return all(client.core.is_settled for client in clients) and self._is_at_rest()

    def _move(self, managers: Managers, names: list[str]) -> float:
        leader, brokers = managers.leader, self._run.world.brokers
        if leader is None:
            raise StuckError("no manager leads")
        movers = self._rng.sample(names, min(MOVERS, len(names)))
        nodes = {name: int(ring_of(brokers[name].core).node.me.node_id) for name in movers}
        state, now_s = leader.core.leader_state, self._run.scheduler.now_s
        leader.carry_out(rotation(state, nodes, len(names), now_s, topics=self._scenario.topics))
        return _STEP_S


def _is_over(managers: Managers) -> bool:
    plans: list[Plan] = list(managers.store.kept.plans.values())
    return bool(plans) and all(plan.state.over for plan in plans)


def grow(brokers: int, seed: int = 0) -> Growth:
    """Play a quiet network of so many brokers."""
    return _GrowingRun(brokers, seed).play()
