"""What of a store's deliveries is new, and what it covers: rows of its log, and marks."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.store_units import side_unit
from broker_agent.core.sessions.content import Body, Content
from broker_agent.core.stores.intake import StoreIntake
from broker_agent.core.stores.log.log_requests import UnitExtent
from broker_agent.core.stores.log.log_rows import LogRow, Stamp
from broker_agent.core.stores.marks import Mark
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import MissCause, Missed
from dynatops.v1.overlay_pb2 import Run
from tests.support.nodes import events

TOPIC = "quake/ca"


class Taking:
    """An intake, and what it has made of what it was told last."""

    def __init__(
        self, extents: Mapping[str, UnitExtent] | None = None, *, shares_numbers: bool = False
    ) -> None:
        self.shares_numbers = shares_numbers
        self.counters = BrokerCounters()
        self.intake = StoreIntake(self, extents or {}, 3, self.counters)
        self.marks: dict[str, Mark] = {}

    def unit_of(self, topic: str, term: int) -> str:
        return f"{term:x}" if self.shares_numbers else topic

    def rows(self, *bodies: Body) -> list[LogRow]:
        rows, had = self.intake.rows_of([Content(body) for body in bodies], 77)
        self.marks = {each.topic: each.mark for each in had}
        return rows

    def ranges(self, *bodies: Body) -> list[tuple[Stamp, Stamp]]:
        return [(row.after, row.upto) for row in self.rows(*bodies)]


def _run(
    term: int,
    seq: int,
    count: int = 1,
    *,
    prev: Stamp = (0, 0),
    topic: str = TOPIC,
    number: int = 0,
) -> Run:
    return Run(
        topic=topic,
        term=term,
        first_seq=seq,
        count=count,
        publisher=7,
        first_number=number or seq,
        events=events(*(b"x" for _ in range(count))),
        prev_term=prev[0],
        prev_seq=prev[1],
    )


def _missed(topic: str = TOPIC) -> Missed:
    return Missed(topic=topic, cause=MissCause.MISS_CAUSE_NOT_RETAINED, count=1)


class TestOnARing:
    def test_a_topic_from_its_beginning_is_whole(self) -> None:
        taking = Taking()
        assert taking.ranges(_run(5, 1, 2), _run(5, 3)) == [((0, 0), (5, 2)), ((5, 2), (5, 3))]
        assert taking.marks[TOPIC] == Mark((0, 0), (0, 0), (5, 3))

    def test_a_topic_is_read_from_where_it_stood(self) -> None:
        taking = Taking()
        assert taking.rows(_run(5, 10, 0)) == []
        assert taking.ranges(_run(5, 10, 2)) == [((5, 9), (5, 11))]
        assert taking.marks[TOPIC].since == (5, 9)

    def test_the_next_term_goes_on_where_its_history_says(self) -> None:
        taking = Taking()
        taking.rows(_run(5, 1, 2))
        assert taking.ranges(_run(6, 1, prev=(5, 2))) == [((5, 2), (6, 1))]
        assert taking.marks[TOPIC] == Mark((0, 0), (5, 2), (6, 1))

    def test_what_is_missing_is_between_two_places(self) -> None:
        taking = Taking()
        taking.rows(_run(5, 1, 2))
        assert taking.ranges(_run(5, 5)) == [((5, 4), (5, 5))]
        assert taking.marks[TOPIC].since == (5, 4)
        assert taking.ranges(_run(7, 1, prev=(5, 9))) == [((7, 0), (7, 1))]
        assert taking.marks[TOPIC].since == (7, 0)

    def test_a_term_without_a_past_may_have_lost_one(self) -> None:
        taking = Taking()
        taking.rows(_run(5, 1))
        assert taking.ranges(_run(6, 1)) == [((6, 0), (6, 1))]

    def test_after_a_loss_it_begins_anew(self) -> None:
        """Even if stamps follow each other: who told it knows why."""
        taking = Taking()
        taking.rows(_run(5, 1))
        assert taking.ranges(_missed(), _run(5, 2)) == [((5, 1), (5, 2))]
        assert taking.marks[TOPIC].since == (5, 1)
        taking.rows(_run(5, 3))
        assert taking.marks[TOPIC].since == (5, 1)

    def test_repeats_are_left_out(self) -> None:
        taking = Taking()
        taking.rows(_run(5, 1, 3))
        assert taking.rows(_run(5, 2, 2)) == []
        (row,) = taking.rows(_run(5, 2, 4))
        assert (row.after, row.first, row.last, row.events) == ((5, 3), 4, 5, 2)
        assert row.number == 4

    def test_another_branch_of_its_history_is_kept_apart(self) -> None:
        taking = Taking()
        taking.rows(_run(5, 1), _run(7, 1, prev=(5, 1)))
        (row,) = taking.rows(_run(6, 4))
        assert row.unit == side_unit(TOPIC, 6)
        assert (row.after, row.upto) == ((6, 3), (6, 4))
        assert taking.ranges(_run(7, 2)) == [((7, 1), (7, 2))]

    def test_it_goes_on_where_its_log_stands(self) -> None:
        extent = UnitExtent((0, 0), (5, 8), [((5, 2), (5, 4))])
        taking = Taking({TOPIC: extent})
        assert taking.rows(_run(5, 7, 2)) == []
        assert taking.ranges(_run(5, 9)) == [((5, 8), (5, 9))]
        # Of what is before the hole nothing is said.
        assert taking.marks[TOPIC].since == (5, 4)

    def test_of_more_topics_than_there_is_room_for_the_further_ones_are_left_out(self) -> None:
        taking = Taking()
        rows = taking.rows(*(_run(5, 1, topic=f"t{number}") for number in range(4)))
        assert [row.topic for row in rows] == ["t0", "t1", "t2"]
        assert taking.counters.store_units_refused == 1
        assert taking.rows(_run(5, 2, topic="t1")) != []


class TestInATree:
    def test_numbers_of_others_are_covered(self) -> None:
        taking = Taking(shares_numbers=True)
        taking.rows(Run(topic=STREAMS, term=9, first_seq=1))
        ranges = taking.ranges(_run(9, 3), _run(9, 8, topic="quake/nv"))
        assert ranges == [((9, 0), (9, 3)), ((9, 3), (9, 8))]
        assert taking.marks == {
            TOPIC: Mark((9, 0), (0, 0), (9, 3)),
            "quake/nv": Mark((9, 0), (0, 0), (9, 8)),
        }

    def test_how_far_a_stream_is_with_nothing_for_it_is_kept(self) -> None:
        taking = Taking(shares_numbers=True)
        taking.rows(_run(9, 3))
        (row,) = taking.rows(Run(topic=STREAMS, term=9, first_seq=51))
        assert (row.events, row.after, row.upto) == (0, (9, 3), (9, 50))
        assert taking.ranges(_run(9, 60)) == [((9, 50), (9, 60))]

    def test_any_loss_ends_all_places(self) -> None:
        taking = Taking(shares_numbers=True)
        taking.rows(_run(8, 1), _run(9, 1))
        assert taking.ranges(_missed("quake/#"), _run(8, 5), _run(9, 7)) == [
            ((8, 4), (8, 5)),
            ((9, 6), (9, 7)),
        ]

    def test_nothing_counts_before_it_goes_on(self) -> None:
        taking = Taking({"9": UnitExtent((9, 0), (9, 4), [])}, shares_numbers=True)
        taking.intake.goes_on_with(1)
        assert taking.rows(_run(9, 9), Run(topic=STREAMS, term=9, first_seq=10)) == []
        assert taking.ranges(Run(topic=STREAMS, first_seq=1), _run(9, 6)) == [((9, 4), (9, 6))]
