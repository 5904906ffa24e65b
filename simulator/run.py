"""One simulated run: a scenario played, watched by the checkers, and judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import TextIO

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.client.core.reading import FilterKey
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from simulator.actors import plan_actors
from simulator.checkers import check_brokers, check_deliveries
from simulator.clients import OUTSIDE, PublishedEvent, SimulatedClient
from simulator.faults import strike
from simulator.network import Network, Weather
from simulator.ring.simulated_ring import SimulatedRing
from simulator.routing import SimulatedRouting
from simulator.scenario import START_S, Scenario, scenario_of
from simulator.scheduler import Scheduler, Trace
from simulator.stores.store_actor import STORED_WITHIN_S, SimulatedStores, with_stores
from simulator.tree.simulated_tree import SimulatedTree
from simulator.tree.tree_scenario import tree_scenario_of
from simulator.world import World

CHECK_PERIOD_S = 1.0
FAREWELL_S = 20.0
# More brokers are told to be several clusters, as operators are: summaries go from each broker of a
# cluster to all others (docs/selection.md).
CLUSTER_BROKERS = 32
# Of this share of publications each is the first of a topic of its own.
NEW_TOPICS = 0.03
# This share of publications has the company of so many plain ones, on any topics.
TOGETHER = 0.15
COMPANY = 6
# Of this share of filters each has a wildcard; of this share, a condition.
WILDCARDS = 0.2
CONDITIONS = 0.25
# What a client that does not stay put does; the rest are new processes.
DROPS = 0.4
REDIRECTIONS = 0.4


@dataclass(frozen=True, slots=True)
class Verdict:
    seed: int
    brokers: int
    minutes: float
    violations: tuple[str, ...]
    faults: tuple[str, ...]
    frames: int
    frames_lost: int
    published: int
    delivered: int
    # What its routing did.
    counted: dict[str, int]
    # Digest of everything that happened: equal for equal seeds.
    trace: str
    # What the command needs to be told beside the numbers.
    option: str = ""

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def command(self) -> str:
        """What reproduces this run."""
        return (
            f"dynatops simulate --seed {self.seed} --brokers {self.brokers}"
            f" --minutes {self.minutes:g}{self.option}"
        )


Meddle = Callable[["SimulatedRun"], None]


class SimulatedRun:
    def __init__(
        self, scenario: Scenario, out: TextIO | None = None, *, with_stores: bool = False
    ) -> None:
        self._with_stores = with_stores
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler, out)
        self.rng = Random(scenario.seed)
        network_rng = Random(self.rng.getrandbits(64))
        self.network = Network(self.scheduler, self.trace, network_rng, scenario.weather)
        self.routing = _routing_in(scenario)
        self.world = World(
            self.rng,
            self.network,
            self.scheduler,
            self.trace,
            self.routing.routing_of,
            CoreSettings(
                publish_deadline_s=10 * scenario.end_s,
                stored_deadline_s=STORED_WITHIN_S,
                session_window_bytes=scenario.session_window_bytes,
            ),
        )
        self.world.selection = SelectionSettings(
            cluster_parts=math.ceil(scenario.brokers / CLUSTER_BROKERS)
        )
        self.world.on_acknowledged = self._check_acknowledged
        self.violations: dict[str, None] = {}
        self._topics = [f"topic/{i}" for i in range(scenario.topics)]
        self._joined = scenario.brokers
        # Since when the network has been whole; never, while all its brokers stop or start.
        self.whole_since_s = 0.0
        self._played: list[str] = []
        # What else is to be looked at in the end: sentences about what is wrong.
        self.checks: list[Callable[[], list[str]]] = []
        # And what else is to be counted, by then.
        self.counted: dict[str, int] = {}

    def play(self, meddle: Meddle | None = None) -> Verdict:
        """Run to the end. `meddle` lets a test plan mischief of its own before the start."""
        if meddle is not None:
            meddle(self)
        self.routing.begin(self)
        if self._with_stores:
            SimulatedStores(self, Random(f"stores {self.scenario.seed}"))
        self._plan_brokers()
        self._plan_clients()
        self._plan_faults()
        plan_actors(self)
        self.scheduler.after(START_S, self._watch)
        self.scheduler.after(self.scenario.quiet_from_s, self._calm_down)
        self.scheduler.run_until(self.scenario.end_s)
        self._violate(self.routing.check_end(self), "at the end")
        self._violate(check_deliveries(self.world), "")
        self._violate(self.world.sent_back, "")
        self._check_brokers()
        for check in self.checks:
            self._violate(check(), "at the end")
        return self._verdict()

    def _verdict(self) -> Verdict:
        return Verdict(
            seed=self.scenario.seed,
            brokers=self.scenario.brokers,
            minutes=self.scenario.minutes,
            violations=tuple(self.violations),
            faults=tuple(self._played),
            frames=self.network.frames,
            frames_lost=self.network.lost,
            published=len(self.world.published),
            delivered=sum(len(s.heard) for s in self.world.subscriptions),
            counted={**self.routing.counted(self), **self.counted},
            trace=self.trace.digest,
            option=self.routing.option + (" --stores" if self._with_stores else ""),
        )

    def _violate(self, sentences: list[str], when: str) -> None:
        for sentence in sentences:
            text = f"{when}: {sentence}" if when else sentence
            self.trace.note(f"VIOLATION {text}")
            self.violations[text] = None

    # ---- the plan -------------------------------------------------------------------------------

    def _plan_brokers(self) -> None:
        names = [f"b{i}" for i in range(self.scenario.brokers)]
        self.world.start_broker(names[0], [])
        for name in names[1:]:
            self.later(self.rng.uniform(0.0, START_S / 2), self.start_broker, name)

    def start_broker(self, name: str) -> None:
        if not self.routing.may_start(name):
            self.world.returning.discard(name)
            return
        living = [b.address for b in self.world.living() if b.address != name and not b.leaving]
        seeds = self.rng.sample(living, min(3, len(living)))
        self.world.start_broker(name, seeds)

    def _plan_clients(self) -> None:
        for i in range(self.scenario.clients):
            self.later(
                self.rng.uniform(START_S / 2, START_S), self._add_client, f"c{i}", i % 2 == 0
            )

    def _add_client(self, name: str, stays: bool) -> None:
        # Every other one comes from outside.
        door = OUTSIDE if len(self.world.clients) % 2 else ""
        client = self.world.add_client(name, kept=self.rng.random() < 0.4, door=door)
        client.subscribe([self._any_filter() for _ in range(self.rng.randint(1, 3))])
        if not stays:
            self.later(self.rng.uniform(2.0, 10.0), self._change_mind, client)
        self.later(self.rng.uniform(5.0, 30.0), self._move, client)
        self.later(self.rng.uniform(0.0, 2.0), self._publish, client)

    def _any_filter(self) -> FilterKey:
        """A topic, mostly; sometimes many, sometimes with a condition."""
        wildcard = self.rng.random()
        pattern = self.rng.choice(self._topics)
        if wildcard < WILDCARDS:
            pattern = self.rng.choice(("#", "topic/+", f"+/{pattern.partition('/')[2]}"))
        where = f"size < {self.rng.randint(1, 9)}" if self.rng.random() < CONDITIONS else ""
        return pattern, where

    def _change_mind(self, client: SimulatedClient) -> None:
        """Unsubscribe from something, subscribe to something else."""
        if self.scheduler.now_s > self.scenario.quiet_from_s:
            return
        filters = client.core.filters
        if filters:
            client.unsubscribe([self.rng.choice(filters)])
        client.subscribe([self._any_filter()])
        self.later(self.rng.uniform(2.0, 10.0), self._change_mind, client)

    def _move(self, client: SimulatedClient) -> None:
        """Lose the connection, be sent to another broker, or (if kept) start as a new process."""
        if self.scheduler.now_s > self.scenario.quiet_from_s:
            return
        what = self.rng.random()
        broker = self.world.any_broker()
        if what < DROPS:
            client.drop()
        elif what < DROPS + REDIRECTIONS and broker is not None:
            client.send_to(broker.address_by(client.door))
        elif client.kept:
            client.restart()
        self.later(self.rng.uniform(5.0, 30.0), self._move, client)

    def _publish(self, client: SimulatedClient) -> None:
        if self.scheduler.now_s > self.scenario.end_s - FAREWELL_S:
            return
        if self.rng.random() < NEW_TOPICS:
            self._topics.append(f"topic/{len(self._topics)}")
            client.publish(self._topics[-1])
        else:
            client.publish(self.rng.choice(self._topics))
        pause_s = self.scenario.clients / self.scenario.publications_per_s
        if self.rng.random() < TOGETHER:
            client.publish_together(self.rng.choices(self._topics, k=COMPANY))
            pause_s *= 1 + COMPANY
        self.later(self.rng.expovariate(1 / pause_s), self._publish, client)

    def _plan_faults(self) -> None:
        for planned in self.scenario.faults:
            self.later(planned.at_s, strike, self, planned)

    def later(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        self.scheduler.after(delay_s, lambda: action(*args))

    def note_fault(self, what: str) -> None:
        self._played.append(f"{self.scheduler.now_s:.1f} s {what}")
        self.trace.note(f"FAULT {what}")

    # ---- what faults do -------------------------------------------------------------------------

    def new_name(self) -> str:
        """Of a broker that there was never before."""
        name = f"b{self._joined}"
        self._joined += 1
        return name

    def start_new_broker(self) -> str:
        name = self.new_name()
        self.start_broker(name)
        return name

    def split_network(self, lasts_s: float) -> None:
        addresses = [broker.address for broker in self.world.living()]
        self.rng.shuffle(addresses)
        at = self.rng.randint(1, max(1, len(addresses) // 2))
        self.network.split([addresses[:at], addresses[at:]])
        self.trace.note(f"SPLIT {addresses[:at]} | {addresses[at:]}")
        self.later(lasts_s, self.heal)

    def is_broken_from_now(self) -> None:
        """There is no network to be looked at, until `is_whole_from_now`."""
        self.whole_since_s = math.inf

    def is_whole_from_now(self) -> None:
        self.whole_since_s = self.scheduler.now_s

    def heal(self) -> None:
        self.network.heal()
        self.is_whole_from_now()
        self.trace.note("HEALED")

    def _calm_down(self) -> None:
        self.heal()
        self.network.weather = Weather()

    # ---- watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._violate(self.routing.check_now(self), f"at {self.scheduler.now_s:.0f} s")
        self._check_brokers()
        self.scheduler.after(CHECK_PERIOD_S, self._watch)

    def _check_brokers(self) -> None:
        found = check_brokers(self.world.brokers.values())
        self._violate(found, f"at {self.scheduler.now_s:.0f} s")

    def _check_acknowledged(self, event: PublishedEvent) -> None:
        found = self.routing.check_acknowledged(self, event)
        self._violate(found, f"at {self.scheduler.now_s:.3f} s")


def _routing_in(scenario: Scenario) -> SimulatedRouting:
    if scenario.topology is not None:
        return SimulatedTree(scenario.topology, ForwardingSettings())
    return SimulatedRing(OverlaySettings(sync_bytes_per_tick=scenario.sync_bytes_per_tick))


# How events travel, by name, and what a seed stands for then.
SCENARIOS: Mapping[str, Callable[[int, int, float], Scenario]] = MappingProxyType(
    {"rendezvous": scenario_of, "forwarding": tree_scenario_of}
)


def simulate(
    seed: int,
    brokers: int,
    minutes: float,
    out: TextIO | None = None,
    meddle: Meddle | None = None,
    routing: str = "rendezvous",
    *,
    stores: bool = False,
) -> Verdict:
    """Play the scenario of this seed."""
    scenario = SCENARIOS[routing](seed, brokers, minutes)
    if stores:
        scenario = with_stores(scenario)
    return SimulatedRun(scenario, out, with_stores=stores).play(meddle)
