from __future__ import annotations

from random import Random

import pytest

from dynatops.v1.overlay_pb2 import Publication, Run, TopicState
from overlay.base.identifiers import Term, TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget
from overlay.history.topic_log import Appending, Merging, Stamping, TopicLog
from tests.support.nodes import publication

ONE, OTHER = TermOwner(0x111111), TermOwner(0x222222)


def new_log(settings: OverlaySettings | None = None, budget: LogBudget | None = None) -> TopicLog:
    log = TopicLog("t", settings or OverlaySettings(), budget or LogBudget(1 << 30))
    log.open_next_term(ONE)
    return log


def stamp(log: TopicLog, first: int, count: int = 1, publisher: int = 7) -> Run:
    outcome, run = log.stamp(publication("t", first, count=count, publisher=publisher), 0.0)
    assert outcome is Stamping.NEW
    assert run is not None
    return run


def copy_of(log: TopicLog) -> TopicLog:
    copy = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
    copy.load(log.to_state([]))
    return copy


def numbers(log: TopicLog, publisher: int = 7) -> list[int]:
    return [
        number
        for run in log.entries
        if run.publisher == publisher
        for number in range(run.first_number, run.first_number + run.count)
    ]


def test_stamps_run_on_within_a_term() -> None:
    log = new_log()
    first = stamp(log, 1, count=3)
    second = stamp(log, 4)
    assert (first.term, first.first_seq, second.first_seq) == (log.term, 1, 4)
    assert log.position == (log.term, 4)


def test_a_retry_is_a_repeat_and_an_early_one_waits() -> None:
    log = new_log()
    stamp(log, 1, count=2)
    assert log.stamp(publication("t", 1, count=2), 0.0) == (Stamping.REPEAT, None)
    assert log.stamp(publication("t", 5), 0.0) == (Stamping.TOO_EARLY, None)
    outcome, run = log.stamp(publication("t", 2, count=2), 0.0)
    assert outcome is Stamping.NEW
    assert run is not None
    assert (run.first_number, run.count, run.first_seq) == (3, 1, 3)


def test_void_numbers_are_passed_over() -> None:
    log = new_log()
    void = Publication(topic="t", publisher=7, first_number=1, count=2, void=True)
    assert log.stamp(void, 0.0) == (Stamping.REPEAT, None)
    assert stamp(log, 3).first_seq == 1


def test_events_acknowledged_in_an_unknown_history_are_waited_for() -> None:
    log = new_log()
    stamp(log, 1)
    late = publication("t", 5, settled=4)
    late.known_term, late.known_seq = Term(99 << 24), 3
    grace_s = OverlaySettings().history_grace_s
    assert log.stamp(late, 10.0)[0] is Stamping.TOO_EARLY
    assert log.stamp(late, 10.0 + grace_s - 0.1)[0] is Stamping.TOO_EARLY
    # A ring in motion may yet bring it.
    assert log.stamp(late, 10.0 + grace_s, 12.0)[0] is Stamping.TOO_EARLY
    outcome, run = log.stamp(late, 12.1 + grace_s, 12.0)
    assert outcome is Stamping.NEW
    assert run is not None
    assert run.missing == 3


def test_a_known_position_is_not_waited_for() -> None:
    log = new_log()
    stamp(log, 1)
    late = publication("t", 5, settled=4)
    late.known_term, late.known_seq = log.term, 1
    assert log.stamp(late, 10.0)[0] is Stamping.NEW


def test_terms_only_grow() -> None:
    log = new_log()
    with pytest.raises(ValueError, match="does not follow"):
        log.open_term(log.term)


class TestReplica:
    def test_takes_over_what_was_stamped_in_order(self) -> None:
        log = new_log()
        replica = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
        runs = [stamp(log, 1), stamp(log, 2), stamp(log, 3)]
        assert replica.append(runs[0]) is Appending.DONE
        assert replica.append(runs[2]) is Appending.GAP
        assert replica.append(runs[0]) is Appending.OLD
        assert replica.append(runs[1]) is Appending.DONE
        assert replica.append(runs[2]) is Appending.DONE
        assert replica.position == log.position

    def test_follows_into_a_term_that_begins_where_it_stands(self) -> None:
        log = new_log()
        replica = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
        replica.append(stamp(log, 1))
        log.open_next_term(OTHER)
        assert replica.append(stamp(log, 2)) is Appending.DONE
        assert replica.ends() == log.ends()

    def test_does_not_follow_into_another_history(self) -> None:
        log = new_log()
        replica = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
        replica.append(stamp(log, 1))
        stamp(log, 2)
        log.open_next_term(OTHER)
        assert replica.append(stamp(log, 3)) is Appending.GAP

    def test_remembers_publishers(self) -> None:
        log = new_log()
        replica = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
        replica.append(stamp(log, 1, count=4))
        replica.open_next_term(OTHER)
        assert replica.stamp(publication("t", 3, count=2), 0.0)[0] is Stamping.REPEAT


class TestBounds:
    def test_a_topic_keeps_so_many_events(self) -> None:
        log = new_log(OverlaySettings(log_events_max=10))
        for i in range(1, 31, 3):
            stamp(log, i, count=3)
        assert log.events == 9
        assert numbers(log)[0] == 22

    def test_a_topic_keeps_so_many_bytes_but_at_least_one_run(self) -> None:
        log = new_log(OverlaySettings(log_bytes_max=10))
        stamp(log, 1, count=3)
        stamp(log, 4, count=3)
        assert numbers(log) == [4, 5, 6]

    def test_a_node_keeps_so_many_bytes_and_quiet_topics_give_way(self) -> None:
        budget = LogBudget(3_000)
        quiet, busy = new_log(budget=budget), new_log(budget=budget)
        for i in range(1, 9):
            stamp(quiet, i)
        for i in range(1, 11):
            stamp(busy, i)
        assert budget.used <= 3_000
        assert len(quiet.entries) < 8
        assert len(busy.entries) == 10
        assert budget.trimmed_events == 8 - len(quiet.entries)

    def test_a_discarded_log_frees_its_bytes(self) -> None:
        budget = LogBudget(1 << 20)
        log = new_log(budget=budget)
        stamp(log, 1)
        log.discard()
        assert budget.used == 0


class TestRepair:
    def test_sends_what_was_missed(self) -> None:
        log = new_log()
        for i in range(1, 6):
            stamp(log, i)
        answer = log.since({log.term: 3})
        assert [run.first_seq for run in answer.runs] == [4, 5]
        assert (answer.lost, answer.unknown_loss, answer.more) == (0, False, False)

    def test_goes_on_through_later_terms(self) -> None:
        log = new_log()
        stamp(log, 1, count=3)
        first_term = log.term
        log.open_next_term(OTHER)
        stamp(log, 4)
        answer = log.since({first_term: 2})
        assert [(run.term, run.first_seq) for run in answer.runs] == [
            (first_term, 1),
            (log.term, 1),
        ]

    def test_counts_what_is_no_longer_there(self) -> None:
        log = new_log(OverlaySettings(log_events_max=2))
        first_term = log.term
        for i in range(1, 6):
            stamp(log, i)
        log.open_next_term(OTHER)
        for i in range(6, 10):
            stamp(log, i)
        answer = log.since({first_term: 1})
        assert answer.lost == 4 + 2
        assert [(e.term, e.seq) for e in answer.gone] == [(first_term, 5), (log.term, 2)]
        assert [run.first_seq for run in answer.runs] == [3, 4]

    def test_a_reader_of_another_history_gets_all_there_is_and_is_told(self) -> None:
        log = new_log()
        stamp(log, 1, count=2)
        answer = log.since({Term(77 << 24): 5})
        assert answer.unknown_loss
        assert [run.first_seq for run in answer.runs] == [1]

    def test_so_is_one_that_stood_there_before_the_first_event(self) -> None:
        """A topic of which both copies were lost begins anew: what it had is not known."""
        log = new_log()
        assert log.since({Term(77 << 24): 0}).unknown_loss
        stamp(log, 1)
        assert log.since({Term(77 << 24): 0}).unknown_loss
        # Who stood nowhere lost no place.
        assert not log.since({}).unknown_loss

    def test_a_history_of_another_side_that_began_from_nothing_is_contained(self) -> None:
        one, other = new_log(), TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
        other.open_next_term(OTHER)
        stamp(one, 1, publisher=8)
        stamp(other, 1, publisher=9)
        other_term = other.term
        one.merge(other, ONE)
        answer = one.since({other_term: 0})
        assert not answer.unknown_loss
        assert [run.publisher for run in answer.runs] == [8, 9]

    def test_an_answer_is_bounded(self) -> None:
        log = new_log(OverlaySettings(fetch_bytes_max=30))
        for i in range(1, 11):
            stamp(log, i)
        answer = log.since({log.term: 0})
        assert answer.more
        assert 0 < len(answer.runs) < 10

    def test_a_term_begun_with_an_outdated_copy_is_an_unknown_loss(self) -> None:
        log = new_log()
        first_term = log.term
        stamp(log, 1)
        log.open_next_term(OTHER, certain=False)
        stamp(log, 2)
        assert log.since({first_term: 1}).unknown_loss
        assert log.since({first_term: 0}).unknown_loss
        assert not log.since({first_term: 1, log.term: 0}).unknown_loss


class TestMerge:
    def both(self) -> tuple[TopicLog, TopicLog]:
        """Two logs that were one until event 2."""
        one = new_log()
        stamp(one, 1)
        stamp(one, 2)
        other = copy_of(one)
        other.open_next_term(OTHER)
        return one, other

    def test_nothing_new(self) -> None:
        one, other = self.both()
        assert one.merge(copy_of(one), ONE) == (Merging.NOTHING, [])
        assert one.merge(other, ONE) == (Merging.NOTHING, [])

    def test_all_and_more_takes_its_place(self) -> None:
        one, other = self.both()
        stamp(other, 3)
        assert one.merge(other, ONE)[0] is Merging.REPLACED
        assert numbers(one) == [1, 2, 3]

    def test_a_term_of_the_other_side_is_not_used_again(self) -> None:
        one, other = self.both()
        one.merge(other, ONE)
        one.open_next_term(OTHER)
        assert one.term > other.term

    def test_events_of_both_sides_are_in_it_once(self) -> None:
        one, other = self.both()
        stamp(one, 1, publisher=8)
        stamp(one, 3)
        stamp(other, 3)  # the publisher tried again on the other side
        stamp(other, 4)
        stamp(other, 1, publisher=9)
        outcome, restamped = one.merge(other, ONE)
        assert outcome is Merging.JOINED
        assert numbers(one) == [1, 2, 3, 4]
        assert numbers(one, 8) == numbers(one, 9) == [1]
        assert [(run.term, run.first_seq) for run in restamped] == [(one.term, 1), (one.term, 2)]
        assert one.merge(other, ONE)[1] == []

    def test_a_reader_of_the_other_side_gets_what_this_side_stamped(self) -> None:
        one, other = self.both()
        first_term, other_term = one.term, other.term
        stamp(one, 1, publisher=8)
        stamp(other, 3)
        one.merge(other, ONE)
        answer = one.since({first_term: 2, other_term: 1})
        assert [(r.publisher, r.first_number) for r in answer.runs] == [(8, 1), (7, 3)]
        newcomer = one.since({other_term: 1})
        assert not newcomer.unknown_loss
        assert [r.publisher for r in newcomer.runs] == [8, 7]


def test_incremental_replication_needs_an_unbroken_tail() -> None:
    log = new_log(OverlaySettings(log_events_max=3))
    for i in range(1, 6):
        stamp(log, i)
    assert [run.first_seq for run in log.after((log.term, 3)) or []] == [4, 5]
    assert log.after((log.term, 1)) is None
    assert log.after((log.term, 6)) is None
    assert log.after((1, 1)) is None


def test_a_log_survives_the_wire() -> None:
    log = new_log()
    stamp(log, 1, count=2)
    log.open_next_term(OTHER, certain=False)
    stamp(log, 3)
    copy = copy_of(log)
    assert copy.to_state([]) == log.to_state([])


@pytest.mark.parametrize("seed", range(20))
def test_what_a_reader_lacks_is_what_looking_at_every_run_finds(seed: int) -> None:
    rng = Random(seed)
    settings = OverlaySettings(log_events_max=rng.choice((20, 1_000)), fetch_bytes_max=200)
    log = new_log(settings)
    number = 1
    for _ in range(60):
        if rng.random() < 0.1:
            log.open_next_term(rng.choice((ONE, OTHER)))
        count = rng.randint(1, 4)
        stamp(log, number, count)
        number += count
    ends = log.ends()
    for _ in range(30):
        terms = rng.sample(sorted(ends), rng.randint(0, min(3, len(ends))))
        seen = {term: rng.randint(0, ends[term]) for term in terms}
        answer = log.since(seen)
        since = min(terms, default=0)
        lacking = [
            run
            for run in log.entries
            if run.term >= since and run.first_seq + run.count - 1 > seen.get(run.term, 0)
        ]
        assert list(answer.runs) == lacking[: len(answer.runs)]
        assert answer.more == (len(answer.runs) < len(lacking))
        for term in (term for term in ends if term >= since):
            retained = [run.first_seq for run in log.entries if run.term == term]
            gone = retained[0] - 1 if retained else ends[term]
            told = {entry.term: entry.seq for entry in answer.gone}
            assert told.get(term, 0) == (gone if gone > seen.get(term, 0) else 0)


def test_forks_that_lead_in_a_circle_are_not_followed() -> None:
    log = new_log()
    state = log.to_state([])
    for term, origin in ((5, 9), (9, 5)):
        state.forks.add(term=term, seq=3, prev_term=origin, prev_seq=1)
    log.load(state)
    assert log.since({9: 2}).position.term == log.term


def test_a_history_whose_terms_are_out_of_order_makes_no_circle_of_forks() -> None:
    log, other = new_log(), new_log()
    stamp(log, 1)
    older, newer = 5 << 24, 9 << 24
    state = TopicState(topic="t")
    state.lineage.add(term=newer, seq=1)
    state.position.term, state.position.seq = older, 1
    state.forks.add(term=newer, seq=1, prev_term=older, prev_seq=1)
    other.load(state)
    log.merge(other, ONE)
    assert newer in log.forks
    assert log.since({newer: 1}).position.term == log.term
