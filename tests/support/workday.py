"""Days in the life of a manager: brokers that report noisy counts of a steady workload.

Whatever the manager asks for is done at once; time goes on in steps of a report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from dynatops.v1.manager_pb2 import LoadReport, TopicCount
from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from overlay.base.identifiers import key_of
from overlay.placement.cost import Cost, CostModel, Demand, Prices
from overlay.placement.geometry import RingGeometry
from reconfig_manager.manager import Manager
from reconfig_manager.model.core_settings import ManagerSettings, MeasuringSettings, MonitorSettings
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.ports import (
    Audit,
    KeepRates,
    ManagerEffect,
    Notify,
    Record,
    SendStep,
    Solve,
)
from reconfig_manager.solvers import SOLVERS
from reconfig_manager.status import LeaderStatus
from reconfig_manager.store.memory import MemoryStore, at_once
from tests.support.managed import FakeBroker
from tests.support.manager_store import lead_next

REPORT_S = 60.0
SETTINGS = ManagerSettings(
    monitor=MonitorSettings(report_period_s=REPORT_S, period_s=180.0, window_s=150.0),
    measuring=MeasuringSettings(settle_s=60.0, measure_s=1800.0),
)
# A Monday, midnight.
START_S = 1_699_833_600.0


class Workday:
    def __init__(
        self,
        policy: Policy,
        *,
        brokers: int = 12,
        topics: int = 24,
        events_per_s: float = 0.05,
        seed: int = 1,
        settings: ManagerSettings = SETTINGS,
    ) -> None:
        instance = make_instance(brokers, topics, Pattern.MULTIMODAL, seed, topics_per_broker=10)
        self.rng = np.random.default_rng(seed)
        self.topics = list(instance.publications)
        # events/s of each topic; what make_instance drew, times this.
        self.rates = np.array(list(instance.publications.values())) * events_per_s
        self.brokers = {
            name: FakeBroker(name, int(instance.placement[name], 16), streams=1)
            for name in instance.brokers
        }
        self.subscriptions = instance.brokers
        self.counters = {name: [0.0] * 4 for name in self.brokers}
        self.now_s = START_S
        self.store = MemoryStore(lambda: self.now_s)
        self.store.kept.policy = VersionedPolicy(policy=policy)
        self.manager = Manager(settings, "m1")
        self.effects: list[ManagerEffect] = []
        self.first_report = True
        # Solves that are answered with this instead.
        self.solver_fails = ""

    def begin(self) -> None:
        self.do(lead_next(self.store, self.manager, self.now_s))
        self.first_report = True
        for broker in self.brokers.values():
            self.do(self.manager.register(broker.agent, broker.registration(), self.now_s))

    def do(self, effects: Sequence[ManagerEffect]) -> None:
        waiting = deque(effects)
        manager = self.manager
        while waiting:
            effect = waiting.popleft()
            self.effects.append(effect)
            match effect:
                case SendStep(agent, step):
                    reply = self.brokers[agent.broker_id].obey(step, self.now_s)
                    waiting.extend(manager.reply(agent, reply, self.now_s))
                case Record(token):
                    try:
                        at_once(self.store.write(manager.leader_state.fence, effect))
                    except StoreAway:
                        waiting.extend(manager.not_recorded(token, self.now_s))
                    else:
                        waiting.extend(manager.recorded(token, self.now_s))
                case Solve(plan_id, problem, task, algorithm):
                    answer = self.solver_fails or SOLVERS[algorithm](problem, task)
                    waiting.extend(manager.solved(plan_id, answer, self.now_s))
                case Audit() | Notify() | KeepRates():
                    pass
                case _:
                    raise AssertionError(effect)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += REPORT_S
            self.report()
            self.do(self.manager.tick(self.now_s))

    # ---- what brokers count ----------------------------------------------------------------------

    def report(self) -> None:
        counts = self.rng.poisson(self.rates * REPORT_S)
        names = list(self.brokers)
        geometry = RingGeometry(broker.node_id for broker in self.brokers.values())
        host = {geometry.index_of(self.brokers[name].node_id): name for name in names}
        published: dict[str, list[TopicCount]] = {name: [] for name in names}
        for topic, count in zip(self.topics, counts.tolist(), strict=True):
            node = geometry.successor_of(key_of(topic))
            published[host[node]].append(TopicCount(topic=topic, events=count))
        cost = self.cost(counts.astype(float))
        # Who relays does not matter here: the manager adds up.
        shares = [float(counts.sum()), cost.overhead, float(counts.sum()), cost.delay]
        for name in names:
            totals = self.counters[name]
            for i, share in enumerate(shares):
                totals[i] += share / len(names)
            report = LoadReport(
                window_s=REPORT_S,
                publications=published[name],
                subscribed=self.subscriptions[name] if self.first_report else [],
                counters={
                    "stamped_events": int(totals[0]),
                    "relayed_events": int(totals[1]),
                    "tree_delivered_events": int(totals[2]),
                    "tree_delivered_hops": int(totals[3]),
                },
            )
            self.do(self.manager.report(self.brokers[name].agent, report, self.now_s))
        self.first_report = False

    def cost(self, publications: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Cost:
        """Of these publications, with brokers where they are."""
        geometry = RingGeometry(broker.node_id for broker in self.brokers.values())
        number = {topic: i for i, topic in enumerate(self.topics)}
        demand = Demand(
            [sorted(number[t] for t in self.subscriptions[name]) for name in self.brokers],
            publications.tolist(),
            [key_of(topic) for topic in self.topics],
        )
        place = [geometry.index_of(broker.node_id) for broker in self.brokers.values()]
        return CostModel(geometry, demand, Prices()).evaluate(np.array(place, dtype=np.int32))

    @property
    def status(self) -> LeaderStatus:
        status = self.manager.status(self.now_s).leader
        assert status is not None
        return status

    # ---- plans -----------------------------------------------------------------------------------

    @property
    def plans(self) -> list[Plan]:
        return list(self.store.kept.plans.values())

    def of(self, state: PlanState) -> list[Plan]:
        return [plan for plan in self.plans if plan.state is state]
