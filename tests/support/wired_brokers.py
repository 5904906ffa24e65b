"""Brokers' cores wired to each other in memory, in virtual time, with clients that are just names.

Nothing is lost on the way, and nothing is asked of a core but through its public inputs. After each
input it must be all that it should be, and have nothing left to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import (
    BrokerEffect,
    ConnectionId,
    RememberAssignment,
    SendFrame,
)
from broker_agent.core.base.identity import Identity
from broker_agent.core.broker import Broker
from broker_agent.core.clients.reception import CLIENT_PROTOCOL
from broker_agent.core.invariants import check_invariants
from broker_agent.core.options import BrokerOptions
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import ReadTopics, TopicsAnswer
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.stored_runs import run_of
from broker_agent.core.stores.store_options import StoreAssignment, StoreOptions
from broker_agent.doors.frames import take_output
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter as WantedFilter
from dynatops.kit.topics import STREAMS
from dynatops.v1 import overlay_pb2
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Cursor,
    Filter,
    Hello,
    ServerFrame,
    ServerMessage,
    Subscribe,
    Unsubscribe,
)
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Attribute,
    Event,
    Events,
    PeerFrame,
    Publication,
    Run,
    TermSeq,
)
from simulator.disk import SimulatedDisk
from tests.support.kept_files import KeptFiles
from tests.support.routings import MakeRouting

TICK_S = 0.05
# Whatever several brokers have to agree about takes no longer.
SETTLED_S = 20.0


@dataclass(slots=True)
class WiredClient:
    """What a client remembers: where it is, and how far it has read."""

    broker: str
    session_id: str = ""
    publisher: int = 0
    # What it has been told, all kinds of it but events.
    said: list[ServerMessage] = field(default_factory=list)
    # (topic, payload), as they came.
    events: list[tuple[str, bytes]] = field(default_factory=list)
    # By name: how far in each term.
    seen: dict[str, dict[int, int]] = field(default_factory=dict)
    # The last that it gave to an event, by publisher and topic.
    numbers: dict[tuple[int, str], int] = field(default_factory=dict)
    requests: int = 0
    attempts: int = 0

    def cursors(self) -> list[Cursor]:
        return [
            Cursor(topic=name, seen=[TermSeq(term=t, seq=s) for t, s in sorted(seen.items())])
            for name, seen in self.seen.items()
        ]

    def kinds(self) -> list[str]:
        return [str(message.WhichOneof("body")) for message in self.said]

    def payloads(self, topic: str = "") -> list[bytes]:
        return [payload for name, payload in self.events if not topic or name == topic]

    def acknowledged(self, topic: str) -> int:
        """Up to which of its events on the topic it has been told."""
        singly = [m.acknowledged for m in self.said if m.HasField("acknowledged")]
        numbers = [ack.number for ack in singly if ack.topic == topic]
        for message in self.said:
            columns = message.acknowledgements
            numbers += [
                n for t, n in zip(columns.topics, columns.numbers, strict=True) if t == topic
            ]
        return max(numbers, default=0)

    def note(self, message: ServerMessage) -> None:
        if message.HasField("run"):
            self._read(message.run)
            return
        if message.HasField("bundle"):
            bundle = Bundle.from_wire(message.bundle)
            for place in range(len(bundle)):
                self._read(bundle.run_at(place))
            return
        self.said.append(message)
        if message.HasField("welcome"):
            self.session_id = message.welcome.session_id
            self.publisher = message.welcome.publisher
        for cursor in message.subscribed.positions:
            for entry in cursor.seen:
                self._stand(cursor.topic, entry.term, entry.seq)

    def _read(self, run: Run) -> None:
        self._stand(run.topic, run.term, run.first_seq + run.count - 1)
        if STREAMS in self.seen:
            self._stand(STREAMS, run.term, run.first_seq + run.count - 1)
        self.events += [
            (run.topic, event.payload) for event in Events.FromString(run.events).events
        ]

    def _stand(self, name: str, term: int, seq: int) -> None:
        terms = self.seen.setdefault(name, {})
        terms[term] = max(terms.get(term, 0), seq)


class WiredBrokers:
    def __init__(
        self,
        routing: MakeRouting,
        names: Sequence[str],
        *,
        selection: bool = False,
        logged_rows_max: int = 0,
        stores: Mapping[str, Sequence[str]] | None = None,
        stores_needed: int = 2,
        capacity: int = 0,
    ) -> None:
        """`stores`: by broker, what it keeps in a log; `capacity`: how many topics each may be
        told to."""
        self.now_s = 0.0
        self._capacity = capacity
        # What managers have told them, on disk.
        self.assigned: dict[str, StoreAssignment] = {}
        self.stores = stores or {}
        # What the logs are in, and those that are open.
        self._log_files = {name: KeptFiles() for name in self.stores}
        self.logs: dict[str, EventLog] = {}
        self._settings = CoreSettings(stores_needed=stores_needed)
        self.cores: dict[str, Broker] = {}
        self.clients: dict[str, WiredClient] = {}
        self.effects: list[tuple[str, BrokerEffect]] = []
        self._make_routing = routing(names)
        self._names = names
        self._selection = SelectionSettings(enabled=selection)
        self._logged_rows_max = logged_rows_max
        self._disks = {name: SimulatedDisk() for name in names}
        self._frames: deque[tuple[str, bytes]] = deque()
        self._lives = 0
        for name in names:
            self.begin(name)
            self.run(0.5)
        self.run_until_ready()

    def begin(self, name: str) -> None:
        self._lives += 1
        core = Broker(
            Identity(name, name, self._lives),
            self._make_routing,
            self._settings,
            Random(self._lives),
            self._options(name),
        )
        core.restore(self._disks[name].read(), self.now_s)
        seeds = [other for other in self.cores if other != name]
        self.cores[name] = core
        self._perform(name, core.start(seeds, self.now_s))

    def _open_log(self, name: str) -> StoreOptions:
        log = EventLog.open(self._log_files[name], LogSettings(), self._lives)
        self.logs[name] = log
        assigned = self.assigned.get(name)
        keep = self.stores[name] if assigned is None else assigned.patterns
        return StoreOptions(
            [WantedFilter.parse(pattern) for pattern in keep],
            log.extents(),
            capacity=self._capacity,
            assigned=assigned,
        )

    def _options(self, name: str) -> BrokerOptions:
        return BrokerOptions(
            selection=self._selection,
            saving=True,
            logged_rows_max=self._logged_rows_max,
            store=self._open_log(name) if name in self.stores else None,
        )

    # ---- driving --------------------------------------------------------------------------------

    def _perform(self, name: str, effects: Iterable[BrokerEffect]) -> None:
        assert check_invariants(self.cores[name]) == []
        for effect in effects:
            if isinstance(effect, SendFrame):
                self._frames.append((effect.address, effect.frame.SerializeToString()))
            elif isinstance(effect, RememberAssignment):
                self.assigned[name] = effect.assignment
                epoch = effect.assignment.epoch
                remembered = self.cores[name].assignment_remembered(epoch, "", self.now_s)
                self._perform(name, remembered)
            else:
                self.effects.append((name, effect))

    def _deliver(self) -> None:
        while self._frames:
            address, raw = self._frames.popleft()
            core = self.cores.get(address)
            if core is not None:
                frame = PeerFrame.FromString(raw)
                self._perform(address, core.on_peer_frame(frame, self.now_s))

    def _store(self, name: str) -> None:
        core, log = self.cores[name], self.logs[name]
        while (append := core.take_unstored(1 << 20, 1_000, self.now_s)) is not None:
            for outcome in log.commit([append]):
                self._perform(name, core.log_answered(outcome, self.now_s))

    def stored(self, name: str, topic: str) -> list[bytes]:
        """Payloads of a topic in the log of this store, in its order."""
        request: ReadTopics | None = ReadTopics(1, topic)
        runs: list[Run] = []
        while request is not None:
            answer = self.logs[name].read(request)
            assert isinstance(answer, TopicsAnswer)
            runs += [run for row in answer.rows if (run := run_of(row)) is not None]
            request = answer.following
        return [e.payload for run in runs for e in Events.FromString(run.events).events]

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            for name, core in list(self.cores.items()):
                self._perform(name, core.tick(self.now_s))
                self._save(name)
                if name in self.stores:
                    self._store(name)
            self._deliver()
        self._hear()

    def _save(self, name: str) -> None:
        core = self.cores[name]
        changes = core.unsaved()
        if changes is not None:
            self._disks[name].write(changes)
            self._perform(name, core.saved(self.now_s))

    def run_until_ready(self) -> None:
        end_s = self.now_s + SETTLED_S
        while any(core.status().unready for core in self.cores.values()):
            assert self.now_s < end_s, "the brokers do not come together"
            self.run(0.5)
        self.run(5.0)

    def files(self, name: str) -> KeptFiles:
        """Of the log of this store."""
        return self._log_files[name]

    def forget_disk(self, name: str) -> None:
        """Another one takes its place."""
        self._log_files[name] = KeptFiles()

    def crash(self, name: str) -> None:
        """It is gone, with what was not on its disk, and its clients' connections."""
        del self.cores[name]

    def restart(self, *names: str) -> None:
        """All at once."""
        for name in names:
            self.begin(name)
        self.run_until_ready()

    def leave(self, name: str) -> None:
        self._perform(name, self.cores[name].leave(self.now_s))
        self._deliver()

    def step(self, name: str, step: Step) -> None:
        """A manager says it to this broker."""
        self._perform(name, self.cores[name].on_step(step, self.now_s))
        self._deliver()

    # ---- clients --------------------------------------------------------------------------------

    def _say(self, client: str, **body: Any) -> None:
        name = self.clients[client].broker
        frame = ClientFrame(messages=[ClientMessage(**body)])
        core = self.cores[name]
        self._perform(name, core.on_client_frame(ConnectionId(client), frame, self.now_s))
        self._deliver()

    def _hear(self) -> None:
        for name, client in self.clients.items():
            core = self.cores.get(client.broker)
            while core is not None and (raw := take_output(core, ConnectionId(name), 1 << 20)):
                frame = ServerFrame.FromString(raw)
                for message in frame.messages:
                    client.note(message)

    def connect(
        self, client: str, broker: str, keep_s: int = 0, *, bundles: bool = False
    ) -> WiredClient:
        """Come, or come back, or go on here with what it has read elsewhere."""
        known = self.clients.get(client)
        former = known.broker if known is not None else ""
        me = self.clients[client] = known or WiredClient(broker)
        hello = Hello(
            protocol=CLIENT_PROTOCOL,
            client_id=client,
            expiry_s=keep_s,
            session_id=me.session_id,
            former_broker_id=former,
            former_broker=former,
            attempt=me.attempts,
            bundles=bundles,
            publisher_secret=client.encode().ljust(16, b"."),
        )
        me.broker, me.attempts = broker, me.attempts + 1
        opened = self.cores[broker].open_connection(ConnectionId(client), self.now_s)
        self._perform(broker, opened)
        self._say(client, hello=hello)
        self.run(TICK_S)
        return me

    def disconnect(self, client: str) -> None:
        self._hear()
        name = self.clients[client].broker
        closed = self.cores[name].close_connection(ConnectionId(client), self.now_s)
        self._perform(name, closed)
        self._deliver()

    def subscribe(
        self, client: str, *filters: str | tuple[str, str], resume: bool = False
    ) -> WiredClient:
        """Until it is confirmed. `resume`: it goes on where it stands."""
        me = self.clients[client]
        me.requests += 1
        pairs = [wanted if isinstance(wanted, tuple) else (wanted, "") for wanted in filters]
        subscribe = Subscribe(
            request=me.requests,
            filters=[Filter(pattern=pattern, where=where) for pattern, where in pairs],
            resume=resume,
            cursors=me.cursors() if resume else (),
        )
        self._say(client, subscribe=subscribe)
        end_s = self.now_s + SETTLED_S
        while not any(m.subscribed.request == me.requests for m in me.said):
            assert self.now_s < end_s, "a request to subscribe is not confirmed"
            self.run(TICK_S)
        return me

    def leave_while_resuming(self, client: str, pattern: str) -> None:
        """Before its broker has heard of any other about what it missed."""
        name = self.clients[client].broker
        subscribe = Subscribe(request=1, filters=[Filter(pattern=pattern)], resume=True)
        frame = ClientFrame(messages=[ClientMessage(subscribe=subscribe)])
        core = self.cores[name]
        self._perform(name, core.on_client_frame(ConnectionId(client), frame, self.now_s))
        self.disconnect(client)

    def unsubscribe(self, client: str, *patterns: str) -> None:
        filters = [Filter(pattern=pattern) for pattern in patterns]
        self._say(client, unsubscribe=Unsubscribe(request=99, filters=filters))
        self.run(TICK_S)

    def publish(
        self,
        client: str,
        topic: str,
        *payloads: bytes,
        ack: AckLevel.ValueType = AckLevel.ACK_LEVEL_REPLICATED,
        **attributes: int,
    ) -> None:
        values = [Attribute(name=name, whole=value) for name, value in attributes.items()]
        events = [Event(payload=payload, attributes=values) for payload in payloads]
        self._publish(client, topic, events, ack)

    def publish_sizes(self, client: str, topic: str, sizes: Iterable[int]) -> None:
        """One publication of several events, each of another size, which is what it says."""
        events = [
            Event(payload=str(size).encode(), attributes=[Attribute(name="size", whole=size)])
            for size in sizes
        ]
        self._publish(client, topic, events, AckLevel.ACK_LEVEL_REPLICATED)

    def _publish(
        self, client: str, topic: str, listed: Sequence[Event], ack: AckLevel.ValueType
    ) -> None:
        me = self.clients[client]
        events = Events(events=listed, attributed=any(event.attributes for event in listed))
        # What is not acknowledged is another publisher's, with numbers of its own.
        publisher = me.publisher | (ack == AckLevel.ACK_LEVEL_NONE)
        first = me.numbers.get((publisher, topic), 0) + 1
        me.numbers[publisher, topic] = first + len(listed) - 1
        publication = Publication(
            topic=topic,
            publisher=publisher,
            first_number=first,
            count=len(listed),
            ack=ack,
            events=events.SerializeToString(),
        )
        self._say(client, publication=publication)

    def publish_together(self, client: str, topics: Sequence[str], payload: bytes) -> None:
        """One event on each, in a bundle."""
        me = self.clients[client]
        for topic in topics:
            me.numbers[me.publisher, topic] = me.numbers.get((me.publisher, topic), 0) + 1
        bundle = overlay_pb2.Bundle(
            publisher=me.publisher,
            topics=topics,
            numbers=[me.numbers[me.publisher, topic] for topic in topics],
            published_us=[0] * len(topics),
            sizes=[len(payload)] * len(topics),
            payloads=payload * len(topics),
            ack=AckLevel.ACK_LEVEL_REPLICATED,
            pending=[0] * len(topics),
        )
        self._say(client, bundle=bundle)
