"""What is read from a log for requests for the past: topics of a ring, streams of a tree."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import AppendToLog
from broker_agent.core.stores.log.log_rows import LogRow, Stamp
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.stored_runs import row_of_run
from broker_agent.core.stores.log_portions import read_portion
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion
from dynatops.kit.bundles import Bundle
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Event, Events, PastError, PastPlace, PastRange, Run, TermSeq
from tests.support.kept_files import KeptFiles

KEY = ServedKey("b9", 1, 1)
CA, NV = "quake/ca", "quake/nv"
TERM = 3
STREAM = f"{TERM:016x}"


def _run(topic: str, seq: int, count: int = 1, number: int | None = None) -> Run:
    """Payloads and times are numbers, as in the stamps unless said otherwise."""
    first = seq if number is None else number
    numbers = range(first, first + count)
    events = Events(events=[Event(payload=b"%d" % n, published_us=n * 10) for n in numbers])
    return Run(
        topic=topic,
        term=TERM,
        first_seq=seq,
        count=count,
        publisher=2,
        first_number=seq,
        events=events.SerializeToString(),
    )


class _Log:
    def __init__(self, *, in_tree: bool) -> None:
        self.in_tree = in_tree
        self.log = EventLog.open(KeptFiles(), LogSettings(), 1)
        self._appends = 0
        self._newest: dict[str, int] = {}

    def add(self, *runs: Run, after: Stamp | None = None) -> None:
        rows: list[LogRow] = []
        for run in runs:
            unit = STREAM if self.in_tree else run.topic
            now_us = Events.FromString(run.events).events[-1].published_us
            rows.append(row_of_run(run, unit, now_us, after))
        self._appends += 1
        self.log.commit([AppendToLog(self._appends, rows)])

    def add_each(self, *topics: str) -> None:
        """An event on each; numbered over all."""
        for number, topic in enumerate(topics, 1):
            unit = STREAM if self.in_tree else topic
            seq = self._newest[unit] = self._newest.get(unit, 0) + 1
            self.add(_run(topic, seq, number=number))

    def portion(
        self,
        unit: str,
        wanted: PastRange | None = None,
        place: bytes = b"",
        bytes_max: int = 1 << 20,
    ) -> StorePortion:
        order = ReadOrder(KEY, unit, wanted or PastRange(), place, bytes_max)
        return read_portion(self.log, order, shares_numbers=self.in_tree)

    def payloads(self, unit: str, wanted: PastRange | None = None) -> list[bytes]:
        portion = self.portion(unit, wanted)
        assert portion.is_end
        assert not portion.error
        return _payloads(portion)


def _payloads(portion: StorePortion) -> list[bytes]:
    payloads: list[bytes] = []
    for run in portion.events:
        assert not isinstance(run, Bundle)
        payloads += [event.payload for event in events_of(run) or ()]
    return payloads


def _numbers(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def _place(topic: str, seq: int) -> PastPlace:
    return PastPlace(topic=topic, seen=[TermSeq(term=TERM, seq=seq)])


@pytest.fixture(params=[False, True], ids=["ring", "tree"])
def log(request: pytest.FixtureRequest) -> _Log:
    return _Log(in_tree=request.param)


def _filled(log: _Log) -> _Log:
    for seq in (1, 4, 7):
        log.add(_run(CA, seq, 3))
    return log


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (PastRange(), range(1, 10)),
        (PastRange(since_us=50), range(5, 10)),
        (PastRange(since_us=95), ()),
        (PastRange(last=4), range(6, 10)),
        (PastRange(last=3), range(7, 10)),
        (PastRange(last=100), range(1, 10)),
        (PastRange(after=[_place(CA, 5)]), range(6, 10)),
        (PastRange(after=[_place(CA, 9)]), ()),
        (PastRange(after=[_place(CA, 2)], since_us=60), range(6, 10)),
        (PastRange(after=[_place(CA, 5)], last=2), range(8, 10)),
    ],
    ids=str,
)
def test_ranges(log: _Log, wanted: PastRange, expected: Iterable[int]) -> None:
    assert _filled(log).payloads(CA, wanted) == _numbers(expected)


@pytest.mark.parametrize(
    "wanted", [PastRange(), PastRange(last=7), PastRange(since_us=30)], ids=str
)
def test_portions_follow_each_other(log: _Log, wanted: PastRange) -> None:
    _filled(log)
    expected = log.payloads("quake/#", wanted)
    found, place, portions = list[bytes](), b"", 0
    while True:
        portion = log.portion("quake/#", wanted, place, bytes_max=1)
        assert not portion.error
        found += _payloads(portion)
        portions += 1
        place = portion.place
        if portion.is_end:
            break
    assert found == expected
    assert portions > 2


def test_a_pattern_has_all_of_its_topics_and_no_others(log: _Log) -> None:
    log.add_each(CA, NV, "news/eu", CA)
    assert sorted(log.payloads("quake/+")) == _numbers((1, 2, 4))
    assert log.payloads("news/eu") == _numbers((3,))
    assert log.payloads("flood/#") == []


def test_the_newest_are_those_of_all_topics_together(log: _Log) -> None:
    log.add_each(*[CA, NV] * 5)
    assert sorted(log.payloads("quake/#", PastRange(last=3)), key=int) == _numbers((8, 9, 10))


def test_what_the_places_lack_may_be_kept_no_more(log: _Log) -> None:
    log.add(_run(CA, 20, 3), after=(TERM, 19))
    wanted = PastRange(after=[_place(CA, 10)])
    assert log.portion(CA, wanted).error == PastError.PAST_ERROR_EXPIRED
    wanted.with_loss = True
    portion = log.portion(CA, wanted)
    assert (_payloads(portion), portion.is_lossy) == (_numbers((20, 21, 22)), True)
    # Whoever names no place takes what there is.
    assert log.payloads(CA) == _numbers((20, 21, 22))


def test_a_place_beyond_all_that_there_is(log: _Log) -> None:
    wanted = PastRange(after=[_place(CA, 99)])
    assert _filled(log).portion(CA, wanted).error == PastError.PAST_ERROR_FUTURE
    assert not log.portion(CA, PastRange(after=[_place("quake/unknown", 99)])).error


def test_what_is_missing_in_between_is_not_passed_over_in_silence(log: _Log) -> None:
    log.add(_run(CA, 1, 3))
    log.add(_run(CA, 8, 2), after=(TERM, 7))
    assert log.portion(CA).error == PastError.PAST_ERROR_EXPIRED
    portion = log.portion(CA, PastRange(with_loss=True))
    assert (_payloads(portion), portion.is_lossy) == (_numbers((1, 2, 3, 8, 9)), True)


@pytest.mark.parametrize(
    "place",
    [b"x", b"[]", b"{}", b'{"unit": 1, "after": [1], "segment": 0, "starts": null}', b"\xff"],
)
def test_a_place_that_is_none(log: _Log, place: bytes) -> None:
    assert _filled(log).portion(CA, None, place).error == PastError.PAST_ERROR_INVALID
