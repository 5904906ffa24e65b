"""Brokers and clients in virtual time: the second driver of the cores, beside
`broker_agent.runtime`.

A simulated broker does what the real one does with effects: frames go to the network, session
output to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Protocol

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    ReadPast,
    ReplyToManager,
    SaveNow,
    SendFrame,
    Stopped,
    StoreNow,
    Wake,
)
from broker_agent.core.base.identity import Identity
from broker_agent.core.broker import Broker
from broker_agent.core.keeping.journal import Changes
from broker_agent.core.options import BrokerOptions
from broker_agent.core.routing.routing import RoutingFactory
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.stores.log.log_requests import LogOutcome
from broker_agent.core.stores.store_reader import ServedKey, StorePortion
from broker_agent.doors.frames import on_client_bytes, take_output
from dynatops.client.core.publications import Ack
from dynatops.v1.manager_pb2 import Step, StepReply
from dynatops.v1.overlay_pb2 import PeerFrame
from simulator.clients import (
    CLIENT_DELAY_S,
    OUTSIDE,
    PublishedEvent,
    SimulatedClient,
    SimulatedSubscription,
    ToldGap,
)
from simulator.disk import SimulatedDisk
from simulator.network import Network
from simulator.scheduler import Scheduler, Trace
from simulator.stores.simulated_store import SimulatedStore
from simulator.tokens import simulated_access

TICK_S = 0.1
FLUSH_S = 0.25
# A write to disk takes so long; a broker that crashes meanwhile has not written.
WRITE_MAX_S = 0.05
OUTPUT_BYTES_MAX = 256 << 10


class Connected(Protocol):
    """Whoever has a connection to a broker."""

    def on_frame(self, connection: ConnectionId, raw: bytes) -> None: ...

    def lost_connection(self, connection: ConnectionId) -> None: ...


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
        self._network = world.network
        self._scheduler = world.scheduler
        self._connections: dict[ConnectionId, Connected] = {}
        self._disk = world.disks.setdefault(broker_id, SimulatedDisk())
        self._writing = False
        self.store = world.store_of(broker_id, incarnation)
        self.core = Broker(
            Identity(broker_id, self.address, incarnation),
            world.routing_of(broker_id),
            world.core_settings,
            Random(world.rng.getrandbits(64)),
            BrokerOptions(
                world.access,
                world.selection,
                saving=True,
                doors={OUTSIDE: self.address_by(OUTSIDE)},
                store=self.store.options if self.store is not None else None,
            ),
        )
        if self.store is not None:
            self.store.attach(self)
        self.core.restore(self._disk.read(), self._now())
        world.network.attach(self.address, self._on_bytes)
        self._perform(self.core.start(seeds, self._now()))
        world.scheduler.after(world.rng.uniform(0, TICK_S), self._tick)
        world.scheduler.after(world.rng.uniform(0, FLUSH_S), self._flush_to_disk)

    def address_by(self, door: str) -> str:
        """What clients that come by this door know it by."""
        return f"{self.broker_id}.{door}" if door else self.address

    def _now(self) -> float:
        return self._scheduler.now_s

    def _tick(self) -> None:
        if self.alive:
            self._perform(self.core.tick(self._now()))
            self._world.scheduler.after(TICK_S, self._tick)

    def _flush_to_disk(self) -> None:
        if self.alive:
            self._save()
            self._world.scheduler.after(FLUSH_S, self._flush_to_disk)

    def _save(self) -> None:
        changes = None if self._writing else self.core.unsaved()
        if changes is not None:
            self._writing = True
            takes_s = self._world.rng.uniform(0.0, WRITE_MAX_S)
            self._world.scheduler.after(takes_s, lambda: self._written(changes))

    def _written(self, changes: Changes) -> None:
        if self.alive:
            self._disk.write(changes)
            self._writing = False
            self._perform(self.core.saved(self._now()))

    def _on_bytes(self, raw: bytes) -> None:
        self.on_peer_frame(PeerFrame.FromString(raw))

    def on_peer_frame(self, frame: PeerFrame) -> None:
        self._perform(self.core.on_peer_frame(frame, self._scheduler.now_s))

    def _perform(self, effects: Sequence[BrokerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrame):
                raw = effect.frame.SerializeToString(deterministic=True)
                label = f"{len(raw)} {_kinds_in(effect.frame)}"
                self._network.send(self.address, effect.address, raw, label)
            elif isinstance(effect, Wake):
                self._flush(effect.connection)
            elif isinstance(effect, CloseConnection):
                self._lose(effect.connection)
            elif isinstance(effect, SaveNow):
                self._save()
            elif isinstance(effect, StoreNow) and self.store is not None:
                self.store.feed()
            elif isinstance(effect, ReadPast) and self.store is not None:
                self.store.read(effect.order)
            elif isinstance(effect, ReplyToManager):
                self._world.on_reply(self, effect.reply)
            elif isinstance(effect, Stopped):
                self.stop()

    def on_log_outcome(self, outcome: LogOutcome) -> None:
        self._perform(self.core.log_answered(outcome, self._now()))

    def on_past_read(self, key: ServedKey, portion: StorePortion) -> None:
        self._perform(self.core.past_read(key, portion, self._now()))

    def _flush(self, connection: ConnectionId) -> None:
        client = self._connections.get(connection)
        while client is not None and (raw := take_output(self.core, connection, OUTPUT_BYTES_MAX)):
            arrive = partial(client.on_frame, connection, raw)
            self._world.scheduler.after(CLIENT_DELAY_S, arrive)

    def connect(self, connection: ConnectionId, client: Connected, door: str = "") -> None:
        self._connections[connection] = client
        self._perform(self.core.open_connection(connection, self._now(), door=door))

    def disconnect(self, connection: ConnectionId) -> None:
        """The connection has ended at the other end."""
        if self._connections.pop(connection, None) is not None and self.alive:
            self._perform(self.core.close_connection(connection, self._now()))

    def on_client_frame(self, connection: ConnectionId, raw: bytes) -> None:
        if self.alive:
            self._perform(on_client_bytes(self.core, connection, raw, self._now()))

    def on_step(self, step: Step) -> None:
        """A manager asks for a step of a reconfiguration."""
        if self.alive:
            self._perform(self.core.on_step(step, self._now()))

    def leave(self) -> None:
        """Save everything as it is now, and leave with nothing in between, as `runtime` does."""
        self.leaving = True
        if self._writing:
            self._world.scheduler.after(WRITE_MAX_S / 4, self._leave_if_alive)
            return
        if (changes := self.core.unsaved(everything=True)) is not None:
            self._disk.write(changes)
            self.core.saved(self._now())
        self._perform(self.core.leave(self._now()))

    def _leave_if_alive(self) -> None:
        if self.alive:
            self.leave()

    def unreachable(self, address: str) -> None:
        if self.alive:
            self._perform(self.core.unreachable(address, self._now()))

    def stop(self) -> None:
        """The process ends, by itself or by force; connections break."""
        if self.store is not None:
            end = self.store.close if self.leaving else self.store.die
            end()
        self.alive = False
        self._world.ended.append((self.broker_id, self._now()))
        self._world.network.detach(self.address)
        for connection in list(self._connections):
            self._lose(connection)

    def _lose(self, connection: ConnectionId) -> None:
        client = self._connections.pop(connection, None)
        if client is not None:
            lose = partial(client.lost_connection, connection)
            self._world.scheduler.after(CLIENT_DELAY_S, lose)
            if self.alive:
                self._perform(self.core.close_connection(connection, self._now()))


def _kinds_in(frame: PeerFrame) -> str:
    """What is said in it, for the trace. Most frames say one thing."""
    messages = frame.messages
    if len(messages) == 1:
        return str(messages[0].WhichOneof("body"))
    return " ".join([str(message.WhichOneof("body")) for message in messages])


class World:
    """Everything of one simulated run."""

    def __init__(
        self,
        rng: Random,
        network: Network,
        scheduler: Scheduler,
        trace: Trace,
        routing_of: Callable[[str], RoutingFactory],
        core_settings: CoreSettings,
    ) -> None:
        self.rng = rng
        self.network = network
        self.scheduler = scheduler
        self.trace = trace
        # How events travel at a broker that starts.
        self.routing_of = routing_of
        self.core_settings = core_settings
        self.access = simulated_access(core_settings)
        # Of brokers that start from now on.
        self.selection = SelectionSettings()
        self.brokers: dict[str, SimulatedBroker] = {}
        self.disks: dict[str, SimulatedDisk] = {}
        # Crashed brokers that will be started again.
        self.returning: set[str] = set()
        self.clients: list[SimulatedClient] = []
        self.subscriptions: list[SimulatedSubscription] = []
        self.published: list[PublishedEvent] = []
        # What honest clients have noticed of hostile ones: sentences.
        self.disturbed: list[str] = []
        # When a fault took events away that had been acknowledged: both copies of topics, or all.
        self.taken_away: list[float] = []
        # Gaps that clients were told of.
        self.gaps: list[ToldGap] = []
        # Brokers that ended, and when: crashed or stopped.
        self.ended: list[tuple[str, float]] = []
        # What a publisher waits for.
        self.any_ack: Callable[[], Ack] = lambda: Ack.REPLICATED
        # Whether an acknowledged event must have reached everybody, or been told to be lost.
        self.is_owed: Callable[[PublishedEvent], bool] = lambda event: True
        # Whether what is published again at another broker is another event, with its own stamp.
        self.stamps_anew = False
        # Called when a publisher is told that an event is safe.
        self.on_acknowledged: Callable[[PublishedEvent], None] = lambda event: None
        # The store of a broker's life that begins, if it is one.
        self.store_of: Callable[[str, int], SimulatedStore | None] = lambda broker_id, life: None
        # Called when a broker has started, when one has died, and when one answers a manager.
        self.on_started: Callable[[SimulatedBroker], None] = lambda broker: None
        # Clients that were sent where they had just failed, as sentences.
        self.sent_back: list[str] = []
        self.on_died: Callable[[str], None] = lambda broker_id: None
        self.on_reply: Callable[[SimulatedBroker, StepReply], None] = lambda broker, reply: None
        self._lives = 0

    def start_broker(self, broker_id: str, seeds: Sequence[str]) -> SimulatedBroker:
        self._lives += 1
        self.returning.discard(broker_id)
        self.trace.note(f"{broker_id} starts, life {self._lives}")
        broker = SimulatedBroker(self, broker_id, self._lives, seeds)
        self.brokers[broker_id] = broker
        self.on_started(broker)
        return broker

    def crash_broker(self, broker_id: str, *, noticed: bool) -> None:
        """Kill a broker. If that is noticed, connections to it are refused from now on."""
        self.trace.note(f"{broker_id} crashes")
        self.brokers[broker_id].stop()
        self.on_died(broker_id)
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

    def broker_at(self, address: str, door: str = "") -> SimulatedBroker | None:
        """The broker that serves clients there now; by the name that it has for such clients."""
        broker_id = address.removesuffix(f".{door}") if door else address
        broker = self.brokers.get(broker_id)
        if broker is None or broker.address_by(door) != address:
            return None
        return broker if broker.alive and not broker.leaving else None

    def any_broker(self) -> SimulatedBroker | None:
        steady = [broker for broker in self.living() if not broker.leaving]
        return self.rng.choice(steady) if steady else None

    def add_client(self, name: str, *, kept: bool = False, door: str = "") -> SimulatedClient:
        client = SimulatedClient(self, name, kept=kept, door=door)
        self.clients.append(client)
        client.connect()
        return client
