"""What is on disk of kept sessions, when, and what a restarted broker makes of it."""

from __future__ import annotations

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId, SaveNow
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.doors.frames import on_client_bytes
from dynatops.v1.client_pb2 import (
    Cursor,
    ErrorCode,
    Filter,
    Hello,
    MissCause,
    Received,
    ServerMessage,
    Subscribe,
    Welcome,
)
from dynatops.v1.overlay_pb2 import PeerFrame, SessionMoved
from overlay.base.peers import Peer
from simulator.disk import SimulatedDisk
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

TOPIC = "quake/ca"
KEPT_S = 600


@pytest.fixture
def broker() -> LoneBroker:
    return LoneBroker(disk=SimulatedDisk())


def kept(broker: LoneBroker, *topics: str) -> None:
    """Ann subscribes; it is on disk, and she knows."""
    broker.connect("ann", keep_s=KEPT_S)
    broker.subscribe("ann", *(topics or (TOPIC,)))
    broker.run(0.5)
    broker.flush()
    assert broker.kinds("ann") == ["welcome", "subscribed"]
    confirm(broker, 100)
    broker.flush(everything=True)


def confirm(broker: LoneBroker, serial: int) -> None:
    broker.say("ann", received=Received(serial=serial))


def publish(broker: LoneBroker, *numbers: int, topic: str = TOPIC) -> None:
    if "pub" not in broker.core.registry.clients:
        broker.connect("pub")
    broker.publish("pub", *(publication(topic, number) for number in numbers))


def numbers_of(messages: list[ServerMessage]) -> list[int]:
    return [m.run.first_number for m in messages if m.HasField("run") and m.run.count]


def welcome_of(broker: LoneBroker) -> Welcome:
    (welcome, *_) = [m.welcome for m in broker.hear_all("ann") if m.HasField("welcome")]
    return welcome


class TestConfirmations:
    def test_a_kept_sessions_waits_for_the_disk(self, broker: LoneBroker) -> None:
        broker.connect("ann", keep_s=KEPT_S)
        broker.subscribe("ann", TOPIC)
        assert broker.kinds("ann") == ["welcome"]
        assert SaveNow() in broker.effects
        broker.flush()
        assert broker.kinds("ann") == ["subscribed"]
        (record,) = broker.disk.read().sessions.values()  # type: ignore[union-attr]
        assert [f.pattern for f in record.filters] == [TOPIC]

    def test_others_do_not_wait(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        assert broker.kinds("ann") == ["welcome", "subscribed"]
        assert broker.flush() is None

    def test_while_the_disk_fails_nothing_is_said_to_be_kept(self, broker: LoneBroker) -> None:
        broker.connect("ann", keep_s=KEPT_S)
        broker.subscribe("ann", TOPIC)
        confirm(broker, 1)
        broker.flush()
        broker.hear("ann")
        broker.subscribe("ann", "quake/nv")
        broker.flush(fails=True)
        broker.run(0.1)
        (refusal,) = [m.subscribed for m in broker.hear("ann") if m.HasField("subscribed")]
        (problem,) = refusal.problems
        assert (problem.topic, problem.code) == ("quake/nv", ErrorCode.ERROR_CODE_NOT_SAVED)
        assert "go to another broker" in problem.message
        broker.subscribe("ann", "quake/or")
        broker.run(0.1)
        assert [p.topic for m in broker.hear("ann") for p in m.subscribed.problems] == ["quake/or"]
        session = broker.core.registry.clients["ann"]
        assert list(session.filters) == [TOPIC]
        # What it has goes on; so does whoever keeps nothing, or comes from another broker.
        broker.subscribe("ann", TOPIC)
        assert "subscribed" in broker.kinds("ann")
        broker.connect("bob")
        broker.subscribe("bob", "quake/nv")
        assert "subscribed" in broker.kinds("bob")
        assert broker.core.counters.subscriptions_not_saved == 2
        # Once it can be kept it is.
        broker.flush()
        broker.flush()
        broker.subscribe("ann", "quake/nv")
        broker.flush()
        broker.run(0.1)
        assert broker.kinds("ann") == ["subscribed"]
        assert set(broker.restarted().core.registry.clients["ann"].filters) == {TOPIC, "quake/nv"}

    def test_only_whoever_asked_is_told(self, broker: LoneBroker) -> None:
        broker.connect("ann", keep_s=KEPT_S)
        broker.subscribe("ann", TOPIC)
        broker.disconnect("ann")
        # Another process may give its first request the same number.
        broker.keep(broker.core.open_connection(ConnectionId("ann again"), broker.now_s))
        broker.say("ann again", hello=Hello(protocol=1, client_id="ann", expiry_s=KEPT_S))
        broker.flush()
        assert broker.kinds("ann again") == ["welcome"]

    def test_filters_not_in_place_yet_are_not_on_disk(self) -> None:
        broker = LoneBroker(joining=True, disk=SimulatedDisk())
        broker.connect("ann", keep_s=KEPT_S)
        broker.subscribe("ann", TOPIC)
        broker.flush(everything=True)
        (record,) = broker.disk.read().sessions.values()  # type: ignore[union-attr]
        assert not record.filters
        broker.found_a_ring()
        broker.run(0.5)
        broker.flush()
        (record,) = broker.disk.read().sessions.values()  # type: ignore[union-attr]
        assert [f.pattern for f in record.filters] == [TOPIC]


class TestDeliveries:
    def test_those_confirmed_within_a_flush_are_never_written(self, broker: LoneBroker) -> None:
        kept(broker)
        before = broker.core.counters.deliveries_saved
        for number in (1, 2, 3):
            publish(broker, number)
            broker.flush()
            broker.hear("ann")
            confirm(broker, 100)
        broker.flush()
        assert broker.core.counters.deliveries_saved == before
        assert not broker.disk.read().pieces  # type: ignore[union-attr]

    def test_those_that_wait_are_written_one_flush_later(self, broker: LoneBroker) -> None:
        kept(broker)
        publish(broker, 1)
        assert broker.flush() is None
        publish(broker, 2)
        changes = broker.flush()
        # The queue and the cursor are of one instant.
        assert changes is not None
        assert len(changes.pieces) == 1
        assert changes.cursors[TOPIC].seen[-1].seq == 1  # type: ignore[union-attr]

    def test_they_are_taken_away_when_confirmed(self, broker: LoneBroker) -> None:
        kept(broker)
        publish(broker, 1, 2)
        broker.flush(everything=True)
        saved = broker.core.counters.deliveries_saved
        broker.hear("ann")
        confirm(broker, 2)
        broker.flush(everything=True)
        (pieces,) = broker.disk.read().pieces.values()  # type: ignore[union-attr]
        assert [piece.serial for piece in pieces] == [3]
        confirm(broker, 3)
        broker.flush(everything=True)
        assert not broker.disk.read().pieces  # type: ignore[union-attr]
        assert broker.core.counters.deliveries_saved == saved

    def test_after_a_failure_nothing_is_missing(self, broker: LoneBroker) -> None:
        kept(broker)
        publish(broker, 1)
        broker.flush()
        publish(broker, 2)
        broker.flush(fails=True)
        publish(broker, 3)
        # What has been captured since was captured on top of what is not there.
        assert broker.flush() is None
        broker.flush()
        again = broker.restarted()
        again.connect("ann", keep_s=KEPT_S)
        assert numbers_of(again.hear("ann")) == [1, 2, 3]


class TestRestarting:
    def test_what_waited_comes_first_and_counts_on(self, broker: LoneBroker) -> None:
        kept(broker)
        broker.disconnect("ann")
        publish(broker, 1, 2)
        broker.flush(everything=True)
        again = broker.restarted()
        again.run(1.0)
        again.connect("ann", keep_s=KEPT_S)
        messages = again.hear_all("ann")
        assert messages[0].welcome.resumed
        assert messages[0].welcome.serial == 2
        assert [f.pattern for f in messages[0].welcome.filters] == [TOPIC]
        assert numbers_of(messages) == [1, 2]
        assert again.core.counters.sessions_restored == 1

    @pytest.mark.parametrize("lives", [1, 2, 3])
    def test_a_client_finds_it_by_any_name_it_knows(self, broker: LoneBroker, lives: int) -> None:
        broker.connect("ann", keep_s=KEPT_S)
        names = [welcome_of(broker).session_id]
        broker.flush(everything=True)
        for _ in range(lives):
            broker = broker.restarted()
            broker.connect("ann", keep_s=KEPT_S, session_id=names[0])
            welcome = welcome_of(broker)
            assert welcome.resumed
            # Serials may stand for other deliveries than before. That it has the name is not
            # written: it is known by it all the same.
            assert welcome.session_id not in names
            names.append(welcome.session_id)
        for name in names:
            broker = broker.restarted()
            broker.connect("ann", keep_s=KEPT_S, session_id=name)
            assert welcome_of(broker).resumed

    def test_one_that_went_elsewhere_meanwhile_begins_anew(self, broker: LoneBroker) -> None:
        kept(broker)
        again = broker.restarted()
        again.connect("ann", keep_s=KEPT_S, session_id="b1/1/1")
        assert not welcome_of(again).resumed

    def test_it_ends_when_nobody_comes(self, broker: LoneBroker) -> None:
        kept(broker)
        again = broker.restarted()
        again.run(KEPT_S + 2)
        assert not again.core.registry.clients
        again.flush(everything=True)
        stored = again.disk.read()  # type: ignore[union-attr]
        assert not stored.sessions
        again.flush(everything=True)
        stored = again.disk.read()  # type: ignore[union-attr]
        assert not stored.cursors
        assert not stored.own_cursors

    def test_what_was_dropped_is_told(self) -> None:
        settings = CoreSettings(session_queue_events_max=2)
        broker = LoneBroker(settings, disk=SimulatedDisk())
        kept(broker)
        broker.disconnect("ann")
        publish(broker, 1, 2, 3, 4, 5)
        broker.flush(everything=True)
        again = broker.restarted()
        again.connect("ann", keep_s=KEPT_S)
        messages = again.hear("ann")
        assert numbers_of(messages) == [1, 2]
        assert messages[-1].missed.count == 3
        assert messages[-1].missed.cause == MissCause.MISS_CAUSE_SLOW_SUBSCRIBER

    def test_topics_are_read_on_from_where_they_were(self, broker: LoneBroker) -> None:
        kept(broker, TOPIC, "quake/#")
        publish(broker, 1)
        publish(broker, 1, topic="quake/nv")
        broker.run(1.0)
        broker.flush(everything=True)
        seen = ring_of(broker.core).subscriptions.readers.feeds_of("quake/nv")[0].reader.seen()
        assert seen
        again = broker.restarted()
        (live, resumed) = ring_of(again.core).subscriptions.readers.feeds_of(TOPIC)
        assert not live.members
        assert [s.client_id for s in resumed.members] == ["ann"]
        assert resumed.reader.seen()[-1].seq == 1
        # The wildcard's topics are not known yet: the disk keeps what it has.
        assert ring_of(again.core).subscriptions.is_restoring
        again.connect("bob", keep_s=KEPT_S)
        assert again.flush(everything=True) is None
        assert again.disk.read().cursors["quake/nv"].seen == seen  # type: ignore[union-attr]

    def test_a_cursor_of_ones_own_is_kept_while_it_differs(self) -> None:
        broker = LoneBroker(disk=SimulatedDisk())
        kept(broker)
        publish(broker, 1, 2)
        broker.connect("bob", keep_s=KEPT_S)
        term = ring_of(broker.core).subscriptions.readers.feeds_of(TOPIC)[0].reader.position[0]
        cursor = Cursor(topic=TOPIC)
        cursor.seen.add(term=term, seq=1)
        resume = Subscribe(
            request=1, filters=[Filter(pattern=TOPIC)], resume=True, cursors=[cursor]
        )
        broker.say("bob", subscribe=resume)
        broker.flush(everything=True)
        stored = broker.disk.read()  # type: ignore[union-attr]
        ((_, topic),) = stored.own_cursors
        assert topic == TOPIC
        assert stored.own_cursors.popitem()[1].seen[-1].seq == 1
        assert stored.cursors[TOPIC].seen[-1].seq == 2
        broker.run(1.0)
        broker.flush(everything=True)
        assert not broker.disk.read().own_cursors  # type: ignore[union-attr]


class TestEnding:
    def test_sessions_on_disk_outlive_the_goodbye(self, broker: LoneBroker) -> None:
        kept(broker)
        broker.flush(everything=True)
        broker.keep(broker.core.leave(broker.now_s))
        broker.disconnect("ann")
        assert broker.flush(everything=True) is None
        assert "ann" in broker.restarted().core.registry.clients

    def test_but_not_those_whose_clients_are_known_to_be_elsewhere(
        self, broker: LoneBroker
    ) -> None:
        broker.connect("ann", keep_s=KEPT_S)
        name = welcome_of(broker).session_id
        broker.flush(everything=True)
        broker.keep(broker.core.leave(broker.now_s))
        other = Peer(ring_of(broker.core).node.me.node_id, "b1", "b1")
        frame = PeerFrame(sender=other.ref)
        frame.messages.add(session_moved=SessionMoved(client_id="ann", session_id=name))
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        broker.flush()
        assert not broker.restarted().core.registry.clients

    def test_newcomers_are_turned_away(self, broker: LoneBroker) -> None:
        broker.keep(broker.core.leave(broker.now_s))
        broker.connect("ann", keep_s=KEPT_S)
        (message,) = broker.hear("ann")
        assert message.goodbye.code == ErrorCode.ERROR_CODE_SHUTTING_DOWN
        assert broker.is_closing("ann")

    @pytest.mark.parametrize("how", ["clean", "not kept", "wrong"])
    def test_sessions_that_end_are_removed(self, broker: LoneBroker, how: str) -> None:
        kept(broker)
        if how == "wrong":
            broker.keep(on_client_bytes(broker.core, "ann", b"\xff", broker.now_s))  # type: ignore[arg-type]
        broker.disconnect("ann")
        if how == "clean":
            broker.connect("ann", clean=True)
        elif how == "not kept":
            broker.connect("ann")
        broker.flush(everything=True)
        assert not broker.disk.read().sessions  # type: ignore[union-attr]


def test_what_is_confirmed_before_it_is_sent_again_is_not(broker: LoneBroker) -> None:
    kept(broker)
    publish(broker, 1, 2)
    broker.hear("ann")
    broker.disconnect("ann")
    broker.connect("ann", keep_s=KEPT_S)
    confirm(broker, 3)
    broker.hear("ann")
    publish(broker, 3)
    broker.disconnect("ann")
    broker.connect("ann", keep_s=KEPT_S)
    messages = broker.hear("ann")
    assert messages[0].welcome.serial == 4
    assert numbers_of(messages) == [3]


def test_what_is_dropped_is_on_disk_until_it_is_told_and_then_as_told() -> None:
    broker = LoneBroker(CoreSettings(session_queue_events_max=2), disk=SimulatedDisk())
    kept(broker)
    publish(broker, 1, 2, 3)
    broker.flush(everything=True)
    # Taking the queue makes room for the notice.
    broker.core.take_output(ConnectionId("ann"), 1 << 20)
    broker.core.take_output(ConnectionId("ann"), 1 << 20)
    broker.flush(everything=True)
    again = broker.restarted()
    again.connect("ann", keep_s=KEPT_S)
    assert [m.missed.count for m in again.hear("ann") if m.HasField("missed")] == [1]


def test_what_expires_counts_as_done() -> None:
    """The next message after Welcome has the serial that Welcome says."""
    broker = LoneBroker(CoreSettings(offline_age_max_s=10.0), disk=SimulatedDisk())
    kept(broker)
    broker.disconnect("ann")
    publish(broker, 1)
    broker.run(9.0)
    publish(broker, 2)
    broker.run(3.0)
    broker.connect("ann", keep_s=KEPT_S)
    messages = broker.hear("ann")
    assert numbers_of(messages) == [2]
    assert messages[0].welcome.serial == 3


class TestNobodyElseKnows:
    """The broker is the whole network: after a restart its topics have no history."""

    def restarted(self, broker: LoneBroker) -> tuple[LoneBroker, list[ServerMessage]]:
        broker.flush(everything=True)
        later = broker.restarted()
        later.run(1.0)
        later.connect("ann", keep_s=KEPT_S)
        return later, later.hear("ann")

    def told(self, messages: list[ServerMessage]) -> set[tuple[str, int]]:
        return {(m.missed.topic, m.missed.count) for m in messages if m.HasField("missed")}

    def publish_on(self, broker: LoneBroker, *numbers: int) -> None:
        """By a publisher whose former events have all been acknowledged."""
        broker.connect("pub")
        for number in numbers:
            broker.publish("pub", publication(TOPIC, number, settled=number - 1))
        broker.run(7.0)

    @pytest.mark.parametrize("events", [0, 3])
    def test_of_a_topic_that_was_read(self, broker: LoneBroker, events: int) -> None:
        kept(broker, TOPIC)
        publish(broker, *range(1, events + 1))
        later, messages = self.restarted(broker)
        assert self.told(messages) == {(TOPIC, 0)}
        assert numbers_of(messages) == list(range(1, events + 1))
        self.publish_on(later, events + 1, events + 2)
        assert numbers_of(later.hear("ann")) == [events + 1, events + 2]

    def test_of_topics_that_a_wildcard_may_have_missed(self, broker: LoneBroker) -> None:
        kept(broker, "quake/#", "+/ca")
        _, messages = self.restarted(broker)
        assert self.told(messages) == {("quake/#", 0), ("+/ca", 0)}

    def test_of_a_topic_whose_name_is_lost(self, broker: LoneBroker) -> None:
        kept(broker, "quake/#")
        publish(broker, 1)
        broker.run(1.0)
        later, messages = self.restarted(broker)
        assert (TOPIC, 0) in self.told(messages)
        self.publish_on(later, 2)
        assert numbers_of(later.hear("ann")) == [2]

    def test_once(self, broker: LoneBroker) -> None:
        kept(broker, TOPIC, "quake/#")
        later, _ = self.restarted(broker)
        later.say("ann", received=Received(serial=1_000))
        later.run(1.0)
        later.flush(everything=True)
        later.disconnect("ann")
        later.connect("ann", keep_s=KEPT_S)
        assert self.told(later.hear("ann")) == set()
