"""Whole brokers with stores, on any routing: `WiredBrokers`, of which some have a store in memory.

A store has what its broker's own store client takes from deliveries; what is asked of it is read
from there one step later, as from a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_agent.core.base.effects import BrokerEffect, ReadPast, StoreNow
from broker_agent.core.options import BrokerOptions
from broker_agent.core.stores.log.log_requests import AppendStored
from broker_agent.core.stores.log.stored_runs import run_of
from broker_agent.core.stores.past_requests import PastArrived, PastEnded
from broker_agent.core.stores.store_options import StoreOptions
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import PastError, PastRange
from tests.support.memory_store import MemoryStore
from tests.support.routings import MakeRouting
from tests.support.wired_brokers import WiredBrokers

_PLENTY_BYTES = 1 << 24


@dataclass(slots=True)
class Asked:
    """What has come for one question."""

    payloads: list[bytes] = field(default_factory=list)
    ended: PastEnded | None = None

    @property
    def error(self) -> PastError.ValueType:
        assert self.ended is not None, "there is no answer yet"
        return self.ended.error


class StoreBrokers(WiredBrokers):
    def __init__(
        self, routing: MakeRouting, names: Sequence[str], stores: Mapping[str, Sequence[str]]
    ) -> None:
        """`stores`: by broker, what its store keeps."""
        self._patterns = stores
        self.memory = {name: MemoryStore() for name in stores}
        self._asked: dict[tuple[str, int], Asked] = {}
        super().__init__(routing, names)

    def _options(self, name: str) -> BrokerOptions:
        if name not in self._patterns:
            return super()._options(name)
        filters = [Filter.parse(pattern) for pattern in self._patterns[name]]
        return BrokerOptions(
            selection=self._selection,
            saving=True,
            store=StoreOptions(filters, {}, serves=True),
        )

    def _perform(self, name: str, effects: Iterable[BrokerEffect]) -> None:
        listed = list(effects)
        super()._perform(name, listed)
        if StoreNow() in listed:
            self._store(name)
        for effect in listed:
            if isinstance(effect, ReadPast):
                self.memory[name].begin_read(effect.order)

    def _store(self, name: str) -> None:
        core = self.cores[name]
        while (append := core.take_unstored(1 << 20, 1, self.now_s)) is not None:
            for row in append.rows:
                run = run_of(row)
                if run is not None:
                    self.memory[name].store(run)
            self._perform(name, core.log_answered(AppendStored(append.number), self.now_s))

    def run(self, seconds: float) -> None:
        super().run(seconds)
        while self._read_disks():
            self._deliver()
        self._hear_answers()

    def _read_disks(self) -> bool:
        has_read = False
        for name, core in self.cores.items():
            store = self.memory.get(name)
            for order, portion in store.take_answers() if store is not None else ():
                self._perform(name, core.past_read(order.key, portion, self.now_s))
                has_read = True
        return has_read

    # ---- asking ----------------------------------------------------------------------------------

    def ask(
        self, name: str, pattern: str, wanted: PastRange | None = None, where: str = ""
    ) -> Asked:
        past = self.cores[name].storing.past
        number = past.requests.ask(
            Filter.parse(pattern, where), wanted or PastRange(), _PLENTY_BYTES, self.now_s
        )
        asked = self._asked[name, number] = Asked()
        end_s = self.now_s + 60.0
        while asked.ended is None and self.now_s < end_s:
            self.run(0.5)
        return asked

    def _hear_answers(self) -> None:
        for name, core in self.cores.items():
            for news in core.storing.past.take_news():
                asked = self._asked[name, news.ask]
                if isinstance(news, PastEnded):
                    asked.ended = news
                else:
                    asked.payloads += _payloads(news)


def _payloads(news: PastArrived) -> list[bytes]:
    payloads: list[bytes] = []
    for portion in news.portions:
        assert not isinstance(portion, Bundle)
        payloads += [event.payload for event in events_of(portion) or ()]
    return payloads
