"""Work of a subscription in virtual time, and what becomes of deliveries taken in part."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.redelivery import Piece, with_marks
from dynatops.client.core.taking import Taking
from dynatops.client.core.work import Work, WorkItem, WorkLimits
from dynatops.client.events import Event
from dynatops.client.subscription import EventQueue
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import (
    EventMark,
    Received,
    Redelivered,
    SerialRange,
)
from dynatops.v1.overlay_pb2 import Run
from simulator.disk import SimulatedDisk
from tests.support.brokers import LoneBroker
from tests.support.nodes import events, publication

TOPIC = "orders"


def work(count: int, **limits: float) -> Work:
    made = Work(WorkLimits(**limits))  # type: ignore[arg-type]
    for i in range(count):
        made.put(WorkItem(Event(TOPIC, b"", 0, 5, i + 1), None, i, 0))
    return made


def seqs(made: Work, now_s: float) -> list[int]:
    found: list[int] = []
    while (item := made.next(now_s)) is not None:
        found.append(item.event.seq)
    return found


class TestWork:
    def test_no_more_are_out_than_may_be(self) -> None:
        made = work(5, max_in_flight=2)
        first, second = made.next(0.0), made.next(0.0)
        assert first is not None
        assert second is not None
        assert made.next(0.0) is None
        assert made.finish(second)
        assert not made.finish(second)
        assert seqs(made, 0.0) == [3]

    def test_given_back_it_waits_and_counts_as_out(self) -> None:
        made = work(3, max_in_flight=1)
        item = made.next(0.0)
        assert item is not None
        assert made.give_back(item, 5.0, 0.0)
        assert not made.give_back(item, 5.0, 0.0)
        assert made.next(4.9) is None
        assert made.next_due_s() == 5.0
        assert made.next(5.0) is item
        assert item.deliveries == 2

    def test_nobody_says_anything_of_it(self) -> None:
        made = work(2, ack_wait_s=10.0)
        slow, quick = made.next(0.0), made.next(1.0)
        assert slow is not None
        assert quick is not None
        assert made.is_at_work(slow, 8.0)
        assert made.next_due_s() == 11.0
        assert made.next(11.0) is quick
        assert made.next(18.0) is slow
        assert (slow.deliveries, quick.deliveries) == (2, 2)

    def test_zero_is_for_ever(self) -> None:
        made = work(1, ack_wait_s=0.0)
        assert made.next(0.0) is not None
        assert made.next_due_s() is None
        assert made.next(1e9) is None

    def test_done_late_it_does_not_come_again(self) -> None:
        made = work(1, ack_wait_s=10.0)
        item = made.next(0.0)
        assert item is not None
        assert made.next_due_s() == 10.0
        assert made.give_back(item, 1.0, 0.0)
        assert made.finish(item)
        assert made.next(100.0) is None
        assert made.in_flight == 0

    def test_handed_out_too_often_it_is_exhausted(self) -> None:
        made = work(2, max_deliver=2, max_in_flight=1)
        for now_s in (0.0, 1.0):
            item = made.next(now_s)
            assert item is not None
            assert not made.is_exhausted(item)
            made.give_back(item, 0.0, now_s)
        item = made.next(2.0)
        assert item is not None
        assert made.is_exhausted(item)
        assert item.deliveries == 2
        # Until it has been dealt with it is in flight.
        assert made.next(2.0) is None
        assert item in made.items()
        made.finish(item)
        assert seqs(made, 2.0) == [2]

    def test_what_waits_and_is_done_is_not_kept_for_ever(self) -> None:
        made = work(100, max_in_flight=1)
        for _ in range(100):
            item = made.next(0.0)
            assert item is not None
            made.give_back(item, 1e6, 0.0)
            made.finish(item)
        assert len(made._waiting) <= 2


class TestTakingInPart:
    def queue(self) -> EventQueue:
        return EventQueue([Filter.parse(TOPIC)], None, lambda: None)

    def test_marks_then_the_whole_beyond_then_up_to(self) -> None:
        taking = Taking()
        first, second = taking.open(1), taking.open(2)
        for delivery in (first, second):
            for offset in (0, 1):
                taking.hold(delivery, offset)
        taking.hand_out(second, 1, 3)
        assert taking.marks() == [EventMark(serial=2, first=1, last=1, deliveries=3)]
        taking.release(second, 0)
        assert (taking.taken(), taking.beyond()) == (0, [])
        assert taking.marks() == [EventMark(serial=2, first=0, last=0)]
        taking.release(second, 1)
        assert taking.beyond() == [SerialRange(first=2, last=2)]
        assert taking.marks() == []
        taking.release(first, 0)
        taking.release(first, 1)
        assert taking.taken() == 2
        assert (taking.beyond(), taking.marks()) == ([], [])

    def test_another_connection_hears_all_of_it_again(self) -> None:
        taking = Taking()
        first, second, third = (taking.open(serial) for serial in (1, 2, 3))
        taking.hold(first, 0)
        taking.hold(second, 0)
        taking.hold(second, 1)
        taking.hold(third, 0)
        taking.hand_out(first, 0, 2)
        taking.release(second, 1)
        taking.release(third, 0)
        taking.marks()
        taking.beyond()
        taking.tell_again()
        assert taking.beyond() == [SerialRange(first=3, last=3)]
        assert taking.marks() == [
            EventMark(serial=1, first=0, last=0, deliveries=2),
            EventMark(serial=2, first=1, last=1),
        ]

    def test_of_a_new_session_nothing_is_taken_before_the_former_is(self) -> None:
        """What comes again looks empty to a client that has it in hand."""
        taking = Taking()
        held = taking.open(7)
        taking.hold(held, 0)
        taking.begin_anew(0)
        taking.note_given(1, [])
        assert (taking.taken(), taking.beyond(everything=True)) == (0, [])
        taking.release(held, 0)
        assert taking.taken() == 1

    def test_let_go_of_but_not_read_it_is_not_taken(self) -> None:
        """A subscription that takes by reading took up what nobody had asked for."""
        taking, queue = Taking(), self.queue()
        delivery = taking.open(1)
        taking.hold(delivery, 0)
        queue.put([Event(TOPIC, b"", 0, 5, 1)])
        delivery.needs.append((queue, 1))
        taking.release(delivery, 0)
        assert (taking.taken(), taking.beyond(), taking.marks()) == (0, [], [])
        queue.close()
        assert taking.taken() == 1

    def test_what_nobody_reads_holds_up_only_itself(self) -> None:
        taking, idle, busy = Taking(), self.queue(), self.queue()
        idle.put([Event(TOPIC, b"", 0, 5, 1)])
        taking.note_given(3, [idle])
        taking.note_given(9, [busy])
        assert taking.taken() == 0
        assert taking.beyond(everything=True) == [SerialRange(first=4, last=9)]
        assert taking.beyond(everything=True) == []


class TestMarks:
    def piece(self, count: int) -> Piece:
        run = Run(topic=TOPIC, term=5, first_seq=1, count=count, events=events(*[b"x"] * count))
        return Piece(Content(run), count, 4, TOPIC, 0.0)

    def test_are_written_into_the_piece_again_and_again(self) -> None:
        piece = with_marks(
            self.piece(4), [EventMark(first=1, last=2), EventMark(first=3, last=3, deliveries=2)]
        )
        assert piece is not None
        assert piece.events == 2
        redelivered, run = piece.content.bodies
        assert isinstance(redelivered, Redelivered)
        assert isinstance(run, Run)
        assert [(m.first, m.deliveries) for m in redelivered.marks] == [(3, 2)]
        assert (run.partial, list(run.selected)) == (True, [0, 3])
        piece = with_marks(piece, [EventMark(first=0, last=0)])
        assert piece is not None
        redelivered, run = piece.content.bodies
        assert isinstance(redelivered, Redelivered)
        assert isinstance(run, Run)
        assert list(run.selected) == [3]
        assert [(m.first, m.deliveries) for m in redelivered.marks] == [(3, 2)]
        assert with_marks(piece, [EventMark(first=0, last=(1 << 32) - 1)]) is None

    def test_of_what_cannot_be_read_change_nothing(self) -> None:
        run = Run(topic=TOPIC, count=(1 << 32) - 1, events=b"\xff")
        piece = Piece(Content(run), 1, 4, TOPIC, 0.0)
        assert with_marks(piece, [EventMark(first=0, last=9)]) is piece


class TestAtTheBroker:
    def broker(self, disk: SimulatedDisk | None = None) -> LoneBroker:
        lone = LoneBroker(CoreSettings(), disk=disk)
        lone.run(0.3)
        lone.connect("pub")
        lone.connect("c1", client_id="ann", keep_s=60)
        lone.subscribe("c1", TOPIC)
        lone.flush(everything=True)
        lone.hear_all("c1")
        for number in (1, 4, 7):
            lone.publish("pub", publication(TOPIC, number, publisher=5, count=3))
            lone.run(0.2)
        lone.hear_all("c1")
        return lone

    def come_again(self, lone: LoneBroker) -> list[str]:
        """What a new connection hears, in short."""
        lone.connect("c9", client_id="ann", keep_s=60)
        said: list[str] = []
        for message in lone.hear_all("c9"):
            if message.HasField("skipped"):
                said.append(f"skipped {message.skipped.count}")
            elif message.HasField("redelivered"):
                said.append(f"redelivered {[m.first for m in message.redelivered.marks]}")
            elif message.HasField("run"):
                run = message.run
                said.append(f"{run.first_number}: {list(run.selected) if run.partial else 'all'}")
        return said

    def say(self, lone: LoneBroker) -> None:
        """Serials: 1 the position, 2 to 4 the runs."""
        received = Received(
            serial=1,
            beyond=[SerialRange(first=3, last=3)],
            marks=[
                EventMark(serial=4, first=0, last=2, deliveries=1),
                EventMark(serial=4, first=1, last=1),
                # Not sent, and beyond all bounds: of no interest.
                EventMark(serial=99, first=0, last=(1 << 32) - 1),
            ],
        )
        lone.say("c1", received=received)

    def test_a_new_connection_hears_the_rest(self) -> None:
        lone = self.broker()
        self.say(lone)
        lone.disconnect("c1")
        assert self.come_again(lone) == ["1: all", "skipped 1", "redelivered [0, 2]", "7: [0, 2]"]
        lone.disconnect("c9")
        # And the one after that, too.
        assert self.come_again(lone) == ["1: all", "skipped 1", "redelivered [0, 2]", "7: [0, 2]"]

    def test_so_does_the_next_life_of_the_broker(self) -> None:
        lone = self.broker(SimulatedDisk())
        for _ in range(3):
            lone.flush()
        self.say(lone)
        # The first write fails: what it held is written by the next.
        lone.flush(fails=True)
        for _ in range(3):
            lone.flush()
        again = lone.restarted()
        again.run(0.3)
        assert self.come_again(again) == ["1: all", "skipped 1", "redelivered [0, 2]", "7: [0, 2]"]

    def test_what_is_taken_beyond_makes_room(self) -> None:
        lone = self.broker()
        session = lone.core.registry.clients["ann"]
        before = session.untaken_bytes
        self.say(lone)
        assert session.untaken_bytes < before
        lone.say("c1", received=Received(serial=4))
        assert session.untaken_bytes == 0

    def test_a_hostile_client_marks_without_end(self) -> None:
        lone = self.broker()
        session = lone.core.registry.clients["ann"]
        for _ in range(20):
            marks = [EventMark(serial=4, last=(1 << 32) - 1, deliveries=7)] * 300
            lone.say("c1", received=Received(serial=1, marks=marks))
        assert session._marked < 1_000
        assert session.connection == ConnectionId("c1")
