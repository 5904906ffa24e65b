"""Overlay nodes without brokers, in virtual time, on a perfect network unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.routing.rendezvous.publishing.announcing import Announcing
from dynatops.v1.overlay_pb2 import AckLevel, Event, Events, PeerFrame, Publication
from overlay.base.effects import (
    Accepted,
    Announce,
    Deliver,
    Departed,
    Effect,
    InTree,
    Ready,
    Repaired,
    Send,
)
from overlay.base.identifiers import NodeId, first_node_id
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.node import Node
from overlay.placement.geometry import RingGeometry
from simulator.scheduler import Scheduler

TICK_S = 0.1
DELAY_S = 0.005


def events(*payloads: bytes) -> bytes:
    return Events(events=[Event(payload=payload) for payload in payloads]).SerializeToString()


def publication(
    topic: str,
    number: int,
    *,
    publisher: int = 7,
    count: int = 1,
    settled: int = 0,
    ack: AckLevel.ValueType = AckLevel.ACK_LEVEL_REPLICATED,
) -> Publication:
    """Events `number` … `number + count - 1`; each carries its number."""
    return Publication(
        topic=topic,
        publisher=publisher,
        first_number=number,
        count=count,
        settled=settled,
        ack=ack,
        events=events(*(str(number + i).encode() for i in range(count))),
    )


class NodeNet:
    """Nodes by name. What they want done for their hosts is kept in `delivered` and `effects`.

    Their hosts do one thing only: they announce topics, as brokers do.
    """

    def __init__(self, seed: int = 0, settings: OverlaySettings | None = None) -> None:
        self.scheduler = Scheduler()
        self.settings = settings or OverlaySettings()
        self.nodes: dict[str, Node] = {}
        self._announcing: dict[str, Announcing] = {}
        self.effects: list[tuple[float, str, Effect]] = []
        self.frames = 0
        # Whether a frame is to be lost: (source, destination, frame).
        self.drops: Callable[[str, str, PeerFrame], bool] = lambda source, destination, frame: False
        self.on_frame: Callable[[str, str, PeerFrame], None] = lambda *_: None
        self._rng = Random(seed)
        self._lives = 0

    @property
    def now_s(self) -> float:
        return self.scheduler.now_s

    def add(self, name: str, seeds: Iterable[str] = (), node_id: int | None = None) -> Node:
        self._lives += 1
        position = first_node_id(name) if node_id is None else NodeId(node_id)
        me = Peer(position, name, name, incarnation=self._lives)
        node = Node(me, self.settings, Random(self._rng.getrandbits(64)))
        self.nodes[name] = node
        self._announcing[name] = Announcing(CoreSettings(), BrokerCounters())
        self.perform(name, node.start(list(seeds), self.now_s))
        self.scheduler.after(self._rng.uniform(0, TICK_S), lambda: self._tick(name, node))
        return node

    def replace(self, name: str, node: Node) -> None:
        """This node is hosted there from now on."""
        self.nodes[name] = node
        self._announcing.setdefault(name, Announcing(CoreSettings(), BrokerCounters()))
        self.perform(name, node.tick(self.now_s))
        self.scheduler.after(TICK_S, lambda: self._tick(name, node))

    def ring(self, node_ids: Iterable[int]) -> None:
        """A settled ring of nodes at these positions, named n0, n1, … in this order."""
        for i, node_id in enumerate(node_ids):
            self.add(f"n{i}", ["n0"] if i else [], node_id)
            self.run(0.2)
        self.settle()

    def _tick(self, name: str, node: Node) -> None:
        if self.nodes.get(name) is node:
            self.perform(name, node.tick(self.now_s))
            self.publish(name, *self._announcing[name].due(self.now_s))
            self.scheduler.after(TICK_S, lambda: self._tick(name, node))

    def crash(self, name: str) -> None:
        del self.nodes[name]

    def perform(self, name: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(name, effect)
            else:
                self.effects.append((self.now_s, name, effect))
                self._look_after_announcements(name, effect)
                if isinstance(effect, Departed):
                    self.nodes.pop(name, None)

    def _look_after_announcements(self, name: str, effect: Effect) -> None:
        announcing = self._announcing[name]
        if isinstance(effect, Announce):
            announcing.announce(effect)
            self.publish(name, *announcing.fresh(self.now_s))
        elif isinstance(effect, Accepted):
            entered = announcing.acknowledged(effect.ack.acknowledged)
            if entered:
                self.perform(name, self.nodes[name].announced(entered, self.now_s))

    def _send(self, source: str, send: Send) -> None:
        self.frames += 1
        destination, raw = send.to.address, send.frame.SerializeToString()
        if self.drops(source, destination, send.frame):
            return
        self.scheduler.after(DELAY_S, lambda: self._arrive(source, destination, raw))

    def _arrive(self, source: str, destination: str, raw: bytes) -> None:
        node = self.nodes.get(destination)
        if node is not None:
            frame = PeerFrame.FromString(raw)
            self.on_frame(source, destination, frame)
            self.perform(destination, node.handle(frame, self.now_s))

    # ---- doing things ---------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.now_s + seconds)

    def want(self, name: str, topic: str) -> None:
        self.perform(name, self.nodes[name].want(topic, self.now_s))

    def unwant(self, name: str, topic: str) -> None:
        self.perform(name, self.nodes[name].unwant(topic, self.now_s))

    def publish(self, name: str, *publications: Publication) -> None:
        if publications:
            self.perform(name, self.nodes[name].publish(publications, None, self.now_s))

    def leave(self, name: str) -> None:
        self.perform(name, self.nodes[name].leave(self.now_s))

    def settle(self, timeout_s: float = 60.0) -> None:
        """Run until every node's neighbours and routes are what the static geometry says."""
        end_s = self.now_s + timeout_s
        while not self.is_settled():
            assert self.now_s < end_s, "the ring does not settle"
            self.run(0.1)

    def is_settled(self) -> bool:
        nodes = {node.me.node_id: node for node in self.nodes.values()}
        if any(node.ring.status is not Status.MEMBER for node in nodes.values()):
            return False
        geometry = RingGeometry(nodes)
        fingers = geometry.fingers()
        size = len(geometry)
        for i in range(size):
            node = nodes[NodeId(int(geometry.node_ids[i]))]
            reach = min(size - 1, self.settings.successors_max)
            successors = [int(geometry.node_ids[(i + k) % size]) for k in range(1, reach + 1)]
            targets = {int(geometry.node_ids[k]) for k in fingers[i] if k != i}
            if (
                not node.reigns.ready
                or [peer.node_id for peer in node.ring.successors] != successors
                or node.ring.range_low != int(geometry.node_ids[i - 1])
                or {peer.node_id for peer in node.ring.fingers.routes.targets} != targets
            ):
                return False
        return True

    # ---- seeing what happened -------------------------------------------------------------------

    def rendezvous_point(self, topic: str) -> str:
        (name,) = [n for n, node in self.nodes.items() if topic in node.reigns.by_topic]
        return name

    def delivered(self, name: str, topic: str) -> list[int]:
        """Numbers of the events that came by at this node, repeats included."""
        numbers: list[int] = []
        for _, who, effect in self.effects:
            if who == name and isinstance(effect, Deliver) and effect.run.topic == topic:
                first = effect.run.first_number
                numbers += range(first, first + effect.run.count)
        return numbers

    def acknowledged(self, name: str, topic: str) -> int:
        """The highest number that this host was told is acknowledged; 0 if none."""
        numbers = [
            acknowledged.number
            for _, who, effect in self.effects
            if who == name and isinstance(effect, Accepted)
            for acknowledged in effect.ack.acknowledged
            if acknowledged.topic == topic
        ]
        return max(numbers, default=0)

    def entered(self, name: str, topic: str) -> bool:
        return any(
            who == name and isinstance(effect, InTree) and effect.topic == topic
            for _, who, effect in self.effects
        )

    def repairs(self, name: str) -> list[Repaired]:
        return [e for _, who, e in self.effects if who == name and isinstance(e, Repaired)]

    def ready(self, name: str) -> bool:
        return any(who == name and isinstance(effect, Ready) for _, who, effect in self.effects)
