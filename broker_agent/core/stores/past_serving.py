"""A store's side of requests for the past: portions, as far as there is credit for them.

    PastRequest --> open --read, matched with the whole filter--> PastResponse 1, 2, 3, …
    PastCredit  --> more of them                                  the last says `end`, or an error

What is open is bounded, and so is what is read from the disk at a time: those that wait have their
turn one after the other, a portion each. A request that is repeated is open already. One that
nobody takes anything of is closed after a while; whoever asked makes it anew from where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker_agent.core.stores.store_reader import (
    ReadOrder,
    ServedKey,
    StorePortion,
    StoreReader,
    StoreStanding,
)
from dynatops.kit.bounded import BoundedTable, Past
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, FilterError, pattern_covers, pattern_matches
from dynatops.kit.topics import STREAMS
from dynatops.v1.overlay_pb2 import (
    LogSpan,
    NodeRef,
    PastCredit,
    PastError,
    PastRequest,
    PastResponse,
    Runs,
)
from overlay.forwarding.streams.portions import (
    Portion,
    RunSelection,
    events_in,
    plain_event_meets,
    put_portion,
    size_of,
)
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.past_ways import PastWays

# What a response costs of the credit beside its events.
RESPONSE_BYTES = 256


@dataclass(slots=True)
class _ServedRequest:
    request: PastRequest
    wanted: Filter
    # What is read for it: the unit, or what the filter is about of it.
    pattern: str
    credit: int
    heard_s: float
    place: bytes = b""
    spent: int = 0
    number: int = 0
    # Whether a portion is being read, or waits to be.
    is_reading: bool = False
    # Whether the store had come as far as it was to, when that portion was begun.
    has_come: bool = False

    def response(self) -> PastResponse:
        self.number += 1
        request = self.request
        return PastResponse(request=request.request, path=request.path, number=self.number)


class PastServing:
    def __init__(
        self, me: NodeRef, ways: PastWays, settings: PastSettings, counters: PastCounters
    ) -> None:
        self._me = me
        self._ways = ways
        self._settings = settings
        self._counters = counters
        self._open: BoundedTable[ServedKey, _ServedRequest] = BoundedTable(
            settings.serves_max, counters, "serves_refused", past=Past.NEWEST
        )
        # What the store here keeps.
        self._patterns: tuple[str, ...] = ()
        self._waiting: deque[ServedKey] = deque()
        self._reading: dict[ServedKey, None] = {}
        # What is here to be served, once it is known.
        self.standing: StoreStanding | None = None

    def __len__(self) -> int:
        return len(self._open)

    # ---- what brokers say ------------------------------------------------------------------------

    def on_request(self, request: PastRequest, now_s: float) -> None:
        key = self._key(request)
        if key in self._open:
            return
        wanted = _filter_of(request)
        if wanted is None:
            self._counters.serves_refused += 1
            self._refuse(request, PastError.PAST_ERROR_INVALID, "the filter is none")
            return
        is_narrower = pattern_covers(request.unit, wanted.pattern)
        pattern = wanted.pattern if is_narrower else request.unit
        served = _ServedRequest(request, wanted, pattern, request.credit_bytes, now_s)
        if request.range.store == self._me.broker_id:
            served.place = request.range.place
        if not self._open.put(key, served):
            message = f"{self._me.broker_id} has {len(self._open):,} requests open already"
            self._refuse(request, PastError.PAST_ERROR_OVERLOADED, message)
            return
        self._counters.serves += 1
        self._go_on(key, served)

    def on_credit(self, credit: PastCredit, now_s: float) -> None:
        key = self._key(credit)
        served = self._open.get(key)
        if credit.cancel:
            self._close(key)
        elif served is None:
            self._counters.serves_forgotten += 1
            request = PastRequest(request=credit.request, path=credit.path)
            self._refuse(request, PastError.PAST_ERROR_FORGOTTEN, "the store has closed it")
        else:
            served.heard_s = now_s
            served.credit = max(served.credit, credit.credit_bytes)
            self._go_on(key, served)

    def _key(self, request: PastRequest | PastCredit) -> ServedKey:
        origin = request.path[0] if request.path else self._me
        return ServedKey(origin.broker_id, origin.incarnation, request.request)

    # ---- the store -------------------------------------------------------------------------------

    def keep(self, patterns: Iterable[str]) -> None:
        """That is what the store here keeps."""
        self._patterns = tuple(patterns)

    def give_up(self, unit: str) -> None:
        """The store keeps it no more: whoever reads it goes on elsewhere."""
        for key, served in list(self._open.items()):
            if served.request.unit == unit:
                response = served.response()
                response.error = PastError.PAST_ERROR_FORGOTTEN
                response.message = f"{self._me.broker_id} keeps {unit} no more"
                self._send(response)
                self._close(key)

    def begin_reads(self, reader: StoreReader) -> None:
        """After each input: what is next is read."""
        while self._waiting and len(self._reading) < self._settings.reads_at_once:
            key = self._waiting.popleft()
            served = self._open[key]
            self._reading[key] = None
            request = served.request
            served.has_come = served.has_come or self._has_come(request)
            room = max(served.credit - served.spent - RESPONSE_BYTES, 1)
            bytes_max = min(self._settings.portion_bytes, room)
            order = ReadOrder(
                key, served.pattern, request.range, served.place, bytes_max,
                proves_streams=self._keeps_all(request.range.for_store.patterns),
            )  # fmt: skip
            reader.begin_read(order)

    def _keeps_all(self, patterns: Iterable[str]) -> bool:
        kept = self._patterns
        return all(any(pattern_covers(mine, each) for mine in kept) for each in patterns)

    def on_portion(self, key: ServedKey, portion: StorePortion, now_s: float) -> None:
        self._reading.pop(key, None)
        served = self._open.get(key)
        if served is None:
            return
        served.is_reading = False
        self._counters.past_events_read += sum(map(events_in, portion.events))
        response = served.response()
        if portion.error:
            response.error, response.message = portion.error, portion.message
            self._send(response)
            self._close(key)
            return
        matched = list(portion.events)
        if served.request.range.HasField("for_store"):
            _put_log(response, portion)
        else:
            parts = (matching_part(events, served.wanted) for events in portion.events)
            matched = [part for part in parts if part is not None]
        _put_all(response.events, matched)
        self._counters.past_events_served += sum(map(events_in, matched))
        served.spent += RESPONSE_BYTES + sum(map(size_of, matched))
        served.spent += sum(map(LogSpan.ByteSize, portion.spans))
        response.spent_bytes = served.spent
        response.place = served.place = portion.place
        response.end = portion.is_end and served.has_come
        response.lossy = portion.is_lossy
        if served.number == 1 and served.request.path:
            response.route.extend([*served.request.path[1:], self._me])
        self._send(response)
        if portion.is_end:
            if not served.has_come:
                self._send_not_yet(served)
            self._close(key)
        else:
            self._go_on(key, served)

    def tick(self, now_s: float) -> None:
        for key, served in list(self._open.items()):
            is_waiting = not served.is_reading
            if is_waiting and now_s - served.heard_s >= self._settings.serve_idle_s:
                self._counters.serves_closed += 1
                self._close(key)

    # ---- what is said ----------------------------------------------------------------------------

    def _go_on(self, key: ServedKey, served: _ServedRequest) -> None:
        if not served.is_reading and served.spent < served.credit:
            served.is_reading = True
            self._waiting.append(key)

    def _close(self, key: ServedKey) -> None:
        served = self._open.pop(key, None)
        if served is not None and served.is_reading and key not in self._reading:
            self._waiting.remove(key)

    def _refuse(self, request: PastRequest, error: PastError.ValueType, message: str) -> None:
        response = PastResponse(request=request.request, path=request.path, number=1)
        response.error, response.message = error, message
        self._send(response)

    def _has_come(self, request: PastRequest) -> bool:
        """Whether the store has come as far as it is to, with what it keeps of that."""
        standing = self.standing
        return standing is None or all(
            standing.has_come_to(place.topic, seen.term, seen.seq)
            for place in request.range.upto
            if place.topic == STREAMS or pattern_matches(request.unit, place.topic)
            for seen in place.seen
        )

    def _send_not_yet(self, served: _ServedRequest) -> None:
        response = served.response()
        response.error = PastError.PAST_ERROR_NOT_YET
        response.message = f"{self._me.broker_id} has not stored yet what was published last"
        self._send(response)

    def _send(self, response: PastResponse) -> None:
        response.store.CopyFrom(self._me)
        self._ways.send_response(response)


def matching_part(events: Portion, wanted: Filter) -> Portion | None:
    """What of these events the whole filter matches; None: nothing. What cannot be read meets all
    conditions."""
    if isinstance(events, Bundle):
        if not plain_event_meets((wanted,)):
            return None
        topics = enumerate(events.topics)
        places = [place for place, topic in topics if pattern_matches(wanted.pattern, topic)]
        return events.pick(places) if places else None
    if not pattern_matches(wanted.pattern, events.topic):
        return None
    return events if wanted.predicate is None else RunSelection(events).of((wanted,))


def _put_log(response: PastResponse, portion: StorePortion) -> None:
    response.spans.extend(portion.spans)
    response.life, response.version = portion.standing.life, portion.standing.version
    response.more_units = portion.more_units


def _put_all(message: Runs, portions: Sequence[Portion]) -> None:
    """One message has runs or bundles, so that they stay in order."""
    if all(isinstance(portion, Bundle) for portion in portions):
        for portion in portions:
            put_portion(message, portion)
        return
    for portion in portions:
        if isinstance(portion, Bundle):
            message.runs.extend(portion.run_at(place) for place in range(len(portion)))
        else:
            message.runs.append(portion)


def _filter_of(request: PastRequest) -> Filter | None:
    try:
        return Filter.parse(request.filter.pattern, request.filter.where)
    except FilterError:
        return None
