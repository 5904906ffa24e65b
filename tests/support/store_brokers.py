"""Whole brokers with stores, on any routing: `WiredBrokers`, whose stores serve what is asked of
them from their logs, one step later, as from a disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_agent.core.base.effects import BrokerEffect, ReadPast
from broker_agent.core.options import BrokerOptions
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.past_requests import PastArrived, PastEnded
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import PastError, PastRange
from tests.support.routings import MakeRouting
from tests.support.wired_brokers import WiredBrokers

_PLENTY_BYTES = 1 << 24


@dataclass(slots=True)
class Asked:
    """What has come for one question."""

    payloads: list[bytes] = field(default_factory=list)
    lossy: int = 0
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
        self._orders: list[tuple[str, ReadPast]] = []
        self._asked: dict[tuple[str, int], Asked] = {}
        super().__init__(routing, names, stores=stores)

    def _options(self, name: str) -> BrokerOptions:
        options = super()._options(name)
        if options.store is None:
            return options
        return replace(options, store=replace(options.store, serves=True))

    def _perform(self, name: str, effects: Iterable[BrokerEffect]) -> None:
        listed = list(effects)
        super()._perform(name, listed)
        self._orders += [(name, e) for e in listed if isinstance(e, ReadPast)]

    def run(self, seconds: float) -> None:
        super().run(seconds)
        while self._orders:
            self._read_disks()
            self._deliver()
        self._hear_answers()

    def _read_disks(self) -> None:
        orders, self._orders = self._orders, []
        for name, wanted in orders:
            core, order = self.cores.get(name), wanted.order
            if core is not None:
                portion = read_past(self.logs[name], order)
                self._perform(name, core.past_read(order.key, portion, self.now_s))

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
                    asked.lossy += news.is_lossy


def _payloads(news: PastArrived) -> list[bytes]:
    payloads: list[bytes] = []
    for portion in news.portions:
        assert not isinstance(portion, Bundle)
        payloads += [event.payload for event in events_of(portion) or ()]
    return payloads
