"""Whole brokers with stores, on any routing: `WiredBrokers`, whose stores serve what is asked of
them from their logs, one step later, as from a disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_agent.core.base.effects import BrokerEffect, ReadPast
from broker_agent.core.options import BrokerOptions
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.readiness import KeepingState
from dynatops.kit.run_events import events_of
from dynatops.v1.client_pb2 import Filter as WireFilter
from dynatops.v1.client_pb2 import History, HistoryCredit, HistoryEnd
from dynatops.v1.overlay_pb2 import PastError, Runs
from overlay.stores.past_settings import PastSettings
from tests.support.routings import MakeRouting
from tests.support.wired_brokers import TICK_S, WiredBrokers

_PLENTY_BYTES = 1 << 24
_CAUGHT_UP_S = 30.0


@dataclass(slots=True)
class Asked:
    """What has come for one question."""

    payloads: list[bytes] = field(default_factory=list)
    lossy: int = 0
    spent_bytes: int = 0
    ended: HistoryEnd | None = None

    @property
    def error(self) -> PastError.ValueType:
        assert self.ended is not None, "there is no answer yet"
        return self.ended.error


class StoreBrokers(WiredBrokers):
    def __init__(
        self,
        routing: MakeRouting,
        names: Sequence[str],
        stores: Mapping[str, Sequence[str]],
        past: PastSettings | None = None,
        capacity: int = 0,
    ) -> None:
        """`stores`: by broker, what its store keeps; `capacity`: how many topics each may be told
        to."""
        self._orders: list[tuple[str, ReadPast]] = []
        self._requests = 0
        self._past = past or PastSettings()
        super().__init__(routing, names, stores=stores, capacity=capacity)

    def _options(self, name: str) -> BrokerOptions:
        options = replace(super()._options(name), past=self._past)
        if options.store is None:
            return options
        return replace(options, store=replace(options.store, serves=True))

    def _perform(self, name: str, effects: Iterable[BrokerEffect]) -> None:
        listed = list(effects)
        super()._perform(name, listed)
        self._orders += [(name, e) for e in listed if isinstance(e, ReadPast)]

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            super().run(TICK_S)
            while self._orders:
                self._read_disks()
                self._deliver()
        self._hear()

    def run_until_ready(self) -> None:
        super().run_until_ready()
        end_s = self.now_s + _CAUGHT_UP_S
        while not all(map(self.is_ready, filter(self.cores.__contains__, self.stores))):
            assert self.now_s < end_s, "the stores do not catch up"
            self.run(0.5)
        self.run(1.0)

    def is_ready(self, name: str) -> bool:
        """Whether its store is advertised to clients."""
        states = self.cores[name].storing.past.readiness.states()
        return all(state is KeepingState.READY for _, state in states)

    def _read_disks(self) -> None:
        orders, self._orders = self._orders, []
        for name, wanted in orders:
            core, order = self.cores.get(name), wanted.order
            if core is not None:
                portion = read_past(self.logs[name], order)
                self._perform(name, core.past_read(order.key, portion, self.now_s))

    # ---- asking ----------------------------------------------------------------------------------

    def ask(
        self,
        broker: str,
        pattern: str,
        where: str = "",
        credit_bytes: int = _PLENTY_BYTES,
        **wanted: Any,
    ) -> Asked:
        """As a client of that broker, until there is an answer, or no more comes."""
        client = f"asks-{broker}"
        if client not in self.clients:
            self.connect(client, broker)
        self._requests += 1
        history = History(
            request=self._requests,
            filter=WireFilter(pattern=pattern, where=where),
            credit_bytes=credit_bytes,
            **wanted,
        )
        self._say(client, history=history)
        end_s = self.now_s + 60.0
        asked, had = self.asked(client, self._requests), -1
        while asked.ended is None and self.now_s < end_s:
            if credit_bytes < _PLENTY_BYTES and len(asked.payloads) == had:
                break
            had = len(asked.payloads)
            self.run(2.0)
            asked = self.asked(client, self._requests)
        return asked

    def asked(self, client: str, request: int = 0) -> Asked:
        """What the client has been told of it; of the last, if no number is said."""
        request = request or self._requests
        asked = Asked()
        for message in self.clients[client].said:
            part, end = message.history_part, message.history_end
            if message.HasField("history_part") and part.request == request:
                asked.payloads += _payloads(part.events)
                asked.lossy += part.lossy
                asked.spent_bytes = part.spent_bytes
            elif message.HasField("history_end") and end.request == request:
                assert asked.ended is None
                asked.ended = end
        return asked

    def give_credit(self, client: str, **credit: Any) -> Asked:
        """For the last question; what has come since."""
        self._say(client, history_credit=HistoryCredit(request=self._requests, **credit))
        self.run(5.0)
        return self.asked(client)


def _payloads(events: Runs) -> list[bytes]:
    assert not events.bundles
    return [event.payload for run in events.runs for event in events_of(run) or ()]
