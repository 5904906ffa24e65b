"""A reader hands on each event once and in order, whatever happens on the way to it."""

from __future__ import annotations

from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.kit.repeats import RunPart
from dynatops.v1.overlay_pb2 import Run
from overlay.base.identifiers import TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget
from overlay.history.reader import TopicReader
from overlay.history.topic_log import TopicLog
from tests.support.nodes import publication

ONE, OTHER = TermOwner(1), TermOwner(2)


def numbers_of(parts: list[RunPart]) -> list[tuple[int, int]]:
    return [
        (part.run.publisher, part.run.first_number + i)
        for part in parts
        for i in range(part.run.count)
    ]


class World:
    """A topic's history, written here, read there through a bad network."""

    def __init__(self, seed: int, events_before: int | None = None) -> None:
        """With events from before, the reader begins at the start."""
        self.rng = Random(seed)
        self.log = TopicLog("t", OverlaySettings(fetch_bytes_max=40), LogBudget(1 << 30))
        self.log.open_next_term(ONE)
        self.reader = TopicReader("t", 100)
        self.out: list[tuple[int, int]] = []
        self.next = {1: 1, 2: 1}
        self.air: list[Run] = []
        if events_before is None:
            self.reader.observe(self.log.position_message())
        else:
            self.reader.begin_at_start()
            for _ in range(events_before):
                self.rng.choice((self.write, self.reign))()

    def write(self) -> None:
        publisher = self.rng.choice((1, 2))
        count = self.rng.randint(1, 4)
        publication_ = publication("t", self.next[publisher], publisher=publisher, count=count)
        self.next[publisher] += count
        _, run = self.log.stamp(publication_, 0.0)
        assert run is not None
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            self.air.append(run)

    def move(self) -> None:
        if self.air:
            run = self.air.pop(self.rng.randrange(len(self.air)))
            self.out += numbers_of(self.reader.offer(run))

    def repair(self) -> None:
        if self.reader.is_behind:
            seen = {entry.term: entry.seq for entry in self.reader.seen()}
            reading = self.reader.fetched(self.log.since(seen))
            assert not reading.lost
            self.out += numbers_of(reading.parts)

    def catch_up(self) -> None:
        while self.reader.is_behind:
            self.repair()

    def beat(self) -> None:
        self.reader.observe(self.log.position_message())

    def reign(self) -> None:
        self.log.open_next_term(self.rng.choice((ONE, OTHER)))


@settings(max_examples=400)
@given(st.integers(0, 1 << 32), st.integers(1, 60), st.none() | st.integers(0, 60))
def test_everything_once_and_in_order(seed: int, steps: int, events_before: int | None) -> None:
    world = World(seed, events_before)
    actions = [world.write] * 6 + [world.move] * 6 + [world.repair, world.beat, world.reign]
    for _ in range(steps):
        world.rng.choice(actions)()
    while world.air:
        world.move()
    world.beat()
    world.catch_up()
    expected = [
        (run.publisher, run.first_number + i) for run in world.log.entries for i in range(run.count)
    ]
    assert world.out == expected
    assert not world.reader.is_behind


@settings(max_examples=300)
@given(st.integers(0, 1 << 32))
def test_readers_of_both_sides_of_a_partition_hear_everything_once(seed: int) -> None:
    rng = Random(seed)
    here = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
    here.open_next_term(ONE)
    number = {1: 1, 2: 1, 3: 1}
    readers = [TopicReader("t", 100) for _ in range(2)]
    heard: list[list[tuple[int, int]]] = [[], []]
    for reader in readers:
        reader.observe(here.position_message())

    def write(log: TopicLog, publisher: int, *readers_: int) -> None:
        _, run = log.stamp(publication("t", number[publisher], publisher=publisher), 0.0)
        number[publisher] += 1
        assert run is not None
        for i in readers_:
            heard[i] += numbers_of(readers[i].offer(run))

    for _ in range(rng.randint(0, 5)):
        write(here, rng.choice((1, 2)), 0, 1)
    there = TopicLog("t", OverlaySettings(), LogBudget(1 << 30))
    there.load(here.to_state([]))
    there.open_next_term(OTHER)
    readers[1].observe(there.position_message())
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.5:
            write(here, 1, 0)
        else:
            write(there, rng.choice((2, 3)), 1)
    here.merge(there, ONE)
    here.open_next_term(ONE)
    for _ in range(rng.randint(0, 3)):
        write(here, rng.choice((1, 2, 3)))
    for i, reader in enumerate(readers):
        reader.observe(here.position_message())
        if reader.is_behind:
            seen = {entry.term: entry.seq for entry in reader.seen()}
            reading = reader.fetched(here.since(seen))
            assert not reading.unknown_loss
            heard[i] += numbers_of(reading.parts)
        assert len(heard[i]) == len(set(heard[i]))
        assert set(heard[i]) == {(p, n) for p in number for n in range(1, number[p])}
        for publisher in number:
            own = [n for p, n in heard[i] if p == publisher]
            assert own == sorted(own)


@settings(max_examples=300)
@given(st.integers(0, 1 << 32))
def test_one_that_goes_back_and_forth_between_both_sides_hears_everything_once(seed: int) -> None:
    rng = Random(seed)
    here = TopicLog("t", OverlaySettings(fetch_bytes_max=40), LogBudget(1 << 30))
    here.open_next_term(ONE)
    reader = TopicReader("t", 100)
    reader.observe(here.position_message())
    number = {1: 1, 2: 1, 3: 1}
    heard: list[tuple[int, int]] = []

    def write(log: TopicLog, *publishers: int) -> None:
        publisher = rng.choice(publishers)
        log.stamp(publication("t", number[publisher], publisher=publisher), 0.0)
        number[publisher] += 1

    def ask(log: TopicLog) -> None:
        reader.observe(log.position_message())
        answer = log.since({entry.term: entry.seq for entry in reader.seen()})
        if answer.position.term < reader.newest_term:
            reader.go_back(answer)
        else:
            heard.extend(numbers_of(reader.fetched(answer).parts))

    for _ in range(rng.randint(0, 3)):
        write(here, 1, 2)
    there = TopicLog("t", OverlaySettings(fetch_bytes_max=40), LogBudget(1 << 30))
    if rng.random() < 0.5:
        there.load(here.to_state([]))
    there.open_next_term(OTHER)
    for _ in range(rng.randint(0, 30)):
        log, publishers = rng.choice(((here, (1, 2)), (there, (3,))))
        rng.choice((partial(write, log, *publishers), partial(ask, log)))()
        if rng.random() < 0.1:
            log.open_next_term(ONE if log is here else OTHER)
    here.merge(there, ONE)
    for _ in range(100):
        ask(here)
    assert not reader.is_behind
    assert len(heard) == len(set(heard))
    assert set(heard) == {(p, n) for p in number for n in range(1, number[p])}
    for publisher in number:
        own = [n for p, n in heard if p == publisher]
        assert own == sorted(own)
