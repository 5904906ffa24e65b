"""A client's core: what it hears, once, and where it goes on after a loss of the connection."""

from __future__ import annotations

import asyncio
from typing import Any

from dynatops.client.core.client_core import ClientCore, Item
from dynatops.client.core.reading import Arrived
from dynatops.client.core.taking import Taking
from dynatops.client.events import Event
from dynatops.client.subscription import EventQueue
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter as ParsedFilter
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import (
    ClientFrame,
    Cursor,
    Filter,
    MissCause,
    Missed,
    ServerMessage,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Run, TermSeq
from tests.support.clients import TOPIC, hear, new_core, take


def run(seq: int, *, term: int = 5, number: int = 0, count: int = 1, topic: str = TOPIC) -> Run:
    return Run(
        topic=topic, term=term, first_seq=seq, count=count, publisher=9,
        first_number=number or seq,
    )  # fmt: skip


def beat(seq: int, *, term: int = 5, topic: str = TOPIC) -> Run:
    """The topic stands at `seq`."""
    return Run(topic=topic, term=term, first_seq=seq + 1)


def stamps(items: list[Item]) -> list[tuple[int, int]]:
    return [
        (item.run.term, item.run.first_seq + offset)
        for item in items
        if isinstance(item, Arrived)
        for _, offset in item.places
    ]


def subscribed(core: ClientCore, *patterns: str) -> ClientCore:
    """A core whose filters are confirmed; where the topics stand has been told."""
    number = core.subscribe([(pattern, "") for pattern in patterns])
    take(core)
    for pattern in patterns:
        if "+" not in pattern and "#" not in pattern:
            hear(core, run=beat(0, topic=pattern))
    hear(core, subscribed=Subscribed(request=number))
    return core


class TestHearing:
    def test_a_stamp_seen_before_is_not_handed_on_again(self) -> None:
        core = subscribed(new_core(), TOPIC)
        assert stamps(hear(core, run=run(1))) == [(5, 1)]
        assert stamps(hear(core, run=run(1))) == []
        assert stamps(hear(core, run=run(1, count=3))) == [(5, 2), (5, 3)]

    def test_an_event_stamped_again_is_not_handed_on_again(self) -> None:
        core = subscribed(new_core(), TOPIC)
        hear(core, run=run(1, count=2))
        assert stamps(hear(core, run=run(1, term=6, number=2, count=2))) == [(6, 2)]

    def test_topics_given_up_are_not_heard(self) -> None:
        core = subscribed(new_core(), TOPIC)
        core.unsubscribe([(TOPIC, "")])
        assert hear(core, run=run(1)) == []

    def test_a_partial_run_brings_some_events_and_tells_of_all(self) -> None:
        core = subscribed(new_core(), TOPIC)
        partial = run(1, count=5)
        partial.partial = True
        partial.selected.extend([1, 4])
        (item,) = hear(core, run=partial)
        assert isinstance(item, Arrived)
        assert item.places == [(0, 1), (1, 4)]
        assert hear(core, run=run(5)) == []
        assert stamps(hear(core, run=run(6))) == [(5, 6)]


class TestGoingOn:
    """After a loss of the connection, with the same session or with cursors."""

    def go_on(self, core: ClientCore, **welcome: object) -> list[Any]:
        core.disconnected()
        core.connected()
        hear(core, welcome=Welcome(**welcome))  # type: ignore[arg-type]
        return [getattr(m, str(m.WhichOneof("body"))) for m in take(core).messages]

    def test_elsewhere_filters_are_renewed_with_cursors(self) -> None:
        core = subscribed(new_core(), TOPIC, "fire/#")
        hear(core, run=run(1, count=7))
        hear(core, run=run(3, topic="fire/a"))
        (subscribe,) = self.go_on(core, session_id="b1/1", serial=1)
        assert subscribe.resume
        assert [f.pattern for f in subscribe.filters] == [TOPIC, "fire/#"]
        assert {c.topic: list(c.seen) for c in subscribe.cursors} == {
            TOPIC: [TermSeq(term=5, seq=7)],
            "fire/a": [TermSeq(term=5, seq=3)],
        }
        assert hear(core, run=run(7)) == []
        assert stamps(hear(core, run=run(8))) == [(5, 8)]

    def test_in_the_same_session_only_what_was_not_had_counts(self) -> None:
        core = ClientCore("ann", b"s" * 16)
        core.connected()
        hear(core, welcome=Welcome(session_id="s", serial=1))
        subscribed(core, TOPIC)
        hear(core, run=run(1))
        hear(core, missed=Missed(topic=TOPIC, count=4))
        present = [Filter(pattern=TOPIC)]
        # The broker sends again from the second delivery on: the first was where the topic stood.
        said = self.go_on(core, session_id="s", serial=2, resumed=True, filters=present)
        assert said == []
        assert hear(core, run=run(1)) == []
        assert hear(core, missed=Missed(topic=TOPIC, count=4)) == []
        assert stamps(hear(core, run=run(6))) == [(5, 6)]

    def test_what_changed_meanwhile_is_said(self) -> None:
        core = subscribed(new_core(), "a", "b")
        core.disconnected()
        core.unsubscribe([("a", "")])
        core.subscribe([("c", "")])
        present = [Filter(pattern="a"), Filter(pattern="b")]
        said = self.go_on(core, session_id="s", serial=1, resumed=True, filters=present)
        new, gone = said
        assert [f.pattern for f in new.filters] == ["c"]
        assert not new.resume
        assert [f.pattern for f in gone.filters] == ["a"]

    def test_a_process_that_comes_back_finds_its_filters_unclaimed(self) -> None:
        core = ClientCore("ann", b"s" * 16)
        core.connected()
        present = [Filter(pattern="a"), Filter(pattern="b/#")]
        hear(core, welcome=Welcome(session_id="s", serial=5, resumed=True, filters=present))
        assert list(core.reading.unclaimed) == [("a", ""), ("b/#", "")]
        assert stamps(hear(core, run=run(1, topic="b/c"))) == [(5, 1)]
        core.subscribe([("a", "")])
        assert list(core.reading.unclaimed) == [("b/#", "")]
        assert take(core).messages

    def test_a_request_in_the_air_is_said_again(self) -> None:
        core = new_core()
        number = core.subscribe([(TOPIC, "")])
        take(core)
        (subscribe,) = self.go_on(core)
        assert (subscribe.request, subscribe.resume) == (number, False)

    def test_the_broker_is_told_what_was_taken(self) -> None:
        core = subscribed(new_core(), TOPIC)
        hear(core, run=run(1))
        core.taken(2)
        assert core.take_frame(100) is None
        frame = core.take_frame(100, tell=True) or ClientFrame()
        assert [m.received.serial for m in frame.messages] == [2]
        assert core.take_frame(100, tell=True) is None
        core.taken(2 + 64)
        assert [m.received.serial for m in take(core).messages] == [66]

    def test_losses_are_told_once(self) -> None:
        core = subscribed(new_core(), TOPIC)
        cause = MissCause.MISS_CAUSE_NOT_RETAINED
        missed = Missed(topic=TOPIC, cause=cause, count=3)
        assert hear(core, missed=missed) == [missed]

    def test_a_claimed_filter_is_gone_on_with_elsewhere(self) -> None:
        """It was in place in the session already, whether this process was told so or not."""
        core = ClientCore("ann", b"s" * 16)
        core.connected()
        present = [Filter(pattern="a")]
        hear(core, welcome=Welcome(session_id="s", serial=5, resumed=True, filters=present))
        core.subscribe([("a", ""), ("b", "")])
        renewed, asked = self.go_on(core, session_id="t", serial=1)
        assert renewed.resume
        assert [f.pattern for f in renewed.filters] == ["a"]
        assert not asked.resume

    def test_elsewhere_a_process_that_was_not_told_where_its_session_stood_is_told_of_a_gap(
        self,
    ) -> None:
        """What the session had not heard may be retained nowhere, and no cursor can show it."""
        core = ClientCore("ann", b"s" * 16)
        core.connected()
        present = [Filter(pattern=pattern) for pattern in ("told", "untold", "a/#", "later/#")]
        hear(core, welcome=Welcome(session_id="s", serial=5, resumed=True, filters=present))
        core.subscribe([("told", ""), ("untold", ""), ("a/#", ""), ("new/#", "")])
        hear(core, run=beat(3, topic="told"))
        core.disconnected()
        core.connected()
        _, *gaps = hear(core, welcome=Welcome(session_id="t", serial=1))
        cause = MissCause.MISS_CAUSE_NOT_RETAINED
        assert gaps == [Missed(topic=t, cause=cause) for t in ("untold", "a/#", "later/#")]

    def test_in_the_same_session_such_a_process_misses_nothing(self) -> None:
        core = ClientCore("ann", b"s" * 16)
        core.connected()
        present = [Filter(pattern="a/#")]
        hear(core, welcome=Welcome(session_id="s", serial=5, resumed=True, filters=present))
        core.subscribe([("a/#", "")])
        core.disconnected()
        core.connected()
        # The broker was started again: its session has another name since.
        again = Welcome(session_id="s~2", serial=5, resumed=True, filters=present)
        assert hear(core, welcome=again) == [again]

    def test_the_confirmation_of_a_renewal_is_not_that_of_a_new_wish(self) -> None:
        core = subscribed(new_core(), TOPIC)
        (renewal,) = self.go_on(core, session_id="t", serial=1)
        core.unsubscribe([(TOPIC, "")])
        number = core.subscribe([(TOPIC, "")])
        hear(core, subscribed=Subscribed(request=renewal.request))
        assert core.reading.confirmed == []
        hear(core, subscribed=Subscribed(request=number))
        assert core.reading.confirmed == [(TOPIC, "")]


class TestStreams:
    """Brokers in a tree number what they take over all topics: one cursor for all filters."""

    def core(self) -> ClientCore:
        core = new_core()
        number = core.subscribe([(TOPIC, ""), ("fire/#", "")])
        take(core)
        hear(core, subscribed=Subscribed(request=number, positions=[self.places({5: 40, 6: 7})]))
        return core

    def places(self, reached: dict[int, int]) -> Cursor:
        seen = [TermSeq(term=stream, seq=number) for stream, number in reached.items()]
        return Cursor(topic=STREAMS, seen=seen)

    def cursors_elsewhere(self, core: ClientCore) -> list[Cursor]:
        core.disconnected()
        core.connected()
        hear(core, welcome=Welcome(session_id="b1/1", serial=1))
        (said,) = take(core).messages
        return list(said.subscribe.cursors)

    def test_elsewhere_it_goes_on_in_each_stream(self) -> None:
        core = self.core()
        hear(core, run=run(43, count=2))
        hear(core, run=run(9, term=6, topic="fire/a"))
        assert self.cursors_elsewhere(core) == [self.places({5: 44, 6: 9})]
        assert hear(core, run=run(44)) == []
        assert stamps(hear(core, run=run(50, number=45))) == [(5, 50)]

    def test_events_that_it_does_not_want_move_it_too(self) -> None:
        core = self.core()
        hear(core, run=Run(topic=STREAMS, term=8, first_seq=101))
        bundle = Bundle(9, [TOPIC, "other"], [1, 1], [0, 0], [b"x", b"y"])
        bundle.terms, bundle.seqs = [5, 5], [41, 42]
        message = ServerMessage()
        bundle.fill(message.bundle)
        hear(core, bundle=message.bundle)
        assert self.cursors_elsewhere(core) == [self.places({5: 42, 6: 7, 8: 100})]

    def test_what_the_application_has_not_taken_comes_again(self) -> None:
        core = self.core()
        hear(core, run=run(41, count=5))
        core.reading.oldest_held = lambda: {TOPIC: {5: 43}, "fire/a": {6: 8}}
        assert self.cursors_elsewhere(core) == [self.places({5: 42, 6: 7})]

    def going_on(self, core: ClientCore, *, newest: int = 0) -> int:
        """It comes to a session that has less than it wants; the number of its request."""
        core.disconnected()
        core.connected()
        present = [Filter(pattern="fire/#")]
        welcome = Welcome(session_id="b1/1", serial=1, filters=present, newest_serial=newest)
        hear(core, welcome=welcome)
        (said,) = take(core).messages
        assert list(said.subscribe.cursors) == [self.places({5: 40, 6: 7})]
        return int(said.subscribe.request)

    def test_what_the_session_has_for_some_filters_is_not_read_before_all_go_on(self) -> None:
        """A place is one for all of them: read, it would move past what others have missed."""
        core = self.core()
        request = self.going_on(core, newest=2)
        assert hear(core, run=run(60, topic="fire/a")) == []
        # What was left of an earlier request.
        hear(core, run=Run(topic=STREAMS, first_seq=request))
        assert hear(core, run=run(61, topic="fire/a")) == []
        assert hear(core, run=Run(topic=STREAMS, term=5, first_seq=71)) == []
        hear(core, subscribed=Subscribed(request=9, positions=[self.places({5: 80})]))
        hear(core, run=Run(topic=STREAMS, first_seq=request))
        assert stamps(hear(core, run=run(41))) == [(5, 41)]
        assert stamps(hear(core, run=run(60, topic="fire/a"))) == [(5, 60)]
        assert self.cursors_elsewhere(core) == [self.places({5: 60, 6: 7})]

    def test_that_an_earlier_request_goes_on_is_no_place(self) -> None:
        core = self.core()
        hear(core, run=Run(topic=STREAMS, first_seq=3))
        assert self.cursors_elsewhere(core) == [self.places({5: 40, 6: 7})]

    def test_if_the_connection_is_lost_before_that_all_go_on_anew(self) -> None:
        core = self.core()
        self.going_on(core)
        hear(core, run=run(60, topic="fire/a"))
        self.going_on(core)
        # They are all in place by now.
        core.disconnected()
        core.connected()
        both = [Filter(pattern=TOPIC), Filter(pattern="fire/#")]
        hear(core, welcome=Welcome(session_id="b1/1", serial=1, filters=both, newest_serial=1))
        (said,) = take(core).messages
        assert said.subscribe.resume
        assert {each.pattern for each in said.subscribe.filters} == {TOPIC, "fire/#"}

    def test_with_nothing_left_to_go_on_with_all_is_read(self) -> None:
        core = self.core()
        self.going_on(core)
        core.unsubscribe([(TOPIC, ""), ("fire/#", "")])
        core.subscribe([("new", "")])
        core.disconnected()
        core.connected()
        hear(core, welcome=Welcome(session_id="b2/1", serial=1, newest_serial=0))
        assert stamps(hear(core, run=run(1, term=9, topic="new"))) == [(9, 1)]

    def test_losses_are_told_meanwhile_too(self) -> None:
        core = self.core()
        self.going_on(core)
        missed = Missed(topic="fire/#", cause=MissCause.MISS_CAUSE_NOT_RETAINED)
        assert hear(core, missed=missed) == [missed]

    def test_streams_are_bounded_and_the_oldest_go(self) -> None:
        core = self.core()
        for stream in range(10, 10 + 4_096):
            hear(core, run=Run(topic=STREAMS, term=stream, first_seq=2))
        (cursor,) = self.cursors_elsewhere(core)
        assert [len(cursor.seen), cursor.seen[0].term] == [4_096, 10]


class TestMissingNumbers:
    """Said to be missing by a run: they may come late, stamped anew."""

    def hears_late(self, *heard: int) -> bool:
        core = subscribed(new_core(), TOPIC)
        for number in heard:
            hear(core, run=run(number, number=number))
        third = run(3, number=3)
        third.missing = 1
        hear(core, run=third)
        return stamps(hear(core, run=run(1, term=6, number=2))) == [(6, 1)]

    def test_after_an_earlier_one_was_heard_they_are_wanted(self) -> None:
        assert self.hears_late(1)

    def test_before_anything_was_heard_they_may_be_too(self) -> None:
        """They may have been published on the other side after reading began on this one."""
        assert self.hears_late()


class TestOtherStreams:
    """A publisher that changes brokers has numbers in several streams of a tree."""

    def hears_late(self, core: ClientCore, number: int) -> bool:
        return stamps(hear(core, run=run(1, term=6, number=number))) == [(6, 1)]

    def test_a_process_that_hears_a_later_one_first_takes_those_before(self) -> None:
        core = subscribed(new_core(), TOPIC)
        later = run(9, number=9)
        later.since_number = 8
        hear(core, run=later)
        assert self.hears_late(core, 3)

    def test_those_that_are_together_are_repeats_elsewhere(self) -> None:
        """They were published again: the connection broke before they were acknowledged."""
        core = subscribed(new_core(), TOPIC)
        later = run(9, number=9)
        later.since_number = 8
        hear(core, run=later)
        assert not self.hears_late(core, 8)

    def test_bundles_say_so_too(self) -> None:
        core = subscribed(new_core(), TOPIC, "other")
        bundle = Bundle(9, [TOPIC, "other"], [4, 4], [0, 0], [b"x", b"y"])
        bundle.terms, bundle.seqs, bundle.since_numbers = [5, 5], [1, 2], [3, 0]
        hear(core, bundle=bundle.to_wire())
        assert self.hears_late(core, 2)
        assert stamps(hear(core, run=run(1, term=6, number=2, topic="other"))) == []

    def test_what_nobody_honest_says_of_them_does_no_harm(self) -> None:
        core = subscribed(new_core(), TOPIC)
        later = run(9, number=9)
        later.since_number = 1 << 60
        assert stamps(hear(core, run=later)) == [(5, 9)]


class TestWaiting:
    def test_of_several_tasks_one_that_gives_up_is_in_nobodys_way(self) -> None:
        async def scenario() -> None:
            queue = EventQueue([ParsedFilter.parse(TOPIC)], None, lambda: None)
            tasks = [asyncio.create_task(queue.get()) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            events = [Event(TOPIC, b"", 0, 5, seq) for seq in (1, 2)]
            queue.put(events[:1])
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            queue.put(events[1:])
            assert await asyncio.gather(*tasks[1:]) == events
            assert tasks[0].cancelled()

        asyncio.run(scenario())


class TestTaking:
    def queue(self, events: int) -> EventQueue:
        queue = EventQueue([ParsedFilter.parse(TOPIC)], None, lambda: None)
        queue.put([Event(TOPIC, b"", 0, 5, 1 + i) for i in range(events)])
        return queue

    def test_a_delivery_is_taken_once_all_its_subscriptions_are_read(self) -> None:
        taking, one, other = Taking(), self.queue(1), self.queue(1)
        taking.note_given(7, [one, other])
        one.close()
        assert taking.taken() == 0
        other.close()
        assert taking.taken() == 7

    def test_serials_of_a_former_session_mean_nothing_but_go_first(self) -> None:
        taking, queue, quiet = Taking(), self.queue(1), self.queue(0)
        taking.note_given(500, [queue])
        taking.begin_anew()
        taking.note_given(3, [quiet])
        assert taking.taken() == 0
        queue.close()
        assert taking.taken() == 3
