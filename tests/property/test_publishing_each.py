"""Events of many topics published at once, against the same published one by one: the same frames
go out, whatever connections and acknowledgements come in between, and all are waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dynatops.client.core.publications import Ack, Publications
from dynatops.client.waiting import Together, Waiting
from dynatops.v1.client_pb2 import ClientFrame, Refused
from dynatops.v1.overlay_pb2 import Acknowledgements, Attribute

PUBLISHER = 6
TOPICS = ("t/0", "t/1", "t/2")
MINUTE_US = 60_000_000

PAIRS = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.sampled_from((b"", b"x", bytes(1_000), bytes(150_000)))),
    max_size=20,
)
STEPS = st.one_of(
    st.tuples(st.just("publish"), PAIRS, st.sampled_from(list(Ack)), st.booleans()),
    st.tuples(st.just("send"), st.sampled_from((10, 1 << 20))),
    st.tuples(st.just("acknowledge"), st.sampled_from(TOPICS), st.integers(1, 30)),
    st.tuples(st.just("refuse"), st.sampled_from(TOPICS), st.integers(1, 30)),
    st.tuples(st.just("connect"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from((1, 2 * MINUTE_US))),
)


class Side:
    def __init__(self, *, together: bool) -> None:
        self.publications = Publications()
        self.together = together
        self.now_us = 1_000 * MINUTE_US

    def do(self, step: Sequence[object]) -> object:
        match step:
            case ["publish", list(pairs), Ack() as ack, bool(attributed)]:
                return self._publish(pairs, ack, attributed=attributed)
            case ["send", int(bytes_max)]:
                frame = ClientFrame()
                said_all = self.publications.fill(frame, bytes_max)
                return said_all, frame.SerializeToString(deterministic=True)
            case ["acknowledge", str(topic), int(number)]:
                columns = Acknowledgements(
                    publisher=PUBLISHER, topics=[topic], numbers=[number], terms=[1], seqs=[number]
                )
                return list(self.publications.on_columns(columns))
            case ["refuse", str(topic), int(number)]:
                refused = Refused(
                    topic=topic, publisher=PUBLISHER, first_number=number, last_number=number
                )
                return list(self.publications.on_refused(refused))
            case ["connect", bool(bundles)]:
                self.publications.disconnected()
                self.publications.greeted(PUBLISHER, bundles=bundles)
            case ["wait", int(us)]:
                self.now_us += us
        return None

    def _publish(self, pairs: list[tuple[str, bytes]], ack: Ack, *, attributed: bool) -> object:
        wire = [Attribute(name="a", whole=1)] if attributed else None
        if self.together:
            topics, payloads = [t for t, _ in pairs], [p for _, p in pairs]
            return self.publications.publish_each(topics, payloads, ack, self.now_us, wire)
        publish = self.publications.publish
        return {t: publish(t, (payload,), ack, self.now_us, wire) for t, payload in pairs}

    @property
    def counted(self) -> tuple[int, int, bool, bool]:
        publications = self.publications
        return (
            publications.open_bytes,
            publications.unsettled_bytes,
            publications.has_output,
            publications.awaits_acknowledgements,
        )


@given(st.lists(STEPS, max_size=25))
def test_many_at_once_are_what_they_would_be_one_by_one(steps: list[Sequence[object]]) -> None:
    sides = (Side(together=True), Side(together=False))
    for step in (
        ("connect", True),
        *steps,
        ("send", 1 << 30),
        ("connect", True),
        ("send", 1 << 30),
    ):
        together, singly = (side.do(step) for side in sides)
        assert together == singly
        assert sides[0].counted == sides[1].counted


@given(
    st.lists(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 3)), max_size=4),
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(1, 3)), max_size=12),
    st.integers(0, 12),
)
def test_all_are_waited_for(
    calls: list[dict[str, int]], confirmed: list[tuple[str, int]], before: int
) -> None:
    """`before`: so many are confirmed before a call has published its last."""

    async def scenario() -> None:
        waiting, last = Waiting(), dict.fromkeys(TOPICS, 0)
        had = dict.fromkeys(TOPICS, 0)
        waits: list[tuple[Together, dict[str, int]]] = []
        for call in calls:
            together, wanted = Together(), {}
            for topic, events in call.items():
                # A call's events are numbered as they are taken in.
                last[topic] += events
                wanted[topic] = last[topic]
                waiting.add(together, {topic: last[topic]})
            waits.append((together, wanted))

        def confirm(topic: str, up: int) -> None:
            had[topic] += up
            waiting.on_confirmed(topic, had[topic])

        for topic, up in confirmed[:before]:
            confirm(topic, up)
        futures = [waiting.published_together(together, 30.0) for together, _ in waits]
        for topic, up in confirmed[before:]:
            confirm(topic, up)
        for future, (_, wanted) in zip(futures, waits, strict=True):
            assert future.done() == all(had[topic] >= n for topic, n in wanted.items())
        waiting.on_failed(ConnectionError())

    asyncio.run(scenario())
