"""What a subscriber takes in batches or columns, against the same events one by one: the same
comes, in the same order, and the broker is told the same of what has been taken."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from dynatops.client.core.client_core import SessionWishes
from dynatops.client.engine import Engine
from dynatops.client.events import Batch, Event
from dynatops.client.subscription import EventQueue
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import ServerFrame, ServerMessage, Welcome
from dynatops.v1.overlay_pb2 import Attribute, Events, Run
from dynatops.v1.overlay_pb2 import Event as WireEvent

_T = TypeVar("_T")

TOPICS = ("t/0", "t/1", "t/2", "u/0")
# All of it, some of it, conditions that events without attributes meet and do not meet.
SUBSCRIPTIONS = (
    [("t/+", ""), ("u/0", "")],
    [("t/0", ""), ("t/1", "")],
    [("#", "not (price > 5)"), ("t/2", "")],
    [("t/+", "price > 5")],
    [("#", "price > 5")],
    [("#", "not (price > 5)")],
)
# Alike for all topics, and not; alone, and many.
CHOSEN = st.sampled_from(((0,), (0, 4, 5), (1,), (1, 3), (0, 1, 2, 3)))


class Came(NamedTuple):
    """Events of one message: on a topic, or, in a bundle, on some."""

    topics: Sequence[int]
    is_bundle: bool
    price: int | None
    # By how many it goes back: the broker says some again.
    repeats: int


CAME = st.builds(
    Came,
    st.one_of(
        st.lists(st.integers(0, len(TOPICS) - 1), min_size=1, max_size=4),
        st.lists(st.integers(0, len(TOPICS) - 1), min_size=12, max_size=40),
    ),
    st.booleans(),
    st.sampled_from((None, None, 4, 6)),
    st.sampled_from((0, 0, 0, 1, 3)),
)
FRAMES = st.lists(st.lists(CAME, min_size=1, max_size=3), max_size=6)


class Broker:
    """Says what came, in bundles or one by one; stamps and numbers are alike."""

    def __init__(self) -> None:
        self._last = [0] * len(TOPICS)

    def messages(self, came: Came) -> list[ServerMessage]:
        if not came.is_bundle:
            return [ServerMessage(run=self._run(came))]
        numbers: list[int] = []
        for index, topic in enumerate(came.topics):
            if not index:
                self._last[topic] = max(0, self._last[topic] - came.repeats)
            self._last[topic] += 1
            numbers.append(self._last[topic])
        count = len(numbers)
        bundle = Bundle(
            8,
            [TOPICS[topic] for topic in came.topics],
            numbers,
            list(range(count)),
            [b"%d" % number for number in numbers],
        )
        bundle.terms, bundle.seqs = [1] * count, numbers
        return [ServerMessage(bundle=bundle.to_wire())]

    def _run(self, came: Came) -> Run:
        topic, count = came.topics[0], len(came.topics)
        first = max(0, self._last[topic] - came.repeats) + 1
        self._last[topic] = first + count - 1
        events = Events(attributed=came.price is not None)
        for number in range(first, first + count):
            event = WireEvent(payload=b"%d" % number, published_us=number - first)
            if came.price is not None:
                event.attributes.append(Attribute(name="price", whole=came.price + number % 2))
            events.events.append(event)
        return Run(
            topic=TOPICS[topic],
            term=1,
            first_seq=first,
            count=count,
            publisher=8,
            first_number=first,
            events=events.SerializeToString(),
        )


def singly(message: ServerMessage) -> list[ServerMessage]:
    """A message's events, one by one."""
    if not message.HasField("bundle"):
        return [message]
    bundle = Bundle.from_wire(message.bundle)
    return [ServerMessage(run=bundle.run_at(place)) for place in range(len(bundle))]


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """What has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise AssertionError("it waits")


class Reader:
    def __init__(self, chosen: Sequence[int], *, kept: bool) -> None:
        self.engine = Engine(["127.0.0.1:1"], "reader", SessionWishes())
        self.queues: list[EventQueue] = []
        for index in chosen:
            filters = [Filter.parse(*key) for key in SUBSCRIPTIONS[index]]
            queue = EventQueue(filters, None, lambda: None)
            self.engine.core.reading.add(self.engine.inbox.add(queue))
            self.queues.append(queue)
        welcome = Welcome(serial=1, session_id="s", expiry_s=600 if kept else 0)
        self.engine.inbox.begin_session(kept=kept)
        self.engine.core.reading.greeted(welcome)

    def hear(self, messages: Sequence[ServerMessage]) -> None:
        self.engine._take_in(ServerFrame(messages=messages))

    def take_singly(self) -> list[list[Event]]:
        taken: list[list[Event]] = []
        for queue in self.queues:
            taken.append([])
            while len(queue):
                event = at_once(queue.get())
                assert event is not None
                taken[-1].append(event)
        return taken

    def take_batches(self, first: int) -> list[tuple[list[Event | None], Batch]]:
        """Of each, after so many single ones."""
        batches: list[tuple[list[Event | None], Batch]] = []
        for queue in self.queues:
            alone = [at_once(queue.get()) for _ in range(min(first, len(queue)))]
            rest = at_once(queue.get_all()) if len(queue) else Batch(())
            assert len(queue) == 0
            batches.append((alone, rest))
        return batches

    def untold(self) -> int:
        """Deliveries that the broker does not know to be taken; a bundle counts as one."""
        self.engine._note_taken()
        return self.engine.core.reading.had - self.engine.core.reading.taken


@given(FRAMES, CHOSEN, st.booleans(), st.integers(0, 3), st.booleans())
def test_batches_are_the_same_events(
    frames: list[list[Came]], chosen: Sequence[int], kept: bool, first: int, often: bool
) -> None:
    broker, together, alone = Broker(), Reader(chosen, kept=kept), Reader(chosen, kept=kept)
    for number, frame in enumerate(frames):
        messages = [message for came in frame for message in broker.messages(came)]
        together.hear(messages)
        alone.hear([one for message in messages for one in singly(message)])
        waiting = [len(queue) for queue in alone.queues]
        assert [len(queue) for queue in together.queues] == waiting
        if not often and number < len(frames) - 1:
            continue
        expected = alone.take_singly()
        for (single, batch), events in zip(together.take_batches(first), expected, strict=True):
            assert single == events[: len(single)]
            check_same(batch, events[len(single) :])
        if kept:
            assert alone.untold() == together.untold() == 0


def check_same(batch: Batch, events: list[Event]) -> None:
    count = len(events)
    assert list(batch) == events
    assert (len(batch), bool(batch)) == (count, bool(events))
    assert [batch[i] for i in range(-count, count)] == [events[i] for i in range(-count, count)]
    assert [event.attributes for event in batch] == [event.attributes for event in events]
    assert {type(event) for event in batch} <= {Event}
    assert list(batch.topics) == [event.topic for event in events]
    assert list(batch.payloads) == [event.payload for event in events]
    for part in (slice(1, -1), slice(None, None, 3), slice(None, None, -2)):
        assert list(batch[part]) == events[part]
        assert list(batch[part].payloads) == [event.payload for event in events[part]]
    assert list(reversed(batch)) == events[::-1]


@given(st.lists(st.integers(0, 4), max_size=5))
def test_an_index_finds_its_part(sizes: list[int]) -> None:
    events = [Event("t", b"%d" % i, 0, 1, i + 1) for i in range(sum(sizes))]
    ends = list(accumulate(sizes))
    batch = Batch([events[end - size : end] for size, end in zip(sizes, ends, strict=True)])
    assert [batch[i] for i in range(len(batch))] == events
