"""Sessions that outlive their connections, at one broker."""

from __future__ import annotations

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.clients.reception import AVOIDED_MAX
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.selection.summaries import digest_of
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.session import Session
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import (
    Cursor,
    Echoed,
    ErrorCode,
    Filter,
    MissCause,
    Missed,
    Received,
    ServerMessage,
    Subscribe,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage, Run, SessionMoved, TermSeq
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.base.catalogue import announcement_of, shard_topic, shard_topics
from overlay.base.effects import Announce
from overlay.base.identifiers import TermOwner, key_of
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget
from overlay.history.topic_log import TopicLog
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

TOPIC = "quake/ca"


@pytest.fixture
def broker() -> LoneBroker:
    lone = LoneBroker()
    lone.run(0.3)
    lone.connect("pub")
    return lone


def welcome_of(broker: LoneBroker, connection: str) -> Welcome:
    return broker.hear(connection)[0].welcome


def publish(broker: LoneBroker, *numbers: int, topic: str = TOPIC) -> None:
    for number in numbers:
        broker.publish("pub", publication(topic, number, publisher=5))
    broker.run(0.2)


def heard(messages: list[ServerMessage]) -> list[int]:
    return [m.run.first_number for m in messages if m.HasField("run")]


class TestComingBack:
    def test_events_wait_for_a_session_that_is_kept(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        first = welcome_of(broker, "c1")
        broker.disconnect("c1")
        publish(broker, 1, 2)
        broker.connect("c2", client_id="ann", keep_s=60, session_id=first.session_id)
        welcome, *rest = broker.hear("c2")
        assert welcome.welcome.resumed
        assert welcome.welcome.session_id == first.session_id
        assert [f.pattern for f in welcome.welcome.filters] == [TOPIC]
        assert heard(rest) == [1, 2]

    def test_what_the_application_has_not_taken_is_sent_again(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        publish(broker, 1, 2, 3)
        assert heard(broker.hear("c1")) == [1, 2, 3]
        # The first delivery says where the topic stands.
        broker.say("c1", received=Received(serial=2))
        broker.disconnect("c1")
        broker.connect("c2", client_id="ann", keep_s=60)
        welcome, *rest = broker.hear("c2")
        assert welcome.welcome.serial == 3
        assert heard(rest) == [2, 3]

    def test_a_new_process_learns_where_its_topics_stand(self, broker: LoneBroker) -> None:
        """Else it could not go on at another broker until something comes."""
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        publish(broker, 1, 2)
        delivered = broker.runs("c1")
        broker.say("c1", received=Received(serial=3))
        broker.disconnect("c1")
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.subscribe("c2", TOPIC)
        broker.subscribe("c2", TOPIC, request=2)
        # Once is enough, however often it asks.
        (position,) = (m.run for m in broker.hear_all("c2") if m.HasField("run"))
        assert (position.term, position.count) == (delivered[-1].term, 0)
        assert position.first_seq == delivered[-1].first_seq + 1

    def test_but_not_before_what_waits_of_them(self) -> None:
        """With more than a window waiting answers go first: a position among them would make
        repeats of the events before it."""
        broker = LoneBroker(CoreSettings(session_window_bytes=10))
        broker.run(0.3)
        broker.connect("pub")
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        broker.hear("c1")
        broker.disconnect("c1")
        publish(broker, 1, 2)
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.subscribe("c2", TOPIC)
        subscribed = [m.subscribed for m in broker.hear_all("c2") if m.HasField("subscribed")]
        (positions,) = (answer.positions for answer in subscribed)
        assert [stamp.seq for position in positions for stamp in position.seen] == [0]

    def test_without_a_wish_to_be_kept_it_ends(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann")
        broker.subscribe("c1", TOPIC)
        broker.disconnect("c1")
        assert TOPIC not in ring_of(broker.core).subscriptions
        broker.connect("c2", client_id="ann")
        assert not welcome_of(broker, "c2").resumed

    def test_it_expires(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=10)
        broker.subscribe("c1", TOPIC)
        broker.disconnect("c1")
        broker.run(8.0)
        assert TOPIC in ring_of(broker.core).subscriptions
        broker.run(4.0)
        assert TOPIC not in ring_of(broker.core).subscriptions
        assert broker.core.counters.sessions_expired == 1

    def test_clean_begins_anew(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        broker.disconnect("c1")
        broker.connect("c2", client_id="ann", keep_s=60, clean=True)
        welcome = welcome_of(broker, "c2")
        assert not welcome.resumed
        assert not welcome.filters
        assert TOPIC not in ring_of(broker.core).subscriptions

    def test_the_session_of_another_broker_is_not_this_one(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.disconnect("c1")
        broker.connect("c2", client_id="ann", keep_s=60, session_id="elsewhere/1")
        assert not welcome_of(broker, "c2").resumed

    def test_a_second_connection_takes_over(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        broker.hear("c1")
        broker.connect("c2", client_id="ann", keep_s=60)
        (goodbye,) = broker.hear("c1")
        assert goodbye.goodbye.code == ErrorCode.ERROR_CODE_TAKEN_OVER
        assert "'ann'" in goodbye.goodbye.message
        assert broker.is_closing("c1")
        assert welcome_of(broker, "c2").resumed
        broker.disconnect("c1")
        publish(broker, 1)
        assert heard(broker.hear("c2")) == [1]

    def test_a_client_that_went_elsewhere_is_not_kept(self, broker: LoneBroker) -> None:
        broker.connect("c1", client_id="ann", keep_s=60)
        broker.subscribe("c1", TOPIC)
        session_id = welcome_of(broker, "c1").session_id
        broker.disconnect("c1")
        for said in ("another", session_id):
            moved = SessionMoved(client_id="ann", session_id=said)
            frame = PeerFrame(messages=[PeerMessage(session_moved=moved)])
            broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
            assert (TOPIC in ring_of(broker.core).subscriptions) == (said == "another")

    def test_one_that_is_back_is_not_sent_away_by_old_news(self, broker: LoneBroker) -> None:
        """It was at another broker, too briefly to hear its welcome; that one's word comes late."""
        broker.connect("c1", client_id="ann", keep_s=60, attempt=1)
        broker.subscribe("c1", TOPIC)
        session_id = welcome_of(broker, "c1").session_id
        broker.disconnect("c1")
        broker.connect("c3", client_id="ann", keep_s=60, session_id=session_id, attempt=3)
        for attempt in (2, 4):
            moved = SessionMoved(client_id="ann", session_id=session_id, attempt=attempt)
            frame = PeerFrame(messages=[PeerMessage(session_moved=moved)])
            broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
            assert broker.is_closing("c3") == (attempt == 4)
        assert broker.core.counters.session_moves_outdated == 1


class TestCursors:
    """Coming from another broker, with a place in each topic."""

    def resume(self, broker: LoneBroker, *seen: TermSeq) -> list[ServerMessage]:
        broker.connect("c1", client_id="ann", session_id="elsewhere/1")
        subscribe = Subscribe(
            request=1,
            filters=[Filter(pattern=TOPIC)],
            resume=True,
            cursors=[Cursor(topic=TOPIC, seen=seen)],
        )
        broker.say("c1", subscribe=subscribe)
        broker.run(1.0)
        return broker.hear("c1")

    def stamps(self, broker: LoneBroker) -> list[TermSeq]:
        """Three events, and where each is."""
        broker.connect("w", client_id="watch")
        broker.subscribe("w", TOPIC)
        publish(broker, 1, 2, 3)
        return [TermSeq(term=run.term, seq=run.first_seq) for run in broker.runs("w")]

    def test_reading_goes_on_where_the_client_stood(self, broker: LoneBroker) -> None:
        second = self.stamps(broker)[1]
        assert heard(self.resume(broker, second)) == [3]
        publish(broker, 4)
        assert heard(broker.hear("c1")) == [4]

    def test_one_that_has_everything_misses_nothing(self, broker: LoneBroker) -> None:
        newest = self.stamps(broker)[2]
        assert heard(self.resume(broker, newest)) == []
        publish(broker, 4)
        assert heard(broker.hear("c1")) == [4]

    def test_a_term_that_nobody_knows_is_not_believed(self, broker: LoneBroker) -> None:
        second = self.stamps(broker)[1]
        invented = TermSeq(term=second.term + (1 << 40), seq=9)
        messages = self.resume(broker, second, invented)
        assert heard(messages) == [3]
        missed = [m.missed for m in messages if m.HasField("missed")]
        assert [(m.cause, m.count) for m in missed] == [(MissCause.MISS_CAUSE_NOT_RETAINED, 0)]
        publish(broker, 4)
        (run,) = broker.runs("c1")
        assert run.term == second.term

    def test_a_history_that_began_anew_is_told_of_before_its_first_event(
        self, broker: LoneBroker
    ) -> None:
        stood = TermSeq(term=(7 << 24) + 1, seq=0)
        missed = [m.missed for m in self.resume(broker, stood) if m.HasField("missed")]
        assert [(m.topic, m.count) for m in missed] == [(TOPIC, 0)]

    def test_what_was_read_for_one_that_came_back_does_not_come_again_stamped_anew(self) -> None:
        # Its node has not joined yet: what comes from the ring is said here.
        broker = LoneBroker(joining=True)
        subscriptions = ring_of(broker.core).subscriptions
        here, there = (TopicLog(TOPIC, OverlaySettings(), LogBudget(1 << 20)) for _ in range(2))
        here.open_next_term(TermOwner(1))
        for number in (1, 2):
            here.stamp(publication(TOPIC, number), 0.0)

        def answer(log: TopicLog, now_s: float) -> None:
            (asked,) = subscriptions.readers.progress.due_repairs(now_s)
            fetched = log.since({entry.term: entry.seq for entry in asked.seen})
            fetched.reader = asked.reader
            subscriptions.on_repair(fetched, now_s)

        self.resume(broker, TermSeq(term=here.term, seq=1))
        subscriptions.observe(TOPIC, here.position_message(), broker.now_s)
        answer(here, broker.now_s + 1.0)
        assert heard(broker.hear("c1")) == [2]
        # Both copies are out of reach, and what a publisher repeats is all that there is.
        there.open_next_term(TermOwner(2), newer_than=here.term)
        for number in (1, 2, 3):
            there.stamp(publication(TOPIC, number), 0.0)
        subscriptions.observe(TOPIC, there.position_message(), broker.now_s)
        answer(there, broker.now_s + 2.0)
        assert heard(broker.hear("c1")) == [3]

    def test_nor_does_it_after_the_topic_was_in_an_older_history_for_a_while(self) -> None:
        """Its reader had not come to where the live one was, and begins again."""
        broker = LoneBroker(joining=True)
        subscriptions = ring_of(broker.core).subscriptions
        settings = OverlaySettings(fetch_bytes_max=1)
        here, there = (TopicLog(TOPIC, settings, LogBudget(1 << 20)) for _ in range(2))
        there.open_next_term(TermOwner(1))
        here.open_next_term(TermOwner(2), newer_than=there.term)
        for number in (1, 2, 3):
            here.stamp(publication(TOPIC, number), 0.0)

        def answer(log: TopicLog, now_s: float) -> None:
            for asked in subscriptions.readers.progress.due_repairs(now_s):
                fetched = log.since({entry.term: entry.seq for entry in asked.seen})
                fetched.reader = asked.reader
                subscriptions.on_repair(fetched, now_s)

        self.resume(broker, TermSeq(term=here.term, seq=1))
        subscriptions.observe(TOPIC, here.position_message(), broker.now_s)
        answer(here, broker.now_s + 1.0)
        assert heard(broker.hear("c1")) == [2]
        # On this side of a partition nothing is known of all that.
        answer(there, broker.now_s + 2.0)
        answer(there, broker.now_s + 3.0)
        assert heard(broker.hear("c1")) == []
        there.merge(here, TermOwner(1))
        for tried in range(6):
            answer(there, broker.now_s + 4.0 + tried)
        assert heard(broker.hear("c1")) == [3]

    def test_nor_if_the_live_reader_has_never_been_in_that_history(self) -> None:
        """Of two rendezvous points one has its tree come here, and the other has answered."""
        broker = LoneBroker(joining=True)
        subscriptions = ring_of(broker.core).subscriptions
        here, there = (TopicLog(TOPIC, OverlaySettings(), LogBudget(1 << 20)) for _ in range(2))
        here.open_next_term(TermOwner(1))
        there.open_next_term(TermOwner(2), newer_than=here.term)
        for number in (1, 2):
            here.stamp(publication(TOPIC, number), 0.0)
        there.stamp(publication(TOPIC, 7, publisher=2, settled=6), 0.0)

        def answer(log: TopicLog, now_s: float) -> None:
            for asked in subscriptions.readers.progress.due_repairs(now_s):
                fetched = log.since({entry.term: entry.seq for entry in asked.seen})
                fetched.reader = asked.reader
                subscriptions.on_repair(fetched, now_s)

        self.resume(broker, TermSeq(term=here.term, seq=1))
        subscriptions.observe(TOPIC, there.position_message(), broker.now_s)
        answer(here, broker.now_s + 0.5)
        answer(here, broker.now_s + 1.0)
        assert heard(broker.hear("c1")) == [2]
        answer(there, broker.now_s + 2.0)
        assert heard(broker.hear("c1")) == [7]
        there.merge(here, TermOwner(2))
        there.stamp(publication(TOPIC, 3), 0.0)
        subscriptions.observe(TOPIC, there.position_message(), broker.now_s)
        answer(there, broker.now_s + 3.0)
        assert heard(broker.hear("c1")) == [3]

    def test_impossible_numbers_are_left_out(self, broker: LoneBroker) -> None:
        self.stamps(broker)
        impossible = TermSeq(term=(1 << 64) - 1, seq=(1 << 64) - 1)
        assert heard(self.resume(broker, impossible)) == [1, 2, 3]


class TestWildcards:
    def test_a_new_topic_is_read_from_its_first_event(self, broker: LoneBroker) -> None:
        broker.connect("c1")
        broker.subscribe("c1", "quake/#")
        broker.run(1.0)
        assert broker.kinds("c1") == ["welcome", "subscribed"]
        publish(broker, 1, 2, topic="quake/new")
        publish(broker, 1, topic="fire/new")
        broker.run(1.0)
        runs = broker.runs("c1")
        assert [(run.topic, run.first_number) for run in runs] == [
            ("quake/new", 1),
            ("quake/new", 2),
        ]

    def test_one_that_is_asked_for_by_name_before_it_is_known_is_too(
        self, broker: LoneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker.connect("c1")
        broker.subscribe("c1", "quake/#")
        broker.run(1.0)
        # Its announcement is on its way.
        monkeypatch.setattr(ring_of(broker.core).announcing, "fresh", lambda now_s: [])
        publish(broker, 1)
        broker.subscribe("c1", TOPIC, request=2)
        broker.run(1.0)
        assert heard(broker.hear("c1")) == [1]

    def test_what_a_former_reader_of_the_catalogue_asked_for_is_not_taken(self) -> None:
        # Its node has not joined yet: what comes from the ring is said here.
        broker = LoneBroker(joining=True)
        subscriptions, shard = ring_of(broker.core).subscriptions, shard_topic(TOPIC)
        names = TopicLog(shard, OverlaySettings(), LogBudget(1 << 20))
        names.open_next_term(TermOwner(1))
        names.stamp(announcement_of(TOPIC), 0.0)

        def ask() -> int:
            broker.subscribe("c1", "quake/#")
            subscriptions.observe(shard, names.position_message(), 0.0)
            (asked,) = subscriptions.readers.progress.due_repairs(1.0)
            return asked.reader

        def answer(reader: int, seen: dict[int, int]) -> None:
            fetched = names.since(seen)
            fetched.reader = reader
            subscriptions.on_repair(fetched, 1.0)

        broker.connect("c1")
        former = ask()
        broker.unsubscribe("c1", "quake/#")
        reader = ask()
        # All of the catalogue had been read: there was nothing to add.
        answer(former, {names.term: 1})
        answer(reader, {})
        assert TOPIC in subscriptions.following.names

    @pytest.mark.parametrize("known", [True, False])
    def test_names_lost_while_a_client_went_elsewhere(
        self, broker: LoneBroker, known: bool
    ) -> None:
        """It says where it knows the catalogue to have stood."""
        broker.connect("c1")
        broker.subscribe("c1", "quake/#")
        broker.run(1.0)
        (subscribed,) = (m.subscribed for m in broker.hear("c1") if m.HasField("subscribed"))
        cursors = [c for c in subscribed.positions if c.topic.startswith("$")]
        assert [cursor.topic for cursor in cursors] == shard_topics()
        if not known:
            cursors[7].seen[0].term -= 1
        subscribe = Subscribe(
            request=1, filters=[Filter(pattern="quake/#")], resume=True, cursors=cursors
        )
        broker.connect("c2", session_id="elsewhere/1")
        broker.say("c2", subscribe=subscribe)
        broker.run(1.0)
        missed = [m.missed for m in broker.hear("c2") if m.HasField("missed")]
        assert [m.topic for m in missed] == ([] if known else ["quake/#"])

    def test_what_waits_behind_a_wildcard_does_not_wait_when_that_is_gone(self) -> None:
        """Nobody reads the catalogue any more."""
        broker = LoneBroker(joining=True)
        wildcard = Filter(pattern="quake/#")
        broker.connect("c1", session_id="elsewhere/1")
        broker.say("c1", subscribe=Subscribe(request=1, filters=[wildcard], resume=True))
        broker.say("c1", subscribe=Subscribe(request=2, filters=[Filter(pattern=TOPIC)]))
        broker.unsubscribe("c1", "quake/#")
        broker.found_a_ring()
        broker.connect("pub")
        broker.run(1.0)
        confirmed = {m.subscribed.request for m in broker.hear("c1") if m.HasField("subscribed")}
        assert 2 in confirmed
        publish(broker, 1)
        broker.run(1.0)
        assert heard(broker.hear("c1")) == [1]

    def test_a_new_topic_whose_history_was_lost_before_it_was_read(
        self, broker: LoneBroker
    ) -> None:
        broker.connect("c1")
        broker.subscribe("c1", "quake/#")
        broker.run(1.0)
        broker.hear("c1")
        # Its name says that it began in a term which its rendezvous point does not know.
        ring_of(broker.core).announcing.announce(Announce(TOPIC), 77 << 24)
        publish(broker, 1)
        broker.run(1.0)
        messages = broker.hear("c1")
        missed = [m.missed for m in messages if m.HasField("missed")]
        assert [(m.topic, m.count) for m in missed] == [(TOPIC, 0)]
        assert heard(messages) == [1]

    def test_a_second_filter_wants_more_of_a_topic_whose_name_is_lost(
        self, broker: LoneBroker
    ) -> None:
        """It is followed because the client has read it elsewhere."""
        cursor = Cursor(topic=TOPIC, seen=[TermSeq(term=1 << 24, seq=3)])
        narrow = Filter(pattern="quake/#", where="magnitude > 9")
        subscribe = Subscribe(request=1, filters=[narrow], resume=True, cursors=[cursor])
        broker.connect("c1", session_id="elsewhere/1")
        broker.say("c1", subscribe=subscribe)
        broker.run(1.0)
        assert TOPIC not in ring_of(broker.core).subscriptions.following.names
        broker.subscribe("c1", "quake/#", request=2)
        broker.run(1.0)
        broker.hear("c1")
        publish(broker, 1)
        (run,) = broker.runs("c1")
        assert not run.partial

    def test_topics_that_exist_are_followed_from_now_on(self, broker: LoneBroker) -> None:
        publish(broker, 1)
        broker.connect("c1")
        broker.subscribe("c1", "+/ca")
        broker.run(1.0)
        publish(broker, 2)
        assert heard(broker.hear("c1")) == [2]

    def test_two_filters_bring_an_event_once(self, broker: LoneBroker) -> None:
        broker.connect("c1")
        broker.subscribe("c1", "quake/#", "#", TOPIC)
        broker.run(1.0)
        broker.hear("c1")
        publish(broker, 1)
        broker.run(1.0)
        assert heard(broker.hear("c1")) == [1]

    def test_giving_one_up_keeps_what_the_other_wants(self, broker: LoneBroker) -> None:
        broker.connect("c1")
        broker.subscribe("c1", "quake/#", "+/ca")
        publish(broker, 1)
        publish(broker, 1, topic="quake/nv")
        broker.run(1.0)
        broker.unsubscribe("c1", "quake/#")
        broker.hear("c1")
        publish(broker, 2)
        publish(broker, 2, topic="quake/nv")
        assert [run.topic for run in broker.runs("c1")] == [TOPIC]
        broker.unsubscribe("c1", "+/ca")
        broker.disconnect("c1")
        assert not len(ring_of(broker.core).subscriptions)
        assert not ring_of(broker.core).subscriptions.following.is_active

    def test_more_topics_than_a_session_may_follow(self) -> None:
        broker = LoneBroker(CoreSettings(followed_topics_max=1))
        broker.run(0.3)
        broker.connect("pub")
        broker.connect("c1")
        broker.subscribe("c1", "#")
        broker.run(1.0)
        publish(broker, 1, topic="a")
        publish(broker, 1, topic="b")
        broker.run(1.0)
        messages = broker.hear("c1")
        assert heard(messages) == [1]
        (missed,) = [m.missed for m in messages if m.HasField("missed")]
        assert missed.cause == MissCause.MISS_CAUSE_TOO_MANY_TOPICS


def tell_of_b1(broker: LoneBroker, topic: str, **doors: str) -> None:
    key = key_of(topic)
    summary = BrokerSummary(
        broker_id="b1", address="b1:7400", incarnation=1, number=1,
        subscriptions=1, sessions=1, full=True, digest=digest_of([key]), keys=[key],
        doors=doors,
    )  # fmt: skip
    broker.core.cluster.selection.on_summary(summary, broker.now_s)


class TestRedirection:
    def broker(self) -> LoneBroker:
        """One that knows of another whose users follow `TOPIC`."""
        broker = LoneBroker(selection=SelectionSettings(load_weight=0.0))
        broker.run(0.3)
        tell_of_b1(broker, TOPIC)
        return broker

    def test_comes_in_place_of_a_confirmation(self) -> None:
        broker = self.broker()
        broker.connect("c1", movable=True)
        broker.hear("c1")
        broker.subscribe("c1", TOPIC)
        (answer,) = broker.hear("c1")
        assert (answer.redirect.broker_id, answer.redirect.address) == ("b1", "b1:7400")
        assert "more_alike" in answer.redirect.reason
        assert TOPIC not in ring_of(broker.core).subscriptions

    def test_who_came_by_a_further_door_hears_names_of_that_door(self) -> None:
        broker = LoneBroker(selection=SelectionSettings(load_weight=0.0))
        broker.run(0.3)
        tell_of_b1(broker, TOPIC, outside="b1.example.org:7400")
        broker.connect("in", movable=True)
        broker.connect("out", movable=True, door="outside")
        broker.connect("other", movable=True, door="mqtt")
        for client in ("in", "out", "other"):
            broker.subscribe(client, TOPIC)
        # b1 is not of the ring yet: of doors the cluster knows more.
        alternatives = {"in": [], "out": ["b1.example.org:7400"], "other": []}
        for client, address in (("in", "b1:7400"), ("out", "b1.example.org:7400")):
            welcome, redirect = broker.hear(client)
            assert list(welcome.welcome.alternatives) == alternatives[client]
            assert redirect.redirect.address == address
        broker.run(0.3)
        assert broker.kinds("other") == ["welcome", "subscribed"]
        broker.keep(broker.core.leave(broker.now_s))
        for client, named in alternatives.items():
            assert list(broker.hear(client)[-1].goodbye.alternatives) == named

    def test_nothing_is_begun_for_who_is_sent_away(self) -> None:
        broker = self.broker()
        broker.connect("c1", movable=True)
        broker.subscribe("c1", TOPIC)
        broker.hear("c1")
        broker.subscribe("c1", "fire", request=2)
        assert broker.hear("c1") == []
        assert "fire" not in ring_of(broker.core).subscriptions

    def test_who_does_not_follow_is_not_sent(self) -> None:
        broker = self.broker()
        broker.connect("c1")
        broker.subscribe("c1", TOPIC)
        broker.run(0.3)
        assert broker.kinds("c1") == ["welcome", "subscribed"]

    def test_who_was_just_sent_here_stays(self) -> None:
        broker = self.broker()
        broker.connect("c1", movable=True, redirected=True)
        broker.subscribe("c1", TOPIC)
        broker.run(0.3)
        assert broker.kinds("c1") == ["welcome", "subscribed"]

    def test_who_could_not_connect_there_is_not_sent_for_a_while(self) -> None:
        broker = self.broker()
        # Others are: what one client says holds for itself.
        broker.connect("c1", movable=True, avoid=["elsewhere:1"])
        broker.subscribe("c1", TOPIC)
        assert broker.kinds("c1") == ["welcome", "redirect"]
        broker.connect("c2", movable=True, avoid=["elsewhere:1", "b1:7400"])
        broker.subscribe("c2", TOPIC)
        broker.run(0.3)
        assert broker.kinds("c2") == ["welcome", "subscribed"]

    def test_what_a_client_could_not_reach_is_bounded_in_number_and_time(self) -> None:
        broker = self.broker()
        named = [f"elsewhere:{i}" for i in range(AVOIDED_MAX)]
        broker.connect("c1", movable=True, avoid=[*named, "b1:7400"])
        session = broker.core.registry.clients["c1"]
        assert list(session.avoided) == named
        assert set(session.avoided.values()) == {broker.now_s + CoreSettings().avoided_for_s}
        # A connection without complaints has none.
        broker.disconnect("c1")
        broker.connect("c1", movable=True)
        assert not broker.core.registry.clients["c1"].avoided

    def test_nobody_is_sent_where_connections_are_refused(self) -> None:
        broker = self.broker()
        broker.keep(broker.core.unreachable("b1:7400", broker.now_s))
        broker.connect("c1", movable=True)
        broker.subscribe("c1", TOPIC)
        broker.run(0.3)
        assert broker.kinds("c1") == ["welcome", "subscribed"]

    @pytest.mark.parametrize("how", ["unsubscribe", "drop"])
    def test_who_only_gives_something_up_is_considered_too(self, how: str) -> None:
        """Algorithm 1 runs every time a user subscribes or unsubscribes."""
        broker = LoneBroker(selection=SelectionSettings(load_weight=0.0))
        broker.run(0.3)
        broker.connect("c1", movable=True)
        broker.subscribe("c1", TOPIC, "fire", "flood")
        broker.run(0.3)
        broker.hear("c1")
        tell_of_b1(broker, TOPIC)
        if how == "unsubscribe":
            broker.unsubscribe("c1", "fire", "flood")
        else:
            filters = [Filter(pattern="fire"), Filter(pattern="flood")]
            broker.say("c1", subscribe=Subscribe(request=2, drop=filters))
        *answers, last = broker.hear("c1")
        assert [m.WhichOneof("body") for m in answers] == ["unsubscribed"] * (how == "unsubscribe")
        assert last.redirect.broker_id == "b1"
        assert broker.core.cluster.selection.counters.users_considered == 1

    def test_giving_up_what_it_does_not_have_or_all_that_it_has_moves_nobody(self) -> None:
        broker = LoneBroker(selection=SelectionSettings(load_weight=0.0))
        broker.run(0.3)
        broker.connect("c1", movable=True)
        broker.subscribe("c1", TOPIC)
        broker.run(0.3)
        tell_of_b1(broker, TOPIC)
        broker.unsubscribe("c1", "fire")
        broker.unsubscribe("c1", TOPIC)
        assert "redirect" not in broker.kinds("c1")
        assert broker.core.cluster.selection.counters.users_considered == 0


class TestQueue:
    """A session by itself."""

    def session(self, **settings: float) -> Session:
        core_settings = CoreSettings(**settings)  # type: ignore[arg-type]
        connection = ConnectionId("c")
        return Session("s", "ann", 0, core_settings, connection=connection, expiry_s=60.0)

    def test_a_window_bounds_what_is_under_way(self) -> None:
        content = Content(Run(topic="t", events=bytes(60)))
        session = self.session(session_window_bytes=3 * content.nbytes // 2)
        for i in range(10):
            session.offer("t", content, 1, float(i))
        # The content that fills the window goes out; the next do not.
        assert session.take_output(content.nbytes, 10.0) == [content]
        assert session.take_output(content.nbytes, 10.0) == [content]
        assert session.take_output(content.nbytes, 10.0) == []
        assert session.received(Received(serial=1))
        assert session.take_output(content.nbytes, 10.0) == [content]

    def test_a_place_in_a_stream_is_not_said_before_its_events(self) -> None:
        """Of all topics together: a client that goes on elsewhere would never get them."""
        session = self.session(session_window_bytes=1)
        for seq in (7, 8, 9):
            run = Run(topic="t", term=5, first_seq=seq, count=1, events=bytes(60))
            session.offer("t", Content(run), 1, 0.0)
        for term in (5, 6):
            session.tell_position(
                STREAMS, Content(Run(topic=STREAMS, term=term, first_seq=10)), 0.0
            )
        (sent,) = session.take_output(1, 0.0)
        assert sent.bodies[0] == Run(topic="t", term=5, first_seq=7, count=1, events=bytes(60))
        session.confirm(Subscribed(request=1))
        (answer,) = session.take_output(1_000, 0.0)
        (subscribed,) = answer.bodies
        assert isinstance(subscribed, Subscribed)
        places = [(stamp.term, stamp.seq) for each in subscribed.positions for stamp in each.seen]
        assert places == [(5, 7), (6, 9)]

    def test_a_place_in_a_stream_is_not_said_before_a_gap(self) -> None:
        """A client that goes on elsewhere from there would never be told of it."""
        session = self.session(session_window_bytes=1)
        session.offer("t", Content(Run(topic="t", term=5, first_seq=7, count=1)), 1, 0.0)
        session.take_output(1, 0.0)
        for term in (5, 6):
            place = Content(Run(topic=STREAMS, term=term, first_seq=10))
            session.tell_position(STREAMS, place, 0.0)
            session.tell_missed(Missed(topic="t"), 0.0)
        session.confirm(Subscribed(request=1))
        (answer,) = session.take_output(1_000, 0.0)
        (subscribed,) = answer.bodies
        assert isinstance(subscribed, Subscribed)
        assert [each.seen[0].term for each in subscribed.positions] == [5]

    def test_what_waited_too_long_is_counted(self) -> None:
        session = self.session()
        session.detach(0.0)
        for i in range(5):
            session.offer("t", Content(), 2, float(i))
        assert session.expire(3.0) == 6
        assert session.queued_events == 4
        session.attach(ConnectionId("d"), 2, 9.0)
        session.offer("t", Content(), 1, 9.0)
        bodies = [body for content in session.take_output(1_000, 9.0) for body in content.bodies]
        assert [(body.cause, body.count) for body in bodies if isinstance(body, Missed)] == [
            (MissCause.MISS_CAUSE_EXPIRED, 6)
        ]

    def test_answers_do_not_outlive_their_connection(self) -> None:
        session = self.session()
        event = Content(Run(topic="t", events=b"x"))
        session.say(Echoed())
        session.offer("t", event, 1, 0.0)
        session.detach(1.0)
        session.say(Echoed())
        session.attach(ConnectionId("d"), 2, 9.0)
        assert session.take_output(1_000, 2.0) == [event]
