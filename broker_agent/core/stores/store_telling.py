"""How far this store is, told to whoever stamps: at once, and again for a while, as it may be lost,
or be heard by somebody who stamps no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.stores.intake import Had, Units
from broker_agent.core.stores.marks import Mark, mark_message
from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import StoreMark

_AGAIN_S = 1.0
# Whoever waits for longer is refused by then.
_TIMES = 6
# In one tick.
_TOLD_AT_ONCE = 10_000


@dataclass(slots=True)
class _ToldMark:
    mark: Mark
    due_s: float
    times: int = 1


class StoreTelling:
    def __init__(self, context: BrokerContext, units: Units) -> None:
        self._units = units
        # By topic and term; those told longest ago first.
        self._told: BoundedTable[tuple[str, int], _ToldMark] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "store_marks_forgotten"
        )

    def news(self, had: Sequence[Had], now_s: float) -> list[StoreMark]:
        """What is to be told of these, which are on the disk."""
        for topic, mark in had:
            key = topic, mark.reached[0]
            self._told.pop(key, None)
            self._told[key] = _ToldMark(mark, now_s + _AGAIN_S)
        return [mark_message(topic, mark) for topic, mark in had]

    def widened(
        self, unit: str, topics: Iterable[str], mark: Mark, now_s: float
    ) -> list[StoreMark]:
        """The unit is had from an earlier stamp on: of these topics, and of others of it that were
        told lately."""
        had = {topic: Had(topic, mark) for topic in topics}
        for (topic, term), known in self._told.items():
            if (
                self._units.unit_of(topic, term) == unit
                and mark.since < known.mark.since <= mark.reached
            ):
                had[topic] = Had(topic, known.mark._replace(since=mark.since))
        return self.news(list(had.values()), now_s)

    def due(self, now_s: float) -> list[StoreMark]:
        """What is to be told again."""
        again: list[StoreMark] = []
        for key, told in list(self._told.items())[:_TOLD_AT_ONCE]:
            if told.due_s > now_s:
                continue
            again.append(mark_message(key[0], told.mark))
            told.times += 1
            if told.times > _TIMES:
                del self._told[key]
            else:
                told.due_s = now_s + _AGAIN_S * 2 ** (told.times - 1)
                self._told.move_to_end(key)
        return again
