"""Applications in virtual time: the real client core, and a memory of all that it was told.

A simulated client goes on at another broker when its own dies, when its connection drops, and when
it is sent away. A kept one may also lose its memory, as a process that is started again does: its
session is then all there is. If its broker has crashed, too, it waits until that is back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from broker_agent.core.base.effects import ConnectionId
from dynatops.client.core.client_core import ClientCore, Item, SessionWishes
from dynatops.client.core.destinations import FailedLately
from dynatops.client.core.publications import Ack, Confirmed, ConfirmedColumns, Rejected
from dynatops.client.core.reading import Arrived, ArrivedBundle, FilterKey
from dynatops.kit.filters import (
    Filter,
    Value,
    attributes_of,
    attributes_to_wire,
    pattern_matches,
)
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ErrorCode,
    Goodbye,
    MissCause,
    Missed,
    Redirect,
    ServerFrame,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Events
from simulator.tokens import is_claimed, token_of

if TYPE_CHECKING:
    from simulator.world import SimulatedBroker, World

CLIENT_DELAY_S = 0.002
# The door of clients that know brokers by other names than brokers do.
OUTSIDE = "outside"
# What no client publishes.
FORGED = b"forged"
# With these a broker ends what an honest client has done nothing to end.
_UNDESERVED = (ErrorCode.ERROR_CODE_PROTOCOL, ErrorCode.ERROR_CODE_NOT_AUTHENTICATED)
OUTPUT_BYTES_MAX = 256 << 10
KEPT_S = 600
TELL_PERIOD_S = 0.2
# Of the kept clients of a broker that crashes and comes back this share waits for it, and this one
# has no memory then.
WAITS = 0.8
FORGETS = 0.5
# A client that is sent to another broker waits so long for what is under way.
REDIRECT_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class HeardEvent:
    topic: str
    publisher: int
    number: int
    term: int
    seq: int
    at_s: float
    # It was said to be missing, and to come late.
    is_late: bool
    # Which of its lives the client was in: it remembers nothing of another.
    life: int


@dataclass(slots=True)
class SimulatedSubscription:
    """What one client heard through one filter, from its confirmation until its end."""

    client: str
    filter: Filter
    since_s: float
    until_s: float | None = None
    heard: list[HeardEvent] = field(default_factory=list)
    # Topic -> when it was first told that its history is broken: both copies were out of reach.
    broken_s: dict[str, float] = field(default_factory=dict)
    # Topic (or, where not even names are known, pattern) -> when it was last told of a gap.
    told_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToldGap:
    """A client was told that it misses something."""

    client: str
    topic: str
    cause: MissCause.ValueType
    at_s: float
    # When its process began, if it is not its first: it knows nothing of its past.
    process_since_s: float


@dataclass(slots=True)
class PublishedEvent:
    topic: str
    publisher: int
    number: int
    at_s: float
    # The one attribute, which filters may ask about; None: it has none.
    size: int | None
    acknowledged_s: float | None = None
    # When its publisher was told that too few stores have it, though it is published.
    not_stored_s: float | None = None
    # What its publisher waits for; and the broker that said so.
    ack: Ack = Ack.REPLICATED
    broker: str = ""
    # How often it was sent again, on another connection.
    resent: int = 0

    @property
    def attributes(self) -> dict[str, Value]:
        return attributes_with(self.size)


def attributes_with(size: int | None) -> dict[str, Value]:
    return {} if size is None else {"size": size}


class SimulatedClient:
    def __init__(self, world: World, name: str, *, kept: bool, door: str = "") -> None:
        self.name = name
        self.kept = kept
        self.core: ClientCore
        self.subscriptions: dict[FilterKey, SimulatedSubscription] = {}
        self._world = world
        self._broker: SimulatedBroker | None = None
        self._connection = ConnectionId("")
        # By which it comes: it knows brokers by their names of that side, and no others.
        self.door = door
        self._lives = 0
        self._connections = 0
        self._unacknowledged: dict[tuple[str, int], PublishedEvent] = {}
        # Topic, publisher and number of events that a history lacks.
        self._said_missing: set[tuple[str, int, int]] = set()
        # The broker that has its session, and all its filters: a process that dies on its way to
        # another finds none of them there.
        self._session_at = ""
        # Brokers that it lost or could not reach, as it tells whichever it comes to.
        self._failed = FailedLately()
        self._sent_by = ""
        # Until then the application takes nothing of what comes.
        self._pauses_until_s = 0.0
        self._be_born()
        self._tell()

    def _be_born(self) -> None:
        wishes = SessionWishes(expiry_s=KEPT_S if self.kept else 0, token=token_of(self.name))
        self._lives += 1
        self._born_s = self._now() if self._lives > 1 else -math.inf
        self.core = ClientCore(self.name, self._world.rng.randbytes(16), wishes)

    @property
    def broker(self) -> SimulatedBroker | None:
        return self._broker

    def _name_of(self, broker: SimulatedBroker) -> str:
        """As it knows it."""
        return broker.address_by(self.door)

    def _now(self) -> float:
        return self._world.scheduler.now_s

    # ---- connections ----------------------------------------------------------------------------

    def connect(self, preferred: str = "", *, redirected: bool = False) -> None:
        if self._broker is not None:
            return
        broker = self._world.broker_at(preferred, self.door)
        if broker is None and redirected:
            # Nobody listens there: back to the broker that sent it, which is told.
            self._failed.note_failure(preferred, self._now())
            broker = self._world.broker_at(self._sent_by, self.door)
            redirected = False
        broker = broker or self._world.any_broker()
        if broker is None:
            self._world.scheduler.after(0.5, self.connect)
            return
        self._broker = broker
        self._connections += 1
        self._connection = ConnectionId(f"{self.name}/{self._connections}")
        broker.connect(self._connection, self, self.door)
        avoid, name = self._failed.latest(self._now()), self._name_of(broker)
        self._send(self.core.connected(name, redirected=redirected, avoid=avoid))

    def lost_connection(self, connection: ConnectionId) -> None:
        broker = self._broker
        if connection != self._connection or broker is None:
            return
        self._broker = None
        self._failed.note_failure(self._name_of(broker), self._now())
        if broker.alive and not broker.leaving:
            self._disturbed(f"was cut off by {broker.address}")
        # What was not confirmed, the broker need not know of when it is back.
        may_forget = self.core.is_settled and not self._unacknowledged
        self.core.disconnected()
        again = self.connect
        if self.kept and not broker.alive and broker.broker_id in self._world.returning:
            what = self._world.rng.random()
            if what < WAITS:
                again = partial(self._wait_for, broker)
            if what < FORGETS and may_forget:
                self._forget()
        self._world.scheduler.after(self._world.rng.uniform(0.1, 0.5), again)

    def _wait_for(self, broker: SimulatedBroker) -> None:
        """Until it has been started again."""
        if self._broker is None and broker.broker_id in self._world.returning:
            self._world.scheduler.after(0.2, partial(self._wait_for, broker))
        else:
            self.connect(self._name_of(broker))

    def drop(self) -> None:
        """The connection breaks; half of the time the broker is there again."""
        broker, connection = self._broker, self._connection
        if broker is None:
            return
        again = self._name_of(broker) if self._world.rng.random() < 0.5 else ""
        self._failed.note_failure(self._name_of(broker), self._now())
        self._leave(broker, connection)
        pause_s = self._world.rng.uniform(0.05, 1.0)
        self._world.scheduler.after(pause_s, lambda: self.connect(again))

    def _leave(self, broker: SimulatedBroker, connection: ConnectionId) -> None:
        self._broker = None
        self.core.disconnected()
        # The broker may notice before or after the client is elsewhere.
        delay_s = self._world.rng.choice((CLIENT_DELAY_S, 0.6))
        self._world.scheduler.after(delay_s, lambda: broker.disconnect(connection))

    def restart(self) -> None:
        """The process dies, and another starts with the same id at the same broker."""
        broker, connection = self._broker, self._connection
        if broker is None or self._unacknowledged:
            return
        self._leave(broker, connection)
        self._forget()
        self._world.scheduler.after(0.3, lambda: self.connect(self._name_of(broker)))

    def _forget(self) -> None:
        self._be_born()
        self._world.trace.note(f"{self.name} forgets")

    def send_to(self, address: str) -> None:
        """What a broker's redirection comes to, once what is under way has been taken."""
        broker, connection = self._broker, self._connection
        if broker is None or self._name_of(broker) == address:
            return
        self._sent_by = self._name_of(broker)
        self._leave(broker, connection)
        self._world.scheduler.after(CLIENT_DELAY_S, lambda: self.connect(address, redirected=True))

    # ---- what the application does --------------------------------------------------------------

    def subscribe(self, filters: Iterable[FilterKey]) -> None:
        self.core.subscribe(filters)
        self._flush()

    def unsubscribe(self, filters: Iterable[FilterKey]) -> None:
        gone = list(filters)
        for key in gone:
            self._end(key)
        self.core.unsubscribe(gone)
        self._flush()

    def _end(self, key: FilterKey) -> None:
        subscription = self.subscriptions.pop(key, None)
        if subscription is not None:
            subscription.until_s = self._now()

    def publish_together(self, topics: Iterable[str]) -> None:
        """Events without attributes, all in one frame."""
        ack = self._world.any_ack()
        for topic in topics:
            self._take_in(topic, None, ack)
        self._flush()

    def publish(self, topic: str) -> None:
        self._take_in(topic, self._world.rng.randrange(10), self._world.any_ack())
        self._flush()

    def pause_reading(self, lasts_s: float) -> None:
        self._pauses_until_s = self._now() + lasts_s

    def _take_in(self, topic: str, size: int | None, ack: Ack) -> None:
        now_s = self._now()
        wire = attributes_to_wire(attributes_with(size)) if size is not None else None
        number = self.core.publish(topic, b"", ack, round(now_s * 1e6), wire)
        publisher = self.core.publications.publisher
        event = PublishedEvent(topic, publisher, number, now_s, size, ack=ack)
        if ack is not Ack.NONE:
            self._unacknowledged[topic, number] = event
        else:
            # As another publisher: what is sent again has no numbers in common with what is not.
            event.publisher |= 1
        self._world.published.append(event)

    def _tell(self) -> None:
        """The application has taken all that it had; its broker is told now and then. It reads
        nothing before its subscriptions are confirmed."""
        if self.core.is_settled and self._now() >= self._pauses_until_s:
            self.core.taken(self.core.reading.had)
        if (frame := self.core.take_frame(OUTPUT_BYTES_MAX, tell=True)) is not None:
            self._send(frame)
        self._world.scheduler.after(TELL_PERIOD_S, self._tell)

    # ---- frames ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        while (frame := self.core.take_frame(OUTPUT_BYTES_MAX)) is not None:
            self._send(frame)

    def _send(self, frame: ClientFrame) -> None:
        broker, connection, raw = self._broker, self._connection, frame.SerializeToString()
        if broker is not None:
            self._world.scheduler.after(
                CLIENT_DELAY_S, lambda: broker.on_client_frame(connection, raw)
            )

    def on_frame(self, connection: ConnectionId, raw: bytes) -> None:
        if connection != self._connection or self._broker is None:
            return
        for item in self.core.on_frame(ServerFrame.FromString(raw)):
            if not self._took(item):
                self._on_answer(item)
        if self._broker is not None and self.core.welcome is not None and self.core.is_settled:
            self._session_at = self._name_of(self._broker)
        self._flush()

    def _took(self, item: Item) -> bool:
        """Whether it was events, or that some are safe."""
        match item:
            case Arrived():
                self._heard(item)
            case ArrivedBundle(bundle=bundle, places=places):
                for place in places:
                    self._heard(Arrived(bundle.run_at(place), 0, 1))
            case Confirmed(topic=topic, number=number):
                self._confirmed(topic, number)
            case ConfirmedColumns(topics=topics, numbers=numbers):
                for topic, number in zip(topics, numbers, strict=True):
                    self._confirmed(topic, number)
            case Rejected():
                self._rejected(item)
            case _:
                return False
        return True

    def _on_answer(self, item: Item) -> None:
        match item:
            case Welcome():
                self._welcomed(item)
            case Subscribed():
                self._subscribed()
            case Missed():
                self._told_of_loss(item)
            case Redirect(address=address):
                self._redirected(address)
                move = partial(self.send_to, address)
                self._world.scheduler.after(REDIRECT_PATIENCE_S, move)
            case Goodbye():
                self._sent_away(item)

    def _sent_away(self, goodbye: Goodbye) -> None:
        not_let_in = goodbye.code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED
        if not_let_in and not is_claimed(self.name):
            # Somebody else has its id there, which nobody claims: it goes elsewhere.
            self._connection = ConnectionId("")
            self._broker = None
            self.core.disconnected()
            self._world.scheduler.after(self._world.rng.uniform(0.1, 0.5), self.connect)
        elif goodbye.code in _UNDESERVED:
            self._disturbed(f"was sent away: {goodbye.message}")

    def _disturbed(self, how: str) -> None:
        self._world.disturbed.append(f"{self.name} {how}, at {self._now():.3f} s")

    def _welcomed(self, welcome: Welcome) -> None:
        for event in self._unacknowledged.values():
            # Before a client is let in it does not know what it publishes under.
            event.publisher = welcome.publisher
            event.resent += 1
        unclaimed = list(self.core.reading.unclaimed)
        address = self._name_of(self._broker) if self._broker is not None else ""
        for named in welcome.alternatives:
            self._told_of(named)
        self._failed.forget_failure(address)
        if address != self._session_at:
            for key in list(self.subscriptions):
                if key not in self.core.filters and key not in unclaimed:
                    # Its session is elsewhere, and with it all that a new life could go on with.
                    self._end(key)
        if unclaimed:
            self.core.subscribe(unclaimed)

    def _told_of(self, address: str) -> None:
        """A broker of another side is no broker to it."""
        if address.endswith(f".{OUTSIDE}") != bool(self.door):
            text = f"{self.name}, who came by the door {self.door!r}, is told of {address}"
            self._world.sent_back.append(text)

    def _redirected(self, address: str) -> None:
        self._told_of(address)
        failed_s = self._failed.when_s(address, self._now())
        if failed_s is not None:
            ago_s = self._now() - failed_s
            text = f"{self.name} is sent to {address}, which it lost {ago_s:.1f} s ago"
            self._world.sent_back.append(text)

    def _subscribed(self) -> None:
        """What has been asked for on this connection is in place."""
        reading = self.core.reading
        for key in reading.confirmed:
            # What its session was kept with may be in the middle of being brought in there.
            if key not in self.subscriptions and not reading.has_claimed([key]):
                subscription = SimulatedSubscription(self.name, Filter.parse(*key), self._now())
                self.subscriptions[key] = subscription
                self._world.subscriptions.append(subscription)

    def _told_of_loss(self, item: Missed) -> None:
        gap = ToldGap(self.name, item.topic, item.cause, self._now(), self._born_s)
        self._world.gaps.append(gap)
        for (pattern, _), subscription in self.subscriptions.items():
            if not pattern_matches(pattern, item.topic):
                continue
            subscription.told_s[item.topic] = self._now()
            if item.count == 0:
                subscription.broken_s.setdefault(item.topic, self._now())

    def _confirmed(self, topic: str, number: int) -> None:
        done = [key for key in self._unacknowledged if key[0] == topic and key[1] <= number]
        for key in done:
            event = self._unacknowledged.pop(key)
            event.acknowledged_s = self._now()
            event.broker = self._broker.broker_id if self._broker is not None else ""
            self._world.on_acknowledged(event)

    def _rejected(self, rejected: Rejected) -> None:
        for number in range(rejected.first_number, rejected.last_number + 1):
            event = self._unacknowledged.get((rejected.topic, number))
            if event is not None and event.ack is Ack.STORED:
                del self._unacknowledged[rejected.topic, number]
                event.not_stored_s = self._now()

    def _heard(self, item: Arrived) -> None:
        run, now_s = item.run, self._now()
        events = Events.FromString(run.events).events
        said_missing = [
            *range(run.first_number - run.missing, run.first_number),
            *range(1, run.since_number),
        ]
        self._said_missing |= {(run.topic, run.publisher, number) for number in said_missing}
        for index, offset in item.places:
            attributes = attributes_of(events[index].attributes)
            number = run.first_number + offset
            if events[index].payload == FORGED:
                self._disturbed(f"heard event {number} of {run.publisher} that was forged")
            is_late = (run.topic, run.publisher, number) in self._said_missing
            heard = HeardEvent(
                run.topic, run.publisher, number, run.term,
                run.first_seq + offset, now_s, is_late, self._lives,
            )  # fmt: skip
            for subscription in self.subscriptions.values():
                if subscription.filter.matches(run.topic, attributes):
                    subscription.heard.append(heard)
