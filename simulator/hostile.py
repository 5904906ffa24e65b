"""Clients that would be in others' way, with a token of their own or none.

They know what others publish under, and what their sessions are called: more than anybody could.
What they say, no honest client may notice: not an event lost, none that nobody published, and no
connection ended. Checkers see the first; the rest clients note themselves (`World.disturbed`).

A new deed is a function and a line in `DEEDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING

from broker_agent.core.base.effects import ConnectionId
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Cursor,
    Echo,
    Filter,
    Hello,
    Received,
    Subscribe,
    Unsubscribe,
)
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Attribute,
    Bundle,
    Event,
    Events,
    Publication,
    TermSeq,
)
from simulator.clients import CLIENT_DELAY_S, FORGED, PublishedEvent
from simulator.scenario import START_S
from simulator.tokens import CLAIMING, HOSTILE

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

CLIENTS = 2
PAUSE_MIN_S = 0.3
PAUSE_MAX_S = 3.0
# A connection is left open for this long at most.
STAYS_MAX_S = 8.0
# How far back they look for somebody to be in the way of.
_LATEST = 50
_NUMBER_MAX = (1 << 63) - 1


def _frame(*messages: ClientMessage) -> bytes:
    return ClientFrame(messages=messages).SerializeToString()


class HostileClient:
    def __init__(self, run: SimulatedRun, name: str, rng: Random) -> None:
        self.rng = rng
        self._run = run
        self._name = name
        self._connections = 0
        # Of others: what their session is called, and the broker that has it.
        self._sessions: dict[str, tuple[str, str]] = {}

    # ---- what brokers want of a client: it does not care ----------------------------------------

    def on_frame(self, connection: ConnectionId, raw: bytes) -> None:
        pass

    def lost_connection(self, connection: ConnectionId) -> None:
        pass

    # ---- doing things ---------------------------------------------------------------------------

    def act(self) -> None:
        # Who subscribes to everything at the last moment leaves no time for trees to settle.
        if self._run.scheduler.now_s >= self._run.scenario.quiet_from_s:
            return
        later = self._run.scheduler.after
        later(self.rng.uniform(PAUSE_MIN_S, PAUSE_MAX_S), self.act)
        brokers = [broker for broker in self._run.world.living() if not broker.leaving]
        if not brokers:
            return
        self._spy()
        broker = self.rng.choice(brokers)
        what = self.rng.choice(tuple(DEEDS))
        broker, frames = DEEDS[what](self, broker)
        self._run.trace.note(f"{self._name} at {broker.address}: {what}")
        self._connections += 1
        connection = ConnectionId(f"{self._name}/{self._connections}")
        broker.connect(connection, self)
        for raw in frames:
            later(CLIENT_DELAY_S, partial(broker.on_client_frame, connection, raw))
        later(self.rng.uniform(0.1, STAYS_MAX_S), lambda: broker.disconnect(connection))

    def hello(self, token: str = HOSTILE, client_id: str = "", **more: object) -> ClientMessage:
        name = client_id or f"{self._name}-{self._connections}"
        hello = Hello(protocol=1, client_id=name, token=token, **more)  # type: ignore[arg-type]
        return ClientMessage(hello=hello)

    def _spy(self) -> None:
        for client in self._run.world.clients:
            session_id = client.core.reading.session_id
            if session_id and client.broker is not None:
                self._sessions[client.name] = session_id, client.broker.address

    def victim(self) -> tuple[str, str, str]:
        """Somebody who has a session, best one who is not there; what that is called, and where."""
        if not self._sessions:
            return "c0", "b0/1/1", "b0"
        absent = [c.name for c in self._run.world.clients if c.broker is None and c.kept]
        name = self.rng.choice([n for n in absent if n in self._sessions] or [*self._sessions])
        return name, *self._sessions[name]

    def broker_at(self, address: str) -> SimulatedBroker | None:
        return self._run.world.broker_at(address)

    def published(self) -> PublishedEvent | None:
        """Something that somebody published lately."""
        latest = self._run.world.published[-_LATEST:]
        return self.rng.choice(latest) if latest else None

    def forged(self, *, count: int = 1, void: bool = False, events: bool = True) -> ClientMessage:
        """As from another publisher, with the number that comes next."""
        last = self.published()
        size = Attribute(name="size", whole=self.rng.randrange(10))
        forged = Events(events=[Event(payload=FORGED, attributes=[size])], attributed=True)
        publication = Publication(
            topic=last.topic if last else "topic/0",
            publisher=last.publisher if last else 2,
            first_number=last.number + 1 if last else 1,
            count=count,
            settled=last.number if last else 0,
            ack=self.rng.choice((AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_REPLICATED)),
            events=forged.SerializeToString() if events else b"",
            void=void,
        )
        return ClientMessage(publication=publication)


# ---- deeds: where, and what is said -------------------------------------------------------------

Deed = Callable[[HostileClient, "SimulatedBroker"], tuple["SimulatedBroker", list[bytes]]]


def _say_nothing(_: HostileClient, broker: SimulatedBroker) -> tuple[SimulatedBroker, list[bytes]]:
    return broker, []


def _say_garbage(me: HostileClient, broker: SimulatedBroker) -> tuple[SimulatedBroker, list[bytes]]:
    garbage = [me.rng.randbytes(me.rng.choice((1, 10, 300))) for _ in range(3)]
    return broker, [_frame(me.hello()), *garbage] if me.rng.random() < 0.5 else garbage


def _say_too_much(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    many = b"\x0a\x00" * 40_000
    return broker, [_frame(me.hello()), many] if me.rng.random() < 0.5 else [many]


def _say_almost_right(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    """What a client says, with some bytes changed."""
    topic = Filter(pattern="topic/0", where="size < 5")
    said = [
        _frame(me.hello()),
        _frame(ClientMessage(subscribe=Subscribe(request=1, filters=[topic])), me.forged()),
        _frame(ClientMessage(unsubscribe=Unsubscribe(request=2, filters=[topic]))),
    ]
    for i in range(me.rng.randint(0, 1), len(said)):
        raw = bytearray(said[i])
        for _ in range(me.rng.randint(1, 4)):
            raw[me.rng.randrange(len(raw))] = me.rng.getrandbits(8)
        said[i] = bytes(raw)
    return broker, said


def _say_large_numbers(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    """Where nobody has been, and what nobody was sent."""
    topic = f"topic/{me.rng.randrange(4)}"
    seen = [TermSeq(term=me.rng.choice((1, _NUMBER_MAX)), seq=_NUMBER_MAX) for _ in range(3)]
    filters = [Filter(pattern=topic), Filter(pattern="#", where="size < 3")]
    subscribe = Subscribe(
        request=(1 << 64) - 1,
        filters=filters,
        resume=True,
        cursors=[Cursor(topic=topic, seen=seen)],
    )
    return broker, [
        _frame(me.hello(expiry_s=1, session_id="b0/1/1", former_broker="b0")),
        _frame(ClientMessage(subscribe=subscribe)),
        _frame(ClientMessage(received=Received(serial=(1 << 64) - 1))),
        _frame(*[ClientMessage(echo=Echo(request=(1 << 64) - 1))] * 100),
    ]


def _publish_for_another(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    return broker, [_frame(me.hello(), me.forged(void=me.rng.random() < 0.3))]


def _publish_bundle_for_another(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    """With columns that are equally long, or not, and numbers that can be, or not."""
    last = me.published()
    number = last.number + 1 if last else 1
    bundle = Bundle(
        publisher=last.publisher if last else 2,
        topics=[last.topic if last else "topic/0"] * 2,
        numbers=[number, number + 1],
        published_us=[0, 0],
        sizes=[len(FORGED)] * 2,
        payloads=FORGED * 2,
        pending=[0, me.rng.choice((0, 1, (1 << 32) - 1))],
        ack=me.rng.choice((AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_REPLICATED)),
    )
    what = me.rng.randrange(5)
    if what == 0:
        bundle.numbers[1] = me.rng.choice((0, _NUMBER_MAX, (1 << 64) - 1))
    elif what == 1:
        bundle.sizes[1] = me.rng.choice((0, (1 << 32) - 1))
    elif what == 2:
        bundle.topics.append("topic/1")
    elif what == 3:
        bundle.terms.extend([1, 1])
        bundle.seqs.extend([number + 1, number + 2])
    return broker, [_frame(me.hello(), ClientMessage(bundle=bundle))]


def _skip_anothers_numbers(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    """A publication that is refused, and passes over the numbers that come next."""
    return broker, [_frame(me.hello(), me.forged(count=(1 << 32) - 1, events=False))]


def _give_anothers_session_up(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    """As its client would that comes from there: by its id, or by the one that comes next."""
    name, session_id, address = me.victim()
    if me.rng.random() < 0.3:
        session_id = f"{session_id.rpartition('/')[0]}/{me.rng.randint(1, 30)}"
    hello = me.hello(
        client_id=name, session_id=session_id, former_broker=address, attempt=(1 << 64) - 1
    )
    return broker, [_frame(hello)]


def _take_anothers_session(
    me: HostileClient, broker: SimulatedBroker
) -> tuple[SimulatedBroker, list[bytes]]:
    name, session_id, address = me.victim()
    token = me.rng.choice((HOSTILE, "", CLAIMING + "?"))
    clean = me.rng.random() < 0.5
    hello = me.hello(token, name, clean=clean, session_id=session_id)
    return me.broker_at(address) or broker, [_frame(hello)]


DEEDS: Mapping[str, Deed] = MappingProxyType(
    {
        "says nothing": _say_nothing,
        "says garbage": _say_garbage,
        "says too much": _say_too_much,
        "says what is almost right": _say_almost_right,
        "says large numbers": _say_large_numbers,
        "publishes for another": _publish_for_another,
        "publishes a bundle for another": _publish_bundle_for_another,
        "skips another's numbers": _skip_anothers_numbers,
        "gives another's session up": _give_anothers_session_up,
        "takes another's session": _take_anothers_session,
    }
)


def plan_hostile_clients(run: SimulatedRun, rng: Random) -> None:
    for i in range(CLIENTS):
        client = HostileClient(run, f"mallory{i}", Random(rng.getrandbits(64)))
        run.scheduler.after(rng.uniform(START_S, 2 * START_S), client.act)
    run.checks.append(lambda: run.world.disturbed)
