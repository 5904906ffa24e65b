"""Runs in which brokers are moved again and again, and something breaks at a random point of it.

Each plan may meet one mishap: at some step or write of its execution the leading manager crashes,
or a broker does (one that moves, or not; for good, or to come back), a link or the network breaks,
or the store is away. Afterwards there is one placement, each node has one host, nobody is frozen,
nothing that was acknowledged is lost, and what is written about each plan is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from random import Random
from typing import TextIO

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from overlay.base.identifiers import show_node
from reconfig_manager.model.core_settings import ExecutionSettings, ManagerSettings, MonitorSettings
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import SolverOptions
from reconfig_manager.ports import ProposalRequest
from simulator.managers import Managers, SimulatedManager
from simulator.network import Weather
from simulator.run import SimulatedRun, Verdict
from simulator.scenario import START_S, Scenario

MANAGERS = ("m0", "m1")
FIRST_PLAN_S = START_S + 6.0
PLAN_PERIOD_S = 24.0
# After this many steps and writes a plan is over, nearly always.
POINTS = 60

SETTINGS = ManagerSettings(
    monitor=MonitorSettings(report_period_s=2.0, period_s=4.0, periods_min=0, window_s=7.0),
    execution=ExecutionSettings(
        frozen_max_s=12.0,
        prepare_timeout_s=5.0,
        complete_timeout_s=8.0,
        roll_back_timeout_s=14.0,
        gone_s=2.0,
        attend_s=3.0,
    ),
)


class Mishap(Enum):
    NONE = "nothing"
    LEADER = "the leader crashes"
    LEADER_BACK = "the leader crashes and comes back"
    MOVER = "a moving broker crashes"
    MOVER_BACK = "a moving broker crashes and comes back"
    OTHER = "a broker crashes"
    LINK = "a link breaks"
    LEADER_CUT = "the leader is cut off"
    SPLIT = "the network splits"
    STORE = "the store is away"


def scenario_of_reconfiguration(seed: int, brokers: int, minutes: float) -> Scenario:
    rng = Random(f"reconfiguration {seed} {brokers} {minutes}")
    weather = Weather(
        delay_max_s=rng.choice((0.005, 0.02, 0.05)),
        loss=rng.choice((0.0, 0.01, 0.05)),
        duplication=rng.choice((0.0, 0.02, 0.1)),
        reordering=rng.choice((0.0, 0.05)),
    )
    return Scenario(
        seed=seed,
        brokers=brokers,
        minutes=minutes,
        weather=weather,
        clients=brokers,
        topics=rng.randint(4, 10),
        publications_per_s=rng.uniform(4.0, 10.0),
        faults=(),
    )


def mishaps_of(seed: int) -> Iterator[tuple[Mishap, int]]:
    """What each plan of this seed meets, and after how many steps and writes of it."""
    rng = Random(f"mishaps {seed}")
    while True:
        yield rng.choice(tuple(Mishap)), rng.randint(0, POINTS)


class Meddler:
    """Managers, plans and mishaps for a run."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._rng = Random(f"meddler {run.scenario.seed}")
        self._mishaps = mishaps_of(run.scenario.seed)
        self.managers = Managers(run.world, MANAGERS, SETTINGS)
        self.managers.answers_lost = self._rng.choice((0.0, 0.0, 0.05))
        self.managers.on_step = lambda manager, step: self._point(manager)
        self.managers.on_written = lambda manager, record: self._point(manager)
        # How many points of the present plan are to pass before something breaks.
        self._left = -1
        self._mishap = Mishap.NONE
        # Epochs that some broker has used.
        self.used: dict[int, None] = {}
        at_s = FIRST_PLAN_S
        while at_s < run.scenario.quiet_from_s - 10.0:
            run.scheduler.after(at_s, self._propose)
            at_s += PLAN_PERIOD_S * self._rng.uniform(0.9, 1.1)
        run.scheduler.after(run.scenario.quiet_from_s, self._calm_down)
        run.scheduler.after(START_S, self._note_epochs)

    def _note_epochs(self) -> None:
        for broker in self._run.world.living():
            self.used[ring_of(broker.core).plans.epoch] = None
        self._run.scheduler.after(0.05, self._note_epochs)

    def _propose(self) -> None:
        leader = self.managers.leader
        self._mishap, self._left = next(self._mishaps)
        if leader is not None:
            options = SolverOptions(algorithm="dynatops-greedy")
            leader.propose(
                ProposalRequest(actor="simulator", reason="a run", execute=True, options=options)
            )

    def _point(self, manager: SimulatedManager) -> None:
        self._left -= 1
        if self._left == -1 and self._mishap is not Mishap.NONE:
            self._run.note_fault(self._mishap.value)
            # What is being done at this moment is done first.
            self._run.scheduler.after(0.0, lambda: self._strike(manager))

    def _strike(self, leader: SimulatedManager) -> None:
        run, rng, mishap = self._run, self._rng, self._mishap
        lasts_s = rng.choice((0.5, 3.0, 9.0)) * rng.uniform(0.5, 1.5)
        if mishap in (Mishap.LEADER, Mishap.LEADER_BACK):
            leader.crash()
            back_s = lasts_s if mishap is Mishap.LEADER_BACK else 30.0
            run.scheduler.after(back_s, lambda: self.start_manager(leader.name))
        elif mishap in (Mishap.MOVER, Mishap.MOVER_BACK, Mishap.OTHER):
            self._crash_broker(mishap, lasts_s)
        elif mishap is Mishap.STORE:
            self.managers.store.away = True
            run.scheduler.after(lasts_s, self._store_back)
        else:
            self._break_network(mishap, leader.name)
            run.scheduler.after(lasts_s, run.heal)

    def start_manager(self, name: str) -> None:
        if not self.managers.managers[name].alive:
            self.managers.start(name)

    def _store_back(self) -> None:
        self.managers.store.away = False

    def _crash_broker(self, mishap: Mishap, lasts_s: float) -> None:
        run = self._run
        living = [broker.broker_id for broker in run.world.living()]
        moving = _movers(self._open_plan())
        wanted = [b for b in living if (b in moving) == (mishap is not Mishap.OTHER)] or living
        if len(living) <= 3:
            return
        victim = self._rng.choice(wanted)
        if mishap is Mishap.MOVER_BACK:
            run.world.returning.add(victim)
            run.scheduler.after(lasts_s, lambda: run.start_broker(victim))
        run.world.crash_broker(victim, noticed=self._rng.random() < 0.5)

    def _open_plan(self) -> Plan | None:
        plans = self.managers.store.kept.plans.values()
        return next((plan for plan in plans if plan.state is PlanState.EXECUTING), None)

    def _break_network(self, mishap: Mishap, leader: str) -> None:
        run, rng = self._run, self._rng
        brokers = [broker.address for broker in run.world.living()]
        others = [name for name in MANAGERS if name != leader]
        if mishap is Mishap.LINK:
            run.network.cut(rng.choice(brokers), rng.choice([leader, *brokers]))
        elif mishap is Mishap.LEADER_CUT:
            run.network.split([[leader], [*others, *brokers]])
        else:
            rng.shuffle(brokers)
            at = rng.randint(1, len(brokers) // 2)
            sides = [[leader, *brokers[:at]], [*others, *brokers[at:]]]
            if rng.random() < 0.5:
                sides = [[leader, *brokers[at:]], [*others, *brokers[:at]]]
            run.network.split(sides)

    def _calm_down(self) -> None:
        self._left = -1
        self._mishap = Mishap.NONE
        self._store_back()
        for name in MANAGERS:
            self.start_manager(name)


def _movers(plan: Plan | None) -> set[str]:
    if plan is None or plan.execution is None:
        return set()
    return {placed.broker_id for placed in plan.execution.moved}


def check_reconfigurations(meddler: Meddler, run: SimulatedRun) -> list[str]:
    """At the end, after a long quiet time."""
    found: list[str] = []
    living = run.world.living()
    for broker in living:
        if ring_of(broker.core).plans.is_frozen:
            found.append(f"{broker.broker_id} is frozen")
        if ring_of(broker.core).node.sealed:
            found.append(f"{broker.broker_id}'s node is sealed")
    hosts: dict[int, str] = {}
    for broker in living:
        node_id = ring_of(broker.core).node.me.node_id
        if node_id in hosts:
            node = show_node(node_id)
            found.append(f"{node} is hosted by {hosts[node_id]} and {broker.broker_id}")
        hosts[node_id] = broker.broker_id
    for plan in meddler.managers.store.kept.plans.values():
        found += _check_plan(plan, meddler, run)
    return found


def _check_plan(plan: Plan, meddler: Meddler, run: SimulatedRun) -> list[str]:
    """What is written about the plan, against what brokers did."""
    # One that could not begin just then waits for somebody to approve it.
    waits = plan.state is PlanState.PROPOSED and plan.prediction is not None
    if not plan.state.over and not waits:
        return [f"plan {plan.id} is still {plan.state}"]
    used = plan.epoch in meddler.used and plan.epoch > 0
    if plan.state is not PlanState.COMMITTED:
        return [f"plan {plan.id} is {plan.state}, but its placement was used"] if used else []
    found: list[str] = []
    if plan.epoch == meddler.managers.store.kept.placement.epoch:
        assert plan.execution is not None
        for placed in plan.execution.moved:
            broker = run.world.brokers.get(placed.broker_id)
            if broker is None or not broker.alive:
                continue
            core = broker.core
            here = show_node(ring_of(core).node.me.node_id)
            same_life = core.identity.incarnation == placed.incarnation
            if same_life and here != placed.node and not core.counters.moves_missed:
                found.append(f"plan {plan.id}: {placed.broker_id} is at {here}, not {placed.node}")
    return found


def simulate_reconfiguration(
    seed: int,
    brokers: int,
    minutes: float,
    out: TextIO | None = None,
    also: Callable[[SimulatedRun, Meddler], None] | None = None,
) -> Verdict:
    """Play the scenario of this seed. `also` lets a test plan mischief of its own."""
    run = SimulatedRun(scenario_of_reconfiguration(seed, brokers, minutes), out)

    def meddle(run: SimulatedRun) -> None:
        meddler = Meddler(run)
        run.checks.append(lambda: check_reconfigurations(meddler, run))
        if also is not None:
            also(run, meddler)

    return replace(run.play(meddle), option=" --reconfigure")
