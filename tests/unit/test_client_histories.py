"""What a client's core asks of the past: as much as is taken, each event once, from broker to
broker."""

from __future__ import annotations

from typing import Any

from dynatops.client.core.client_core import ClientCore, Item
from dynatops.client.core.histories import HISTORY_WINDOW_BYTES, PastEnd, PastPart, PastWish
from dynatops.client.core.reading import Arrived
from dynatops.v1.client_pb2 import HistoryCredit, HistoryEnd, HistoryPart, Welcome
from dynatops.v1.overlay_pb2 import PastError, Run, Runs
from tests.support.clients import hear, take

TOPIC = "quake/ca"


def _connected(core: ClientCore, *, histories: bool = True) -> list[Item]:
    core.disconnected()
    core.connected()
    return hear(core, welcome=Welcome(broker_id="b1", serial=1, histories=histories))


def _core() -> ClientCore:
    core = ClientCore("ann", b"s" * 16)
    _connected(core)
    return core


def _run(seq: int, count: int = 1, *, term: int = 5, number: int = 0, topic: str = TOPIC) -> Run:
    return Run(
        topic=topic, term=term, first_seq=seq, count=count, publisher=9, first_number=number or seq
    )


def _part(core: ClientCore, request: int, *runs: Run, spent: int = 100, lossy: bool = False) -> Any:
    events = Runs(runs=runs)
    part = HistoryPart(request=request, events=events, spent_bytes=spent, lossy=lossy)
    (item,) = hear(core, history_part=part)
    assert isinstance(item, PastPart)
    return item


def _stamps(part: PastPart) -> list[tuple[int, int]]:
    return [
        (each.run.term, each.run.first_seq + offset)
        for each in part.events
        if isinstance(each, Arrived)
        for _, offset in each.places
    ]


class TestAsking:
    def test_what_is_wanted_is_said_and_what_comes_is_handed_on(self) -> None:
        core = _core()
        wish = PastWish(pattern=TOPIC, where="a > 1", after={TOPIC: {5: 3}}, since_us=7, last=2)
        number = core.histories.open(wish)
        (said,) = [m.history for m in take(core).messages]
        assert (said.filter.pattern, said.filter.where) == (TOPIC, "a > 1")
        assert (said.since_us, said.last, said.credit_bytes) == (7, 2, HISTORY_WINDOW_BYTES)
        assert [(c.topic, c.seen[0].term, c.seen[0].seq) for c in said.after] == [(TOPIC, 5, 3)]
        part = _part(core, said.request, _run(4, 2), lossy=True)
        assert (part.history, part.is_lossy, _stamps(part)) == (number, True, [(5, 4), (5, 5)])
        (end,) = hear(core, history_end=HistoryEnd(request=said.request))
        assert end == PastEnd(number, PastError.PAST_ERROR_UNSPECIFIED, "")

    def test_what_comes_twice_is_handed_on_once(self) -> None:
        core = _core()
        core.histories.open(PastWish(pattern="quake/#"))
        request = take(core).messages[0].history.request
        assert _stamps(_part(core, request, _run(1, 3))) == [(5, 1), (5, 2), (5, 3)]
        # From another store; and stored again under other stamps, after a history was lost.
        assert _stamps(_part(core, request, _run(2, 3), spent=200)) == [(5, 4)]
        again = _run(1, 3, term=6, number=3)
        assert _stamps(_part(core, request, again, spent=300)) == [(6, 3)]

    def test_no_more_is_asked_for_than_is_taken(self) -> None:
        core = _core()
        number = core.histories.open(PastWish(pattern=TOPIC))
        request = take(core).messages[0].history.request
        half = HISTORY_WINDOW_BYTES // 2
        parts = [_part(core, request, _run(n), spent=n * half) for n in (1, 2)]
        assert not core.has_output
        core.histories.taken(number, parts[0].nbytes)
        (said,) = take(core).messages
        assert said.history_credit == HistoryCredit(request=request, credit_bytes=half)

    def test_one_that_is_closed_is_cancelled_and_heard_no_more(self) -> None:
        core = _core()
        number = core.histories.open(PastWish(pattern=TOPIC))
        request = take(core).messages[0].history.request
        core.histories.close(number)
        core.histories.close(number)
        (said,) = take(core).messages
        assert said.history_credit == HistoryCredit(request=request, cancel=True)
        late = HistoryPart(request=request, events=Runs(runs=[_run(1)]))
        assert hear(core, history_part=late) == []
        assert hear(core, history_end=HistoryEnd(request=request)) == []
        assert len(core.histories) == 0

    def test_after_its_end_it_may_be_asked_for_what_is_beyond(self) -> None:
        core = _core()
        number = core.histories.open(PastWish(pattern=TOPIC))
        request = take(core).messages[0].history.request
        _part(core, request, _run(1, 3))
        hear(core, history_end=HistoryEnd(request=request))
        core.histories.ask_again(number)
        (said,) = take(core).messages
        assert said.history.after[0].seen[0].seq == 3
        assert said.history.credit_bytes == HISTORY_WINDOW_BYTES - 100


class TestGoingOn:
    def test_elsewhere_it_goes_on_from_where_it_was(self) -> None:
        core = _core()
        number = core.histories.open(PastWish(pattern=TOPIC, last=9))
        request = take(core).messages[0].history.request
        _part(core, request, _run(1, 3))
        assert _connected(core)[1:] == []
        (said,) = [m.history for m in take(core).messages]
        assert said.request != request
        assert (said.after[0].seen[0].seq, said.last) == (3, 9)
        # Of the former connection nothing counts any more.
        late = HistoryPart(request=request, events=Runs(runs=[_run(4)]))
        assert hear(core, history_part=late) == []
        assert _stamps(_part(core, said.request, _run(3, 2))) == [(5, 4)]
        end = HistoryEnd(request=said.request, error=PastError.PAST_ERROR_NOT_STORED)
        assert hear(core, history_end=end) == [
            PastEnd(number, PastError.PAST_ERROR_NOT_STORED, "", went_on=True)
        ]

    def test_what_has_ended_is_not_asked_for_again(self) -> None:
        core = _core()
        core.histories.open(PastWish(pattern=TOPIC))
        request = take(core).messages[0].history.request
        hear(core, history_end=HistoryEnd(request=request))
        _connected(core)
        assert not take(core).messages

    def test_asked_for_while_there_is_no_broker_it_is_asked_of_the_next(self) -> None:
        core = _core()
        core.disconnected()
        core.histories.open(PastWish(pattern=TOPIC))
        _connected(core)
        assert [m.history.request for m in take(core).messages] == [2]

    def test_a_broker_that_does_not_understand_is_an_answer(self) -> None:
        core = _core()
        number = core.histories.open(PastWish(pattern=TOPIC))
        take(core)
        _, end = _connected(core, histories=False)
        assert isinstance(end, PastEnd)
        assert (end.history, end.error) == (number, PastError.PAST_ERROR_UNAVAILABLE)
        assert end.message == "the broker b1 is of a version that has no histories for clients"

    def test_of_too_many_topics_it_is_not_known_how_far_they_were_read(self) -> None:
        core = _core()
        core.histories.open(PastWish(pattern="#"))
        request = take(core).messages[0].history.request
        _part(core, request, *(_run(1, topic=f"t/{n}") for n in range(20_001)))
        _, end = _connected(core)
        assert isinstance(end, PastEnd)
        assert "more than 20,000 topics" in end.message
        assert not take(core).messages
