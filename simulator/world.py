"""Brokers and clients in virtual time: the second driver of the cores, beside
`broker_agent.runtime`.

A simulated broker does what the real one does with effects: frames go to the network, session
output to the client. A simulated client has the real client core, and connects elsewhere when its
broker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from broker_agent.core.broker import Broker, Identity
from broker_agent.core.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    SendFrame,
    Stopped,
    Wake,
)
from broker_agent.core.settings import CoreSettings
from dynatops.client.core import ClientCore
from dynatops.client.publications import Ack, Confirmed
from dynatops.v1.client_pb2 import (
    ClientFrame,
    Goodbye,
    Missed,
    ServerFrame,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import PeerFrame, Run
from overlay.settings import OverlaySettings
from simulator.network import Network
from simulator.scheduler import Scheduler, Trace

TICK_S = 0.1
CLIENT_DELAY_S = 0.002
OUTPUT_BYTES_MAX = 256 << 10


class SimulatedBroker:
    """One life of a broker. A restart is another object with the same name."""

    def __init__(
        self, world: World, broker_id: str, incarnation: int, seeds: Sequence[str]
    ) -> None:
        self.broker_id = broker_id
        self.address = broker_id
        self.alive = True
        self.leaving = False
        self._world = world
        self._connections: dict[ConnectionId, SimulatedClient] = {}
        self.core = Broker(
            Identity(broker_id, self.address, incarnation),
            world.overlay_settings,
            world.core_settings,
            Random(world.rng.getrandbits(64)),
        )
        world.network.attach(self.address, self._on_frame)
        self._perform(self.core.start(seeds, self._now()))
        world.scheduler.after(world.rng.uniform(0, TICK_S), self._tick)

    def _now(self) -> float:
        return self._world.scheduler.now_s

    def _tick(self) -> None:
        if self.alive:
            self._perform(self.core.tick(self._now()))
            self._world.scheduler.after(TICK_S, self._tick)

    def _on_frame(self, raw: bytes) -> None:
        self._perform(self.core.on_peer_frame(PeerFrame.FromString(raw), self._now()))

    def _perform(self, effects: Sequence[BrokerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrame):
                kinds = " ".join(str(m.WhichOneof("body")) for m in effect.frame.messages)
                raw = effect.frame.SerializeToString(deterministic=True)
                self._world.network.send(self.address, effect.address, raw, f"{len(raw)} {kinds}")
            elif isinstance(effect, Wake):
                self._flush(effect.connection)
            elif isinstance(effect, CloseConnection):
                client = self._connections.pop(effect.connection, None)
                if client is not None:
                    self._world.scheduler.after(CLIENT_DELAY_S, client.lost_connection)
            elif isinstance(effect, Stopped):
                self.stop()

    def _flush(self, session: ConnectionId) -> None:
        client = self._connections.get(session)
        while client is not None and (raw := self.core.take_output(session, OUTPUT_BYTES_MAX)):
            self._world.scheduler.after(
                CLIENT_DELAY_S,
                lambda client=client, raw=raw: client.on_frame(session, raw),  # type: ignore[misc]
            )

    def connect(self, session: ConnectionId, client: SimulatedClient) -> None:
        self._connections[session] = client
        self.core.open_session(session)

    def on_client_frame(self, session: ConnectionId, raw: bytes) -> None:
        if self.alive:
            frame = ClientFrame.FromString(raw)
            self._perform(self.core.on_client_frame(session, frame, self._now()))

    def leave(self) -> None:
        self.leaving = True
        self._perform(self.core.leave(self._now()))

    def unreachable(self, address: str) -> None:
        if self.alive:
            self._perform(self.core.unreachable(address, self._now()))

    def stop(self) -> None:
        """The process ends, by itself or by force; connections break."""
        self.alive = False
        self._world.network.detach(self.address)
        for client in self._connections.values():
            self._world.scheduler.after(CLIENT_DELAY_S, client.lost_connection)


@dataclass(slots=True)
class Subscription:
    """What one client heard of one topic, from one confirmed subscription until its end."""

    client: str
    topic: str
    since_s: float
    until_s: float | None = None
    # (publisher, number, term, seq, time) of each event handed to the application.
    heard: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    # When it was first told that its topic's history is broken: both copies were out of reach.
    broken_s: float | None = None


@dataclass(slots=True)
class PublishedEvent:
    topic: str
    publisher: int
    number: int
    at_s: float
    acknowledged_s: float | None = None


class SimulatedClient:
    def __init__(self, world: World, name: str, publisher: int) -> None:
        self.name = name
        self.core = ClientCore(name, publisher)
        self.subscriptions: dict[str, Subscription] = {}
        self._world = world
        self._broker: SimulatedBroker | None = None
        self._session = ConnectionId("")
        self._lives = 0
        self._requests: dict[int, list[str]] = {}
        self._unacknowledged: dict[tuple[str, int], PublishedEvent] = {}

    @property
    def broker(self) -> SimulatedBroker | None:
        return self._broker

    def connect(self) -> None:
        broker = self._world.any_broker()
        if broker is None:
            self._world.scheduler.after(0.5, self.connect)
            return
        self._broker = broker
        self._lives += 1
        self._session = ConnectionId(f"{self.name}/{self._lives}")
        broker.connect(self._session, self)
        self._send(self.core.connected())

    def lost_connection(self) -> None:
        self._broker = None
        self.core.disconnected()
        for subscription in self.subscriptions.values():
            subscription.until_s = self._world.scheduler.now_s
        self.subscriptions.clear()
        self._world.scheduler.after(self._world.rng.uniform(0.1, 0.5), self.connect)

    def subscribe(self, topics: list[str]) -> None:
        self._requests[self.core.subscribe(topics)] = topics
        self._flush()

    def unsubscribe(self, topics: list[str]) -> None:
        for topic in topics:
            subscription = self.subscriptions.pop(topic, None)
            if subscription is not None:
                subscription.until_s = self._world.scheduler.now_s
        self.core.unsubscribe(topics)
        self._flush()

    def publish(self, topic: str) -> None:
        now_s = self._world.scheduler.now_s
        number = self.core.publish(topic, b"", Ack.REPLICATED, round(now_s * 1e6))
        event = PublishedEvent(topic, self.core.publisher, number, now_s)
        self._unacknowledged[topic, number] = event
        self._world.published.append(event)
        self._flush()

    def _flush(self) -> None:
        while (frame := self.core.take_frame(OUTPUT_BYTES_MAX)) is not None:
            self._send(frame)

    def _send(self, frame: ClientFrame) -> None:
        broker, session, raw = self._broker, self._session, frame.SerializeToString()
        if broker is not None:
            self._world.scheduler.after(
                CLIENT_DELAY_S, lambda: broker.on_client_frame(session, raw)
            )

    def on_frame(self, session: ConnectionId, raw: bytes) -> None:
        if session != self._session or self._broker is None:
            return
        for item in self.core.on_frame(ServerFrame.FromString(raw)):
            if isinstance(item, Run):
                self._heard(item)
            elif isinstance(item, Confirmed):
                self._confirmed(item)
            elif isinstance(item, Subscribed):
                self._subscribed()
            elif isinstance(item, Missed):
                self._told_of_loss(item)
            elif isinstance(item, Welcome | Interrupted | Goodbye):
                continue
        self._flush()

    def _subscribed(self) -> None:
        """Everything asked for on this connection so far is in place."""
        for topic in self.core.confirmed_topics():
            if topic not in self.subscriptions:
                subscription = Subscription(self.name, topic, self._world.scheduler.now_s)
                self.subscriptions[topic] = subscription
                self._world.subscriptions.append(subscription)

    def _told_of_loss(self, item: Missed) -> None:
        subscription = self.subscriptions.get(item.topic)
        if subscription is not None and item.count == 0 and subscription.broken_s is None:
            subscription.broken_s = self._world.scheduler.now_s

    def _confirmed(self, item: Confirmed) -> None:
        now_s = self._world.scheduler.now_s
        done = [
            key for key in self._unacknowledged if key[0] == item.topic and key[1] <= item.number
        ]
        for key in done:
            event = self._unacknowledged.pop(key)
            event.acknowledged_s = now_s
            self._world.on_acknowledged(event)

    def _heard(self, run: Run) -> None:
        subscription = self.subscriptions.get(run.topic)
        if subscription is None:
            return
        now_s = self._world.scheduler.now_s
        for offset in range(run.count):
            number, seq = run.first_number + offset, run.first_seq + offset
            subscription.heard.append((run.publisher, number, run.term, seq, now_s))


class World:
    """Everything of one simulated run."""

    def __init__(
        self,
        rng: Random,
        network: Network,
        scheduler: Scheduler,
        trace: Trace,
        overlay_settings: OverlaySettings,
        core_settings: CoreSettings,
    ) -> None:
        self.rng = rng
        self.network = network
        self.scheduler = scheduler
        self.trace = trace
        self.overlay_settings = overlay_settings
        self.core_settings = core_settings
        self.brokers: dict[str, SimulatedBroker] = {}
        self.clients: list[SimulatedClient] = []
        self.subscriptions: list[Subscription] = []
        self.published: list[PublishedEvent] = []
        # Called when a publisher is told that an event is safe.
        self.on_acknowledged: Callable[[PublishedEvent], None] = lambda event: None
        self._lives = 0

    def start_broker(self, broker_id: str, seeds: Sequence[str]) -> SimulatedBroker:
        self._lives += 1
        self.trace.note(f"{broker_id} starts, life {self._lives}")
        broker = SimulatedBroker(self, broker_id, self._lives, seeds)
        self.brokers[broker_id] = broker
        return broker

    def crash_broker(self, broker_id: str, *, noticed: bool) -> None:
        """Kill a broker. If that is noticed, connections to it are refused from now on."""
        self.trace.note(f"{broker_id} crashes")
        self.brokers[broker_id].stop()
        if noticed:
            for other in self.brokers.values():
                delay_s = self.rng.uniform(0.0, 0.3)
                self.scheduler.after(delay_s, self._tell_unreachable(other, broker_id))

    def _tell_unreachable(self, broker: SimulatedBroker, address: str) -> Callable[[], None]:
        def tell() -> None:
            if not self.network.is_attached(address):
                broker.unreachable(address)

        return tell

    def living(self) -> list[SimulatedBroker]:
        return [broker for broker in self.brokers.values() if broker.alive]

    def any_broker(self) -> SimulatedBroker | None:
        steady = [broker for broker in self.living() if not broker.leaving]
        return self.rng.choice(steady) if steady else None

    def add_client(self, name: str) -> SimulatedClient:
        client = SimulatedClient(self, name, publisher=self.rng.getrandbits(64))
        self.clients.append(client)
        client.connect()
        return client
