"""Marks of stores, at the broker that stamps a topic: it knows both sides.

    stores --marks--> kept by topic and store --marks--> brokers that have asked lately

What is asked for is answered with what is known, and from then on with every mark that comes, for a
while. Nothing here is kept beyond this life: stores tell again what is new, and brokers that wait
ask again.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.stores.marks import Mark, mark_message, mark_of
from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import FromStamper, MarksOfStore, NodeRef, StoreMark, ToStamper

# Whoever has asked is told for so long; who goes on waiting asks more often.
ASKED_FOR_S = 10.0
# Of one topic. The longest silent are forgotten.
STORES_MAX = 64
_ASKING_MAX = 1_024


class MarkBoard:
    def __init__(self, context: BrokerContext) -> None:
        topics_max, counters = context.settings.rendezvous_cache_max, context.counters
        # By topic and store: in which life of it, and how far it is.
        self._marks: BoundedTable[str, dict[str, tuple[NodeRef, Mark]]] = BoundedTable(
            topics_max, counters, "store_marks_forgotten"
        )
        # By topic: addresses of brokers that are told, until when.
        self._asking: BoundedTable[str, dict[str, float]] = BoundedTable(
            topics_max, counters, "store_questions_forgotten"
        )

    def on_message(self, message: ToStamper, now_s: float) -> dict[str, FromStamper]:
        """Note what it says; what is to be said because of it, by address."""
        answers: dict[str, FromStamper] = {}
        if message.hops:
            topics = [*(mark.topic for mark in message.marks), *message.asked]
            answers[message.origin.address] = FromStamper(found=topics)
        self._note(message, answers, now_s)
        for topic in message.asked:
            self._ask(topic, message.origin.address, answers, now_s)
        return answers

    def _note(self, message: ToStamper, answers: dict[str, FromStamper], now_s: float) -> None:
        news: dict[str, MarksOfStore] = {}
        for each in message.marks:
            kept = self._keep(each, message.origin)
            if kept is None:
                continue
            for address in self._asking_for(each.topic, now_s):
                told = news.get(address)
                if told is None:
                    answer = answers.setdefault(address, FromStamper())
                    told = news[address] = answer.stores.add(store=message.origin)
                told.marks.append(mark_message(each.topic, kept))

    def _keep(self, message: StoreMark, store: NodeRef) -> Mark | None:
        """How far this store is by now; None if it is an older life's word."""
        marks = self._marks.get(message.topic)
        if marks is None:
            marks = self._marks[message.topic] = {}
        mark = mark_of(message)
        known = marks.pop(store.broker_id, None)
        if known is not None:
            life, before = known
            if life.incarnation > store.incarnation:
                marks[store.broker_id] = known
                return None
            if life.incarnation == store.incarnation:
                mark = before.with_longer(mark)
        marks[store.broker_id] = store, mark
        if len(marks) > STORES_MAX:
            del marks[next(iter(marks))]
        return mark

    def _asking_for(self, topic: str, now_s: float) -> Iterator[str]:
        asking = self._asking.get(topic)
        if asking is None:
            return
        for address, until_s in list(asking.items()):
            if until_s > now_s:
                yield address
            else:
                del asking[address]
        if not asking:
            del self._asking[topic]

    def _ask(self, topic: str, address: str, answers: dict[str, FromStamper], now_s: float) -> None:
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = {}
        asking.pop(address, None)
        asking[address] = now_s + ASKED_FOR_S
        if len(asking) > _ASKING_MAX:
            del asking[next(iter(asking))]
        for store, mark in self._marks.get(topic, {}).values():
            answer = answers.setdefault(address, FromStamper())
            answer.stores.add(store=store).marks.append(mark_message(topic, mark))
