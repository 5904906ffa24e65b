"""DYNATOPS' broker network as it is: real broker cores in the simulator, their messages counted.

Each broker has one user, who subscribes to what the broker is to subscribe to. Nothing is lost on
the way. Of what brokers send, counted is what the rules of `system.py` name: requests for a tree on
their way to its root, what nodes tell each other of members, and publications and events, each for
every hop. The rest (pings, digests, copies, heartbeats, acknowledgements) flows whether anything
changes or not, or is a promise that no compared system makes.

It is slow, and says what the computed model (`chord_trees.py`) must say, too.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import numpy as np

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import on_ring, ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage
from experiments.systems.system import Dissemination, Ints, Pairs, Sites, Topics, Upkeep
from overlay.base.overlay_settings import OverlaySettings
from simulator.clients import SimulatedClient
from simulator.network import Network, Weather
from simulator.scheduler import Scheduler, Trace
from simulator.world import World

# As links of brokers are: what overtakes on the way is told again, and would be counted.
_IN_ORDER = Weather(delay_min_s=0.005, delay_max_s=0.005)
_JOIN_S = 0.5
# Until a ring of so many has every finger right, and a little more.
_SETTLE_S = 30.0
# A change has reached everybody long before.
_CHANGE_S = 1.5


class SimulatedBrokers:
    """A ring of real brokers in virtual time, with a user at each."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.names = list(names)
        self.scheduler = Scheduler()
        trace = Trace(self.scheduler, io.StringIO())
        self.network = Network(self.scheduler, trace, Random(f"network {seed}"), _IN_ORDER)
        self.world = World(
            Random(f"world {seed}"),
            self.network,
            self.scheduler,
            trace,
            lambda broker_id: on_ring(OverlaySettings()),
            CoreSettings(),
        )
        # Who is where is decided by the experiment.
        self.world.selection = SelectionSettings(enabled=False)
        for name in self.names:
            self.world.start_broker(name, [] if name == self.names[0] else [self.names[0]])
            self.run(_JOIN_S)
        self.run(_SETTLE_S)
        self.users = [self._user_at(name) for name in self.names]
        self.run(1.0)

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now_s + seconds)

    def _user_at(self, broker: str) -> SimulatedClient:
        user = self.world.add_client(f"user-of-{broker}")
        self.run(0.05)
        user.send_to(broker)
        self.run(0.1)
        return user

    def node_of(self, name: str) -> int:
        return int(ring_of(self.world.brokers[name].core).node.me.node_id)


class SimulatedNetwork:
    """The interface of compared systems, in front of real brokers."""

    def __init__(self, sites: Sites, topics: Topics, seed: int) -> None:
        self.sites = sites
        self.topics = topics
        names = [f"b{i}" if not seed else f"{seed}/b{i}" for i in range(len(sites))]
        self.brokers = SimulatedBrokers(names, seed)
        self._ours = frozenset(topics.names)
        self._counted: Counter[str] = Counter()
        self._subscribed = np.zeros((len(sites), len(topics)), dtype=bool)
        self._send = self.brokers.network.send
        self.brokers.network.send = self._count_and_send  # type: ignore[method-assign]

    # ---- counting -------------------------------------------------------------------------------

    def _count_and_send(self, source: str, destination: str, frame: bytes, label: str) -> None:
        for message in PeerFrame.FromString(frame).messages:
            self._count(message)
        self._send(source, destination, frame, label)

    def _count(self, message: PeerMessage) -> None:
        match message.WhichOneof("body"):
            case "join_tree":
                self._counted["request"] += message.join_tree.topic in self._ours
            case "leave_tree":
                self._counted["request"] += message.leave_tree.topic in self._ours
            case "tree_update":
                for change in message.tree_update.changes:
                    if change.topic in self._ours:
                        self._counted["update"] += len(change.add) + len(change.remove)
            case "publish":
                topics = (publication.topic for publication in message.publish.publications)
                self._counted["way"] += self._count_ours(topics)
                for bundle in message.publish.bundles:
                    self._counted["way"] += self._count_ours(bundle.topics)
            case "runs":
                for run in message.runs.runs:
                    self._counted["spread"] += run.count * (run.topic in self._ours)
                for bundle in message.runs.bundles:
                    self._counted["spread"] += self._count_ours(bundle.topics)
            case _:
                pass

    def _count_ours(self, topics: Iterable[str]) -> int:
        return sum(topic in self._ours for topic in topics)

    # ---- the interface --------------------------------------------------------------------------

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        self._counted.clear()
        for changed, to in ((leaves, False), (joins, True)):
            if (self._subscribed[changed[:, 0], changed[:, 1]] == to).any():
                raise ValueError("a join of what is joined, or a leave of what is not")
            self._subscribed[changed[:, 0], changed[:, 1]] = to
            for broker in np.unique(changed[:, 0]).tolist():
                theirs = changed[changed[:, 0] == broker, 1].tolist()
                filters = [(self.topics.names[topic], "") for topic in theirs]
                user = self.brokers.users[broker]
                (user.subscribe if to else user.unsubscribe)(filters)
        self.brokers.run(_CHANGE_S)
        return Upkeep(self._counted["request"] + self._counted["update"])

    def publish(self, publisher: int, topic: int) -> Dissemination:
        self._counted.clear()
        name = self.topics.names[topic]
        before = [self._heard(broker, name) for broker in range(len(self.sites))]
        self.brokers.users[publisher].publish(name)
        self.brokers.run(_CHANGE_S)
        heard = [self._heard(b, name) > before[b] for b in range(len(self.sites))]
        brokers: Ints = np.flatnonzero(heard).astype(np.int32)
        # Virtual time is not the workload's: nothing is said of delays.
        delays = np.full(len(brokers), np.nan)
        return Dissemination(self._counted["way"], self._counted["spread"], brokers, delays)

    def _heard(self, broker: int, topic: str) -> int:
        subscription = self.brokers.users[broker].subscriptions.get((topic, ""))
        return len(subscription.heard) if subscription is not None else 0

    @property
    def greatest_degree(self) -> int:
        world = self.brokers.world
        return max(len(ring_of(b.core).node.status().fingers) for b in world.living())
