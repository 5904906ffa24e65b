"""Whatever becomes of deliveries, stores and connections while a subscription joins its past: every
event comes once, and those of a topic in the order of its history."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.client.core.client_core import ClientCore
from dynatops.client.core.histories import PastEnd, PastPart, PastWish
from dynatops.client.core.joining import Joining, LiveItem
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import (
    ClientFrame,
    History,
    HistoryEnd,
    HistoryPart,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Event, Events, PastError, Run, Runs
from tests.support.clients import hear

PATTERN = "t/+"
TOPICS = ("t/a", "t/b")
TERM = 5


class _World:
    """Topics with a history, a store that is behind it, and a broker that the client is at."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.published: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.stored: dict[str, int] = dict.fromkeys(TOPICS, 0)
        # Up to where the client has been told live, once it is subscribed.
        self.told: dict[str, int] = {}
        self.core = ClientCore("ann", b"s" * 16)
        self.joining = Joining([Filter.parse(PATTERN)], {}, rng.choice([3, 10, 1_000]))
        self.history = 0
        self.asked: History | None = None
        self.had: dict[str, list[int]] = defaultdict(list)
        self._connect()

    def _connect(self) -> None:
        self.core.disconnected()
        self.asked = None
        self.core.connected()
        welcome = Welcome(
            broker_id="b", session_id=f"s{self.rng.random()}", serial=1, histories=True
        )
        hear(self.core, welcome=welcome)

    # ---- what happens ---------------------------------------------------------------------------

    def publish(self) -> None:
        self.published[self.rng.choice(TOPICS)] += self.rng.randint(1, 3)

    def store(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.stored[topic] = self.rng.randint(self.stored[topic], self.published[topic])

    def subscribe(self) -> None:
        request = self.core.subscribe([(PATTERN, "")])
        for topic, seq in self.published.items():
            self.told[topic] = seq
            self._hear(Run(topic=topic, term=TERM, first_seq=seq + 1))
        hear(self.core, subscribed=Subscribed(request=request))
        places = self.joining.ask_up_to(PATTERN, self.core.reading.reached(PATTERN))
        wish = PastWish(pattern=PATTERN)
        self.history = self.core.histories.open(wish, self.joining.reading, places)

    def tell_live(self) -> None:
        topic = self.rng.choice(TOPICS)
        upto = self.rng.randint(self.told[topic], self.published[topic])
        # Now and then something comes again.
        first = max(self.told[topic] + 1 - self.rng.choice([0, 0, 2]), 1)
        if upto >= first:
            self._hear(_run(topic, first, upto))
            self.told[topic] = upto

    def _hear(self, run: Run) -> None:
        for item in hear(self.core, run=run):
            if isinstance(item, Arrived | ArrivedBundle):
                self.hand_out(list(self.joining.live(item)))

    def lose_the_connection(self) -> None:
        self._connect()

    def serve(self) -> None:
        """The store answers what it was asked, a part at a time."""
        self._listen()
        if self.asked is None:
            return
        seen = {place.topic: place.seen[0].seq for place in self.asked.after if place.seen}
        topics = [topic for topic in TOPICS if self.stored[topic] > seen.get(topic, 0)]
        if topics:
            topic = self.rng.choice(topics)
            after = seen.get(topic, 0)
            upto = self.rng.randint(after + 1, self.stored[topic])
            # A store that takes over sends again what another has sent.
            run = _run(topic, max(after - self.rng.choice([0, 2]), 0) + 1, upto)
            place = next((p for p in self.asked.after if p.topic == topic), None)
            (place or self.asked.after.add(topic=topic)).ClearField("seen")
            for each in self.asked.after:
                if each.topic == topic:
                    each.seen.add(term=TERM, seq=upto)
            part = HistoryPart(request=self.asked.request, events=Runs(runs=[run]))
            for item in hear(self.core, history_part=part):
                assert isinstance(item, PastPart)
                self.hand_out(list(item.events))
            return
        behind = any(place.seen[0].seq > self.stored[place.topic] for place in self.asked.upto)
        error = PastError.PAST_ERROR_NOT_YET if behind else PastError.PAST_ERROR_UNSPECIFIED
        ended = HistoryEnd(request=self.asked.request, error=error)
        self.asked = None
        for item in hear(self.core, history_end=ended):
            assert isinstance(item, PastEnd)
            self._go_on(item)

    def _listen(self) -> None:
        frame = self.core.take_frame(1 << 20) or ClientFrame()
        for message in frame.messages:
            if message.HasField("history"):
                self.asked = message.history

    def _go_on(self, end: PastEnd) -> None:
        joining, histories = self.joining, self.core.histories
        if end.error or joining.must_ask_again:
            beyond = () if end.error else joining.asked
            places = joining.ask_up_to(PATTERN, self.core.reading.reached(PATTERN))
            histories.ask_again(self.history, places, beyond)
        else:
            histories.close(self.history)
            self.hand_out(list(joining.join()))

    def hand_out(self, items: list[LiveItem]) -> None:
        for item in items:
            assert isinstance(item, Arrived)
            self.had[item.run.topic] += [item.run.first_seq + o for _, o in item.places]


def _run(topic: str, first: int, last: int) -> Run:
    count = last - first + 1
    events = Events(events=[Event(payload=b"x")] * count)
    return Run(
        topic=topic, term=TERM, first_seq=first, count=count, publisher=9, first_number=first,
        events=events.SerializeToString(),
    )  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_every_event_comes_once_and_in_order(seed: int) -> None:
    rng = Random(seed)
    world = _World(rng)
    for _ in range(rng.randint(0, 10)):
        rng.choice([world.publish, world.store])()
    world.subscribe()
    happenings = [world.publish, world.store, world.tell_live, world.serve, world.serve]
    for _ in range(rng.randint(0, 80)):
        if rng.random() < 0.03:
            world.lose_the_connection()
        rng.choice(happenings)()
        for topic in TOPICS:
            assert world.had[topic] == list(range(1, len(world.had[topic]) + 1))
    # In the end all is quiet.
    for topic in TOPICS:
        world.stored[topic] = world.published[topic]
        first, last = world.told[topic] + 1, world.published[topic]
        if last >= first:
            world._hear(_run(topic, first, last))
    for _ in range(200):
        world.serve()
    assert world.joining.is_joined
    assert world.joining.missing() == []
    for topic in TOPICS:
        assert world.had[topic] == list(range(1, world.published[topic] + 1))
