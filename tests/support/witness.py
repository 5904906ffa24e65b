"""Who published what, what of it was acknowledged, and who heard it, with real brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

import dynatops
from dynatops.kit.filters import Value

_TIMEOUT_S = 40.0
# Publications under way at a time, for each publisher.
_LANES = 4


class Published(NamedTuple):
    topic: str
    by: str
    # Of this publisher, over all topics.
    number: int


Wanted = Callable[[Published], bool]


class Witness:
    def __init__(self, publishers: Mapping[str, dynatops.Client], topics: Sequence[str]) -> None:
        self.acknowledged: set[bytes] = set()
        self._publishers = publishers
        self._topics = topics
        self._published: dict[bytes, Published] = {}
        self._numbers = dict.fromkeys(publishers, 0)

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        """As fast as acknowledgements come, until the block is left; then one last event more of
        each publisher on each topic."""
        ending = asyncio.Event()
        tasks = [
            asyncio.create_task(self._publish_until(ending, name))
            for name in self._publishers
            for _ in range(_LANES)
        ]
        try:
            yield
        finally:
            ending.set()
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.gather(*tasks)
        for name in self._publishers:
            for topic in self._topics:
                assert await self._publish(name, topic), "the last event must be acknowledged"

    async def _publish_until(self, ending: asyncio.Event, name: str) -> None:
        while not ending.is_set():
            await self._publish(name, self._topics[self._numbers[name] % len(self._topics)])

    async def _publish(self, name: str, topic: str) -> bool:
        self._numbers[name] += 1
        published = Published(topic, name, self._numbers[name])
        payload = f"{name} {published.number}".encode()
        self._published[payload] = published
        attributes: dict[str, Value] = {"by": name, "even": published.number % 2 == 0}
        try:
            await self._publishers[name].publish(topic, payload, attributes=attributes)
        except dynatops.PublishError:
            return False
        self.acknowledged.add(payload)
        return True

    def missing(self, heard: Sequence[dynatops.Event], wanted: Wanted) -> set[bytes]:
        """Acknowledged events that should have come and have not."""
        return {payload for payload in self.acknowledged if wanted(self._published[payload])} - {
            event.payload for event in heard
        }

    def check(self, heard: Sequence[dynatops.Event], wanted: Wanted) -> None:
        """All of them have come, nothing unwanted, and those of a publisher once and in order."""
        assert not self.missing(heard, wanted)
        assert all(wanted(self._published[event.payload]) for event in heard)
        self.check_order(heard)

    def check_order(self, heard: Sequence[dynatops.Event]) -> None:
        last: dict[tuple[str, str], int] = {}
        for event in heard:
            published = self._published[event.payload]
            assert event.topic == published.topic
            stream = (published.topic, published.by)
            assert last.get(stream, 0) < published.number, f"{event.payload!r} twice, or late"
            last[stream] = published.number


class Listener:
    """Writes down what comes for a subscription."""

    def __init__(self, events: dynatops.Subscription) -> None:
        self.events = events
        self.heard: list[dynatops.Event] = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for batch in self.events.batches():
            self.heard += batch

    async def stop(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
