"""Brokers with stores in memory and askers, on the network of `store_net`: requests for the past
travel between them as they do between whole brokers. `PastReader` is a client that asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_agent.core.stores.past_requests import PastArrived, PastEnded, PastRequests
from broker_agent.core.stores.past_serving import PastServing
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, pattern_matches
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Attribute, NodeRef, PastError, PastRange, PeerMessage
from overlay.stores.past_settings import PastSettings
from overlay.stores.past_ways import PastWays
from tests.support.memory_store import MemoryStore, event_run
from tests.support.store_net import Link, StoreNet

PLENTY_BYTES = 1 << 30


@dataclass(slots=True)
class PastReader:
    """What has come for one question."""

    broker: str
    number: int
    payloads: list[bytes] = field(default_factory=list)
    arrivals: int = 0
    lossy: int = 0
    spent_bytes: int = 0
    ended: PastEnded | None = None

    @property
    def error(self) -> PastError.ValueType:
        assert self.ended is not None, "there is no answer yet"
        return self.ended.error


class PastBroker:
    def __init__(self, net: PastNet, name: str, life: int) -> None:
        self.me = NodeRef(broker_id=name, address=name, incarnation=life)
        advertising, counters = net.brokers[name], net.counters[name]
        self.ways = PastWays(self.me, advertising, net.settings, counters)
        self.serving = PastServing(self.me, self.ways, net.settings, counters)
        self.requests = PastRequests(advertising.table, self.ways, net.settings, counters)
        self.store = MemoryStore()

    def settle(self, now_s: float) -> list[tuple[str, PeerMessage]]:
        ways = self.ways
        while ways.has_arrived:
            requests, responses, granted = ways.take_arrived()
            for request in requests:
                self.serving.on_request(request, now_s)
            for credit in granted:
                self.serving.on_credit(credit, now_s)
            for response in responses:
                self.requests.on_response(response, now_s)
        self.serving.begin_reads(self.store)
        return ways.take_said()

    def use_disk(self, now_s: float) -> bool:
        """Whether there was something to read."""
        answers = self.store.take_answers()
        for order, answer in answers:
            self.serving.on_portion(order.key, answer, now_s)
        return bool(answers)


class PastNet(StoreNet):
    def __init__(self, links: Iterable[Link], settings: PastSettings | None = None) -> None:
        self.past: dict[str, PastBroker] = {}
        self.readers: list[PastReader] = []
        self._seqs: dict[str, int] = {}
        super().__init__(links, settings)

    def start(self, name: str) -> None:
        super().start(name)
        self.past[name] = PastBroker(self, name, self._lives[name])

    def crash(self, name: str) -> None:
        super().crash(name)
        del self.past[name]

    def publish(self, topic: str, payload: bytes, at_us: int = 1, **attributes: int) -> list[str]:
        """To all stores that keep it; which they are."""
        self._seqs[topic] = seq = self._seqs.get(topic, 0) + 1
        values = [Attribute(name=name, whole=value) for name, value in attributes.items()]
        stored_at = []
        for name, broker in self.past.items():
            if any(pattern_matches(unit, topic) for unit in self.kept[name]):
                broker.store.store(event_run(topic, seq, payload, at_us, values))
                stored_at.append(name)
        return stored_at

    def ask(
        self,
        broker: str,
        pattern: str,
        wanted: PastRange | None = None,
        *,
        where: str = "",
        credit_bytes: int = PLENTY_BYTES,
    ) -> PastReader:
        number = self.past[broker].requests.ask(
            Filter.parse(pattern, where), wanted or PastRange(), credit_bytes, self.now_s
        )
        reader = PastReader(broker, number)
        self.readers.append(reader)
        self.run()
        return reader

    def grant(self, reader: PastReader, bytes_more: int) -> None:
        self.past[reader.broker].requests.grant(reader.number, bytes_more, self.now_s)
        self.run()

    def cancel(self, reader: PastReader) -> None:
        self.past[reader.broker].requests.cancel(reader.number)
        self.run()

    # ---- time and messages -----------------------------------------------------------------------

    def tick_all(self) -> None:
        super().tick_all()
        for broker in self.past.values():
            broker.requests.tick(self.now_s)
            broker.serving.tick(self.now_s)

    def run(self) -> None:
        super().run()
        while self._use_disks():
            super().run()

    def _use_disks(self) -> bool:
        have_done = [broker.use_disk(self.now_s) for broker in self.past.values()]
        return any(have_done)

    def _collect(self) -> None:
        super()._collect()
        for name, broker in self.past.items():
            for address, message in broker.settle(self.now_s):
                self._send(broker.me, address, message)
            self._hear(name, broker)

    def _deliver(self, sender: NodeRef, address: str, message: PeerMessage) -> None:
        broker = self.past.get(address)
        match message.WhichOneof("body"):
            case _ if broker is None or not self._has_wire(sender.broker_id, address):
                return
            case "past_request":
                broker.ways.on_request(message.past_request)
            case "past_response":
                broker.ways.on_response(message.past_response)
            case "past_credit":
                broker.ways.on_credit(message.past_credit)
            case _:
                super()._deliver(sender, address, message)
                return
        self.on_message(sender.broker_id, address, message)

    def _has_wire(self, one: str, other: str) -> bool:
        """Whether a message can get there: links are wires both ways."""
        return (one, other) in self.links or (other, one) in self.links

    def _hear(self, name: str, broker: PastBroker) -> None:
        for news in broker.requests.take_news():
            (reader,) = [r for r in self.readers if (r.broker, r.number) == (name, news.ask)]
            assert reader.ended is None
            if isinstance(news, PastEnded):
                reader.ended = news
                continue
            _note(reader, news)


def _note(reader: PastReader, arrived: PastArrived) -> None:
    reader.arrivals += 1
    reader.lossy += arrived.is_lossy
    assert arrived.spent_bytes >= reader.spent_bytes
    reader.spent_bytes = arrived.spent_bytes
    for portion in arrived.portions:
        assert not isinstance(portion, Bundle)
        reader.payloads += [event.payload for event in events_of(portion) or ()]
