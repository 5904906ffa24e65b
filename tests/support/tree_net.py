"""Forwarders in a network that misbehaves, their publishers and subscribers, and what must hold.

One seed, one history. A publisher sends what is not acknowledged again; a subscriber takes of each
publisher and topic only what is newer than all it had. A crash takes all memory of a broker, and
its subscribers.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, attributes_of, attributes_to_wire
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import AckLevel, Event, Events, PeerFrame, Publication, PublishAck, Run
from overlay.base.effects import Accepted, Deliver, DeliverBundle, Send
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import (
    FetchedPart,
    FilterInPlace,
    ForwardingEffect,
    StreamLost,
)
from overlay.forwarding.streams.portions import Portion
from overlay.forwarding.tree.topology import Topology
from tests.support.wandering import Wanderer

TICK_S = 0.1
RETRY_S = 0.5
EventKey = tuple[int, str, int]


@dataclass
class Published:
    """One event: what it is, when it was first sent, and when that was acknowledged."""

    key: EventKey
    # None: it has no attributes.
    value: int | None
    sent_s: float
    acked_s: float | None = None


@dataclass
class TreePublisher:
    publisher: int
    broker: str
    topics: Sequence[str]
    next_number: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 1))
    open: dict[str, list[Publication]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class TreeSubscriber:
    broker: str
    wanted: Filter
    confirmed_s: float | None = None
    ended_s: float | None = None
    got: set[EventKey] = field(default_factory=set)
    highest: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    # Losses were told at these times.
    told_s: list[float] = field(default_factory=list)


class TreeNet:
    def __init__(
        self,
        topology: Topology,
        seed: int,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
        settings: ForwardingSettings | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.topology = topology
        self.settings = settings or ForwardingSettings()
        self.loss, self.duplication, self.reordering = loss, duplication, reordering
        self.now_s = 0.0
        self._queue: list[tuple[float, int, str, str, bytes]] = []
        self._count = 0
        self.cut: set[frozenset[str]] = set()
        self.nodes: dict[str, Forwarder] = {}
        self.events: dict[EventKey, Published] = {}
        self.publishers: dict[int, TreePublisher] = {}
        self.subscribers: list[TreeSubscriber] = []
        self.wanderers: list[Wanderer] = []
        self._fetches_begun = 0
        self.losses: list[tuple[str, StreamLost]] = []
        self.fetched: dict[str, list[FetchedPart]] = defaultdict(list)
        # Of each life of a broker: the last number of each stream that it gave its subscribers.
        self._delivered: dict[str, dict[int, int]] = {}
        self._retry_due_s = 0.0

    # ---- brokers --------------------------------------------------------------------------------

    def start(self, broker: str) -> Forwarder:
        # Clocks of brokers begin somewhere, and go on.
        incarnation = 1_700_000_000_000 + int(self.now_s * 1_000) + 1
        address = self.topology.addresses[broker]
        node = Forwarder(broker, address, incarnation, self.topology, self.settings, self.now_s)
        self.nodes[broker] = node
        self._delivered[broker] = {}
        self.perform(broker, node.start(self.now_s))
        return node

    def start_all(self) -> None:
        for broker in self.topology.addresses:
            self.start(broker)

    def crash(self, broker: str) -> None:
        del self.nodes[broker]
        for subscriber in self.subscribers:
            if subscriber.broker == broker and subscriber.ended_s is None:
                subscriber.ended_s = self.now_s
        for wanderer in self._wanderers_at(broker):
            wanderer.leave()

    def apply(self, topology: Topology, at: str) -> None:
        """The operator gives it to one broker; others learn it from neighbours."""
        self.topology = topology
        self.perform(at, self.nodes[at].set_topology(topology, self.now_s))

    # ---- clients --------------------------------------------------------------------------------

    def subscribe(self, broker: str, pattern: str, where: str = "") -> TreeSubscriber:
        subscriber = TreeSubscriber(broker, Filter.parse(pattern, where))
        self.subscribers.append(subscriber)
        self.perform(broker, self.nodes[broker].want(subscriber.wanted, self.now_s))
        return subscriber

    def unsubscribe(self, subscriber: TreeSubscriber) -> None:
        subscriber.ended_s = self.now_s
        if not self._is_wanted(subscriber.broker, subscriber.wanted):
            node = self.nodes[subscriber.broker]
            self.perform(subscriber.broker, node.unwant(subscriber.wanted, self.now_s))

    def _wanderers_at(self, broker: str) -> list[Wanderer]:
        return [w for w in self.wanderers if w.broker == broker]

    def wander(self, wanderer: Wanderer, broker: str) -> None:
        """It goes on at this broker; where it was it is given up."""
        former, fetch_id = wanderer.broker, wanderer.fetch_id
        wanderer.leave()
        if former is not None and fetch_id:
            self.perform(former, self.nodes[former].give_up_fetch(fetch_id, self.now_s))
        if former is not None and not self._is_wanted(former, wanderer.wanted):
            self.perform(former, self.nodes[former].unwant(wanderer.wanted, self.now_s))
        wanderer.come(broker)
        self.perform(broker, self.nodes[broker].want(wanderer.wanted, self.now_s))

    def _is_wanted(self, broker: str, wanted: Filter) -> bool:
        here = [s.wanted for s in self.live(broker)]
        return wanted in here or any(w.wanted == wanted for w in self._wanderers_at(broker))

    def _fetch_for(self, wanderer: Wanderer) -> None:
        assert wanderer.broker is not None
        assert wanderer.group is not None
        self._fetches_begun += 1
        wanderer.fetch_id = self._fetches_begun
        node, places = self.nodes[wanderer.broker], wanderer.group.reached
        fetch = node.fetch(wanderer.fetch_id, [wanderer.wanted], places, self.now_s)
        self.perform(wanderer.broker, fetch)

    def live(self, broker: str) -> list[TreeSubscriber]:
        return [s for s in self.subscribers if s.broker == broker and s.ended_s is None]

    def publisher(self, broker: str, topics: Sequence[str]) -> TreePublisher:
        publisher = TreePublisher(len(self.publishers) + 1, broker, topics)
        self.publishers[publisher.publisher] = publisher
        return publisher

    def publish(self, publisher: TreePublisher, topic: str, values: Sequence[int]) -> None:
        """One run of events, each with the attribute `v`."""
        first = publisher.next_number[topic]
        publisher.next_number[topic] += len(values)
        for number, value in enumerate(values, first):
            key = (publisher.publisher, topic, number)
            self.events[key] = Published(key, value, self.now_s)
        events = [
            Event(payload=b"%d" % value, attributes=attributes_to_wire({"v": value}))
            for value in values
        ]
        publication = Publication(
            topic=topic,
            publisher=publisher.publisher,
            first_number=first,
            count=len(values),
            ack=AckLevel.ACK_LEVEL_REPLICATED,
            events=Events(events=events, attributed=True).SerializeToString(),
        )
        publisher.open[topic].append(publication)
        self._send(publisher, [publication])

    def _send(self, publisher: TreePublisher, publications: Iterable[Publication]) -> None:
        node = self.nodes.get(publisher.broker)
        if node is None:
            return
        waiting = list(publications)
        for publication in waiting:
            publication.settled = publisher.settled[publication.topic]
        self.perform(publisher.broker, node.publish(waiting, self.now_s))

    def publish_bundle(self, publisher: TreePublisher, topics: Sequence[str]) -> None:
        """Plain events, one on each topic; none of which has anything open."""
        topics = [topic for topic in topics if not publisher.open[topic]]
        node = self.nodes.get(publisher.broker)
        if node is None or not topics:
            return
        numbers = [publisher.next_number[topic] for topic in topics]
        bundle = Bundle(
            publisher.publisher, topics, numbers, [1] * len(topics), [b"0"] * len(topics)
        )
        bundle.ack = AckLevel.ACK_LEVEL_REPLICATED
        bundle.pending = [0] * len(topics)
        for place, (topic, number) in enumerate(zip(topics, numbers, strict=True)):
            publisher.next_number[topic] += 1
            key = (publisher.publisher, topic, number)
            self.events[key] = Published(key, None, self.now_s)
            publisher.open[topic].append(bundle.publication_at(place))
        self.perform(publisher.broker, node.publish_bundle(bundle, self.now_s))

    # ---- time -----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            while self._queue and self._queue[0][0] <= self.now_s:
                _, _, source, target, data = heapq.heappop(self._queue)
                self._arrive(source, target, data)
            for broker, node in list(self.nodes.items()):
                self.perform(broker, node.tick(self.now_s))
            if self.now_s >= self._retry_due_s:
                self._retry_due_s = self.now_s + RETRY_S
                for publisher in self.publishers.values():
                    for waiting in publisher.open.values():
                        self._send(publisher, waiting)

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        node = self.nodes.get(target)
        if node is None or frozenset((source, target)) in self.cut:
            return
        self.perform(target, node.handle(PeerFrame.FromString(data), self.now_s))

    def perform(self, broker: str, effects: Iterable[ForwardingEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, frame):
                    self._post(broker, to.broker_id, frame.SerializeToString())
                case Deliver(run):
                    self._deliver(broker, run, [run])
                case DeliverBundle(bundle):
                    runs = [bundle.run_at(place) for place in range(len(bundle))]
                    self._deliver(broker, bundle, runs)
                case FilterInPlace(wanted, positions):
                    self._in_place(broker, wanted, positions)
                case StreamLost():
                    self._lost(broker, effect)
                case Accepted(_, ack):
                    self._accepted(ack)
                case FetchedPart():
                    self.fetched[broker].append(effect)
                    self._fetched(broker, effect)
                case _:
                    pass

    def _post(self, source: str, target: str, data: bytes) -> None:
        rng = self.rng
        for _ in range(2 if rng.random() < self.duplication else 1):
            if rng.random() < self.loss or frozenset((source, target)) in self.cut:
                continue
            delay_s = rng.uniform(0.001, 0.02)
            if rng.random() < self.reordering:
                delay_s += rng.uniform(0.0, 0.5)
            self._count += 1
            entry = (self.now_s + delay_s, self._count, source, target, data)
            heapq.heappush(self._queue, entry)

    def _fetched(self, broker: str, part: FetchedPart) -> None:
        for wanderer in self._wanderers_at(broker):
            is_its = wanderer.fetch_id == part.fetch_id
            if is_its and wanderer.on_part(part, self.now_s, self.nodes[broker].positions()):
                self._fetch_for(wanderer)

    def _in_place(self, broker: str, wanted: Filter, positions: Mapping[int, int]) -> None:
        for wanderer in self._wanderers_at(broker):
            if wanderer.is_awaited and wanderer.wanted == wanted:
                wanderer.in_place(positions, self.now_s)
                if wanderer.group is not None:
                    self._fetch_for(wanderer)
        for subscriber in self.live(broker):
            if subscriber.wanted == wanted and subscriber.confirmed_s is None:
                subscriber.confirmed_s = self.now_s

    def _accepted(self, ack: PublishAck) -> None:
        for each in ack.acknowledged:
            self._acknowledged(each.publisher, each.topic, each.number)
        for columns in ack.columns:
            for topic, number in zip(columns.topics, columns.numbers, strict=True):
                self._acknowledged(columns.publisher, topic, number)

    def _acknowledged(self, publisher_id: int, topic: str, number: int) -> None:
        publisher = self.publishers[publisher_id]
        for each in range(publisher.settled[topic] + 1, number + 1):
            event = self.events[publisher_id, topic, each]
            event.acked_s = self.now_s
        publisher.settled[topic] = max(publisher.settled[topic], number)
        waiting = publisher.open[topic]
        publisher.open[topic] = [
            p for p in waiting if p.first_number + p.count - 1 > publisher.settled[topic]
        ]

    def _lost(self, broker: str, effect: StreamLost) -> None:
        self.losses.append((broker, effect))
        for subscriber in self.live(broker):
            subscriber.told_s.append(self.now_s)
        for wanderer in self._wanderers_at(broker):
            wanderer.told_s.append(self.now_s)

    def _deliver(self, broker: str, portion: Portion, runs: Iterable[Run]) -> None:
        for wanderer in self._wanderers_at(broker):
            wanderer.on_portion(portion)
        for run in runs:
            self._deliver_run(broker, run)

    def _deliver_run(self, broker: str, run: Run) -> None:
        events = events_of(run)
        assert events is not None
        offsets: Sequence[int] = run.selected if run.partial else range(run.count)
        last = self._delivered[broker].get(run.term, 0)
        for offset, event in zip(offsets, events, strict=True):
            seq = run.first_seq + offset
            assert seq > last, f"{broker} was given {run.term}:{seq} after {last}"
            last = seq
            key = (run.publisher, run.topic, run.first_number + offset)
            for subscriber in self.live(broker):
                if subscriber.wanted.matches(run.topic, attributes_of(event.attributes)):
                    stream = (run.publisher, run.topic)
                    if key[2] > subscriber.highest[stream]:
                        subscriber.highest[stream] = key[2]
                        subscriber.got.add(key)
        self._delivered[broker][run.term] = last

    # ---- what must hold -------------------------------------------------------------------------

    def wanted_events(self, subscriber: TreeSubscriber | Wanderer) -> list[Published]:
        """Acknowledged, and published while the subscription was in place."""
        since_s = subscriber.confirmed_s
        if isinstance(subscriber, TreeSubscriber) and subscriber.ended_s is not None:
            return []
        if since_s is None:
            return []
        return [
            event
            for event in self.events.values()
            if event.acked_s is not None
            and event.sent_s > since_s
            and subscriber.wanted.matches(
                event.key[1], {} if event.value is None else {"v": event.value}
            )
        ]

    def missing(self, *, told_excuses: bool = True) -> list[str]:
        found = []
        everybody: list[TreeSubscriber | Wanderer] = [*self.subscribers, *self.wanderers]
        for subscriber in everybody:
            # What is told as lost is of before.
            told_s = max(subscriber.told_s, default=0.0) if told_excuses else 0.0
            lacking = [
                e
                for e in self.wanted_events(subscriber)
                if e.key not in subscriber.got and e.sent_s >= told_s
            ]
            if lacking:
                first = lacking[0]
                found.append(
                    f"{subscriber.wanted} at {subscriber.broker} lacks {len(lacking)}, first "
                    f"{first.key} sent {first.sent_s:.1f} acked {first.acked_s:.1f}, confirmed "
                    f"{subscriber.confirmed_s:.1f}"
                )
        return found

    def unconfirmed(self) -> list[str]:
        return [
            f"{s.wanted} at {s.broker}"
            for s in self.subscribers
            if s.ended_s is None and s.confirmed_s is None
        ] + [f"{w.wanted} at {w.broker}" for w in self.wanderers if not w.is_live]

    def not_quiet(self) -> list[str]:
        found = [
            f"{broker}: {node.neighbour_states()}"
            for broker, node in self.nodes.items()
            if not node.is_quiet or not node.is_ready
        ]
        found += [
            f"publisher {p.publisher} waits on {topic}"
            for p in self.publishers.values()
            if p.broker in self.nodes
            for topic, waiting in p.open.items()
            if waiting
        ]
        return found

    def table_differences(self) -> list[str]:
        """Where what one end has told is not what the other end has."""
        found = []
        for link in self.topology.links:
            for one, other in ((link.one, link.other), (link.other, link.one)):
                teller, hearer = self.nodes[one].tables, self.nodes[other].tables
                told, heard = set(teller.told(other)), set(hearer.wanted_by(one))
                if told != heard:
                    found.append(f"{one} told {other} {told}, who has {heard}")
        return found

    def check(self, *, losses_told: bool) -> None:
        assert self.missing() == []
        assert self.unconfirmed() == []
        assert self.not_quiet() == []
        assert self.table_differences() == []
        if not losses_told:
            assert self.losses == []


def random_tree(rng: Random, brokers: int, **options: Any) -> Topology:
    names = [f"b{i}" for i in range(brokers)]
    links = [[names[rng.randrange(i)], names[i]] for i in range(1, brokers)]
    mapping = {"brokers": {n: f"h:{n}" for n in names}, "links": links, "root": "b0"}
    return Topology.from_mapping({**mapping, **options})
