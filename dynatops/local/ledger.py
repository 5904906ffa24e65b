"""What was published, what came to whom, and whether that is all: the books of the demonstrations.

An event counts as owed to a following if it was published after the following was confirmed and
acknowledged a moment before it was given up, so that what was under way just then counts neither
way.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

from dynatops.client.aio import Client
from dynatops.client.events import Event

# Around giving up a subscription, for this long nothing is owed.
FAREWELL_S = 1.0
CATCH_UP_S = 5.0
_PAYLOAD_BYTES = 100


@dataclass(slots=True)
class PublishedRecord:
    topic: str
    number: int
    begun_s: float
    acknowledged_s: float | None = None


@dataclass(slots=True)
class Followed:
    """One user's interest in one topic, from confirmation to the end."""

    topic: str
    since_s: float
    until_s: float | None = None
    heard: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    reordered: int = 0
    last: tuple[int, int] = (0, 0)
    latencies_us: list[int] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        self.latencies_us.append(time.time_ns() // 1_000 - event.published_us)
        self.heard[int.from_bytes(event.payload[:8], "big")] += 1
        place = (event.term, event.seq)
        if place <= self.last:
            self.reordered += 1
        self.last = max(self.last, place)


@dataclass(frozen=True, slots=True)
class Balance:
    published: int
    expected: int
    delivered: int
    duplicated: int
    reordered: int

    @property
    def lost(self) -> int:
        return self.expected - self.delivered


class Ledger:
    def __init__(self) -> None:
        self.published: list[PublishedRecord] = []
        self.followings: list[Followed] = []

    async def publish(self, client: Client, topic: str) -> None:
        """Publish one numbered event, and wait until it is safe."""
        event = PublishedRecord(topic, len(self.published) + 1, time.monotonic())
        self.published.append(event)
        await client.publish(topic, event.number.to_bytes(8, "big") + bytes(_PAYLOAD_BYTES - 8))
        event.acknowledged_s = time.monotonic()

    def follow(self, topic: str) -> Followed:
        """A subscription has just been confirmed."""
        following = Followed(topic, time.monotonic())
        self.followings.append(following)
        return following

    async def catch_up(self) -> None:
        """Give what is under way a moment to arrive."""
        deadline_s = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline_s:
            if not self.balance().lost:
                return
            await asyncio.sleep(0.05)

    def balance(self) -> Balance:
        """What is owed, and what has come."""
        by_topic: defaultdict[str, list[PublishedRecord]] = defaultdict(list)
        for event in self.published:
            if event.acknowledged_s is not None:
                by_topic[event.topic].append(event)
        expected = delivered = 0
        for following in self.followings:
            until_s = (following.until_s or float("inf")) - FAREWELL_S
            for event in by_topic[following.topic]:
                assert event.acknowledged_s is not None
                if following.since_s < event.begun_s and event.acknowledged_s < until_s:
                    expected += 1
                    delivered += event.number in following.heard
        return Balance(
            published=len(self.published),
            expected=expected,
            delivered=delivered,
            duplicated=sum(n - 1 for f in self.followings for n in f.heard.values()),
            reordered=sum(following.reordered for following in self.followings),
        )
