"""What is on disk is a broker's sessions as they were at one instant, whatever happens and whatever
fails; and what a broker makes of it is the same again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.sessions.session import Session
from broker_agent.doors.frames import FRAMES
from dynatops.v1.client_pb2 import Cursor, Filter, Received, Subscribe, Unsubscribe
from simulator.disk import SimulatedDisk
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

CLIENTS = ("ann", "bob", "eve")
PATTERNS = ("a", "b", "c/x", "c/y", "#", "c/+")
TOPICS = ("a", "b", "c/x", "c/y", "d")
FOREVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What matters of one session."""

    origin_id: str
    expiry_s: float
    policy: int
    filters: frozenset[str]
    pieces: tuple[tuple[int, bytes], ...]
    untold: tuple[tuple[str, int], ...]
    # By topic.
    cursors: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]

    def without(self, confirmed: int) -> Snapshot:
        pieces = tuple(piece for piece in self.pieces if piece[0] > confirmed)
        return replace(self, pieces=pieces)


def snapshot_of(broker: LoneBroker, session: Session) -> Snapshot:
    subscriptions = ring_of(broker.core).subscriptions
    cursors = {
        topic: tuple((entry.term, entry.seq) for entry in feed.reader.seen())
        for topic in subscriptions.topics()
        for feed in subscriptions.readers.feeds_of(topic)
        if session in feed.members and feed.reader.started
    }
    return Snapshot(
        session.origin_id,
        session.expiry_s,
        session.policy,
        frozenset(str(f) for f in broker.core.confirming.settled(session)),
        tuple(
            (piece.serial, piece.content.encoded(FRAMES))
            for piece in session.unconfirmed(0, FOREVER)
        ),
        tuple(sorted((missed.topic, missed.count) for missed in session.untold())),
        tuple(sorted(cursors.items())),
    )


def snapshots_of(broker: LoneBroker) -> dict[str, Snapshot]:
    clients = broker.core.registry.clients
    return {
        name: snapshot_of(broker, session)
        for name, session in clients.items()
        if session.is_kept and not session.closing
    }


def on_disk(disk: SimulatedDisk, settings: CoreSettings) -> dict[str, Snapshot]:
    """What a broker makes of it, and the cursors that it goes on from."""
    broker = LoneBroker(settings, disk=disk, life=99)
    stored = disk.read()
    found: dict[str, Snapshot] = {}
    for name, session in broker.core.registry.clients.items():
        made = snapshot_of(broker, session)
        reached = dict(stored.cursors)
        own = {t: c for (o, t), c in stored.own_cursors.items() if o == session.origin_id}
        reached.update(own)
        cursors = {t: tuple((e.term, e.seq) for e in c.seen) for t, c in reached.items()}
        found[name] = replace(
            made,
            filters=frozenset(str(f) for filters in session.filters.values() for f in filters),
            cursors=tuple(sorted(cursors.items())),
        )
    return found


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.settings = CoreSettings(session_queue_events_max=6, offline_age_max_s=20.0)
        self.broker = LoneBroker(self.settings, disk=SimulatedDisk())
        self.broker.connect("pub")
        self.numbers = dict.fromkeys(TOPICS, 0)
        # As it was at the last flush, which the next one writes; None if that has failed.
        self.captured: dict[str, Snapshot] | None = {}
        self.connected: set[str] = set()
        self.had: dict[str, int] = {}

    # ---- what happens ---------------------------------------------------------------------------

    def connect(self) -> None:
        name = self.rng.choice(CLIENTS)
        if name in self.connected:
            self.broker.disconnect(name)
        self.connected.add(name)
        keep_s = self.rng.choice((0, 60, 600, 600, 600))
        self.broker.connect(name, keep_s=keep_s, clean=self.rng.random() < 0.1)

    def disconnect(self) -> None:
        if self.connected:
            name = self.rng.choice(sorted(self.connected))
            self.connected.discard(name)
            self.broker.disconnect(name)

    def subscribe(self) -> None:
        if self.connected:
            name = self.rng.choice(sorted(self.connected))
            filters = [Filter(pattern=self.rng.choice(PATTERNS)) for _ in range(2)]
            subscribe = Subscribe(request=1, filters=filters)
            if self.rng.random() < 0.3:
                subscribe.resume = True
                subscribe.cursors.extend(self.old_cursors())
            self.broker.say(name, subscribe=subscribe)

    def old_cursors(self) -> list[Cursor]:
        """Somewhat behind the topics that are read here."""
        cursors: list[Cursor] = []
        for topic in TOPICS:
            for feed in ring_of(self.broker.core).subscriptions.readers.feeds_of(topic):
                cursor = Cursor(topic=topic, seen=feed.reader.seen())
                if cursor.seen and cursor.seen[-1].seq:
                    cursor.seen[-1].seq -= 1
                    cursors.append(cursor)
                break
        return cursors

    def unsubscribe(self) -> None:
        if self.connected:
            name = self.rng.choice(sorted(self.connected))
            gone = [Filter(pattern=self.rng.choice(PATTERNS))]
            self.broker.say(name, unsubscribe=Unsubscribe(request=9, filters=gone))

    def publish(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.numbers[topic] += 1
        self.broker.publish("pub", publication(topic, self.numbers[topic]))

    def listen(self) -> None:
        if self.connected:
            self.broker.hear(self.rng.choice(sorted(self.connected)))

    def confirm(self) -> None:
        if self.connected:
            name = self.rng.choice(sorted(self.connected))
            session = self.broker.core.registry.clients.get(name)
            if session is not None:
                serial = self.rng.randint(session.acknowledged, session.serial)
                self.broker.say(name, received=Received(serial=serial))

    def wait(self) -> None:
        self.broker.run(self.rng.choice((0.1, 1.0, 25.0)))

    # ---- the disk -------------------------------------------------------------------------------

    def flush(self) -> None:
        """What is on disk afterwards is what was at the flush before."""
        if self.broker.core.confirming.held:
            self.flush_everything()
            return
        self.broker.flush()
        before, self.captured = self.captured, snapshots_of(self.broker)
        if before is not None:
            self.check(before)

    def flush_everything(self) -> None:
        self.broker.flush(everything=True)
        self.captured = snapshots_of(self.broker)
        self.check(self.captured)

    def fail(self) -> None:
        before = on_disk(self.disk, self.settings)
        if self.broker.flush(fails=True) is not None:
            self.captured = None
            assert on_disk(self.disk, self.settings) == before
        elif not self.broker.core.confirming.held:
            self.captured = snapshots_of(self.broker)

    @property
    def disk(self) -> SimulatedDisk:
        assert self.broker.disk is not None
        return self.broker.disk

    def check(self, expected: dict[str, Snapshot]) -> None:
        found = on_disk(self.disk, self.settings)
        clients = self.broker.core.registry.clients
        for name, snapshot in expected.items():
            session = clients.get(name)
            if session is None or session.origin_id != snapshot.origin_id or not session.is_kept:
                continue
            there = found.get(name)
            assert there is not None, f"{name} is not on disk"
            read = dict(there.cursors)
            assert all(read.get(topic) == cursor for topic, cursor in snapshot.cursors)
            # What was confirmed since may be there still, or not.
            assert set(there.pieces) <= set(snapshot.pieces)
            due = snapshot.without(session.acknowledged)
            there = there.without(session.acknowledged)
            assert replace(there, cursors=()) == replace(due, cursors=())
        for name, there in found.items():
            assert name in expected, f"{name} is on disk"
            assert there.origin_id == expected[name].origin_id

    def step(self) -> None:
        action = self.rng.choices(
            (
                self.connect, self.disconnect, self.subscribe, self.unsubscribe, self.publish,
                self.listen, self.confirm, self.wait, self.flush, self.flush_everything, self.fail,
            ),
            (3, 2, 4, 2, 10, 4, 4, 1, 6, 1, 1),
        )[0]  # fmt: skip
        action()


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(10, 80))
def test_the_disk_has_one_instant(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.flush_everything()
