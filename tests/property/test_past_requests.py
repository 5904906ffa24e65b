"""Whatever happens to brokers, stores and messages while somebody reads the past: each event comes
once, in order, and if the answer says that it was all, it was."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.v1.overlay_pb2 import PastError, PastRange
from overlay.stores.past_settings import PastSettings
from tests.support.past_net import PastNet, PastReader
from tests.support.store_net import Fate

UNIT = "quake/#"
TOPICS = ("quake/ca", "quake/or", "quake/nv")
SETTINGS = PastSettings(
    portion_bytes=150, catch_up_bytes=1_000, early_responses_max=3, serve_idle_s=10.0
)


class _Readings:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.brokers = rng.randint(2, 8)
        names = [str(number) for number in range(self.brokers)]
        pairs = [(names[rng.randrange(place)], names[place]) for place in range(1, self.brokers)]
        pairs += [(rng.choice(names), rng.choice(names)) for _ in range(rng.randrange(4))]
        links = [(a, b) for a, b in pairs if a != b]
        self.net = PastNet([*links, *((b, a) for a, b in links)], SETTINGS)
        # The first lives on, whatever happens.
        self.stores = sorted({names[0], *rng.choices(names, k=3)})
        for store in self.stores:
            self.net.keep(store, UNIT)
        self.published: list[bytes] = []
        self.topics: list[str] = []
        self.net.pass_time(10.0)
        for number in range(rng.randint(0, 60)):
            payload = b"%d" % number
            self.topics.append(rng.choice(TOPICS))
            self.net.publish(self.topics[-1], payload, at_us=number + 1)
            self.published.append(payload)

    def happen(self, reader: PastReader) -> None:
        rng, net = self.rng, self.net
        match rng.randrange(6):
            case 0 | 1 | 2:
                net.grant(reader, rng.choice([100, 1_000, 10_000]))
            case 3:
                store = rng.choice(self.stores)
                if store != self.stores[0] and store in net.past:
                    net.past[store].store.is_silent = rng.random() < 0.6
            case 4:
                store = rng.choice(self.stores)
                if store in net.kept and store != self.stores[0] and store in net.past:
                    net.past[store].serving.give_up(UNIT)
                    net.give_up(store, UNIT) if UNIT in net.kept[store] else None
            case _:
                net.pass_time(rng.choice([0.5, 2.0, 12.0]))

    def read(self, wanted: PastRange) -> PastReader:
        reader = self.net.ask(
            self.rng.choice(sorted(self.net.past)), UNIT, wanted, credit_bytes=300
        )
        for _ in range(self.rng.randint(0, 12)):
            self.happen(reader)
        self.net.fate = lambda: Fate.ARRIVES
        self.net.grant(reader, 1 << 30)
        self.net.pass_time(120.0)
        return reader


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), loses=st.booleans())
def test_each_event_comes_once_and_in_order(seed: int, loses: bool) -> None:
    rng = Random(seed)
    readings = _Readings(rng)
    fates = [*[Fate.ARRIVES] * 6, *Fate]
    if loses:
        readings.net.fate = lambda: rng.choice(fates)
    since = rng.choice([0, 0, 20])
    reader = readings.read(PastRange(since_us=since))
    expected = readings.published[max(since - 1, 0) :]
    if reader.error:
        assert (loses, reader.error) == (True, PastError.PAST_ERROR_UNAVAILABLE)
        expected = expected[: len(reader.payloads)]
    assert reader.payloads == expected
    for broker in readings.net.past.values():
        assert len(broker.requests) == 0
        # A disk that does not answer any more has what it was asked before.
        assert broker.store.is_silent or len(broker.serving) == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_newest_events_of_each_topic_are_as_many_as_were_asked_for(seed: int) -> None:
    readings = _Readings(Random(seed))
    reader = readings.read(PastRange(last=10))
    topics = readings.topics
    expected = [
        payload
        for at, payload in enumerate(readings.published)
        if topics[at:].count(topics[at]) <= 10
    ]
    assert not reader.error
    assert reader.payloads == expected
