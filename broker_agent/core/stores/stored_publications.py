"""Publications of clients here that are done once enough stores have them on their disks.

    stamped and copied --> waits, by topic --asks for marks--> whoever stamps the topic
                             |  ^--------------marks of stores------------'
                             v
                           stored: acknowledged
                             `--no mark can prove it--> published again: who stamps it by now says
                                                        anew where it is

Marks come for as long as something was asked for lately; those of a topic are remembered, as the
next publication may be stored before anybody could ask.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.open_publications import Unstored
from broker_agent.core.routing.routing import RoutedPublishing
from broker_agent.core.stores.mark_board import ASKED_FOR_S, STORES_MAX
from broker_agent.core.stores.marks import Mark, mark_of
from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import FromStamper

# While something waits it is asked for again after this; where nothing does, before the next one
# is asked of whoever stamps.
_ASK_AGAIN_S = 1.0
_ASKED_IS_RECENT_S = ASKED_FOR_S / 2
# What waits for so long is published again: in a term that stores know to be over, and in any.
_PATIENCE_S = 2.0
_LONG_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Topic:
    """A topic that publications here are to be stored of."""

    asked_s: float = float("-inf")
    # By store: in which life of it, and how far it is.
    marks: dict[str, tuple[int, Mark]] = field(default_factory=dict)
    # Since when each waits; in the order in which brokers acknowledged them.
    waiting: deque[tuple[float, Unstored]] = field(default_factory=deque)

    def must_look_anew(self, now_s: float) -> bool:
        """Whether what waits longest may not be where it was said to be any more."""
        since_s, unstored = self.waiting[0]
        if now_s - since_s < _PATIENCE_S:
            return False
        is_over = any(mark.reached[0] > unstored.stamp[0] for _, mark in self.marks.values())
        return is_over or now_s - since_s >= _LONG_PATIENCE_S

    def stores_with(self, unstored: Unstored) -> int:
        return sum(mark.proves(unstored.after, unstored.stamp) for _, mark in self.marks.values())


class StoredPublications:
    def __init__(self, context: BrokerContext, publishing: RoutedPublishing) -> None:
        self._publishing = publishing
        self._needed = context.settings.stores_needed
        self._topics: BoundedTable[str, _Topic] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "store_marks_forgotten"
        )
        # Of which something waits.
        self._busy: dict[str, _Topic] = {}
        publishing.explain_unstored(self._why_not)

    @property
    def waiting(self) -> int:
        return sum(len(topic.waiting) for topic in self._busy.values())

    def take_in(self, now_s: float) -> list[str]:
        """What brokers have acknowledged since the last call begins to wait, or is done. Topics
        whose marks are to be asked for."""
        ask: dict[str, None] = {}
        for unstored in self._publishing.take_unstored():
            topic = self._topics.get(unstored.topic)
            if topic is None:
                topic = self._topics[unstored.topic] = _Topic()
            if now_s - topic.asked_s > _ASKED_IS_RECENT_S:
                topic.asked_s = now_s
                ask[unstored.topic] = None
            topic.waiting.append((now_s, unstored))
            self._busy[unstored.topic] = topic
            self._settle(unstored.topic, topic, now_s)
        return list(ask)

    def tick(self, now_s: float) -> list[str]:
        """Topics whose marks are to be asked for again."""
        due: list[str] = []
        for name, topic in list(self._busy.items()):
            if now_s - topic.asked_s >= _ASK_AGAIN_S:
                topic.asked_s = now_s
                due.append(name)
            while topic.waiting and topic.must_look_anew(now_s):
                self._publishing.ask_again(topic.waiting.popleft()[1], now_s)
            self._settle(name, topic, now_s)
        return due

    def on_marks(self, message: FromStamper, now_s: float) -> None:
        for told in message.stores:
            store = told.store
            for each in told.marks:
                topic = self._busy.get(each.topic) or self._topics.get(each.topic)
                if topic is None:
                    continue
                life, before = topic.marks.get(store.broker_id, (0, None))
                if store.incarnation < life:
                    continue
                mark = mark_of(each)
                if before is not None and store.incarnation == life:
                    mark = before.with_longer(mark)
                topic.marks.pop(store.broker_id, None)
                topic.marks[store.broker_id] = store.incarnation, mark
                if len(topic.marks) > STORES_MAX:
                    del topic.marks[next(iter(topic.marks))]
                # At once: what a store has behind a loss takes the place of what it has before.
                self._settle(each.topic, topic, now_s)

    def _settle(self, name: str, topic: _Topic, now_s: float) -> None:
        """Whatever enough stores have is done: mostly that is what waits longest."""
        waiting = topic.waiting
        while waiting and topic.stores_with(waiting[0][1]) >= self._needed:
            _, unstored = waiting.popleft()
            self._publishing.stored(unstored, now_s)
        if not waiting:
            self._busy.pop(name, None)

    def _why_not(self, topic: str) -> str:
        """For a publisher that has waited for too long."""
        known = self._topics.get(topic)
        stores = list(known.marks) if known is not None else []
        if not stores:
            return f"published, but no store is known to keep {topic!r}"
        names = ", ".join(sorted(stores))
        return (
            f"published, but not on the disks of {self._needed} stores in time: those known to "
            f"keep {topic!r} are {names}"
        )
