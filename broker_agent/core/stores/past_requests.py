"""Requests for the past that this broker makes: for its clients, for its store, for its own gaps.

    ask(filter, range) --> units of the filter, one after the other
        ASKING --first response--> COMING --end--> the next unit, or PastEnded
          ^  |                       |
          |  '--error, silence-------'
          '---- another store, from where it has come to; or PastEnded, with the reason

Which units there are is looked up in the Advertisement Table: one that has all that the filter may
match, if there is one, or all that have some of it. What has come is remembered by topic, so that
another store can go on where one has gone; a store that goes on itself is told its own place.

`PastArrived` and `PastEnded` are what comes of it; whoever asks gives credit for more (`grant`),
and nothing more is sent than there is credit for. A store that is silent, overloaded, damaged, or
lacks the range is avoided, and the next nearest is asked; if none is left, the reason of the last
is the answer. Nothing is tried for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dynatops.kit.bounded import BoundedTable, Past
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, is_wildcard, pattern_matches
from dynatops.v1.overlay_pb2 import (
    ForStore,
    LogSpan,
    NodeRef,
    PastCredit,
    PastError,
    PastRange,
    PastRequest,
    PastResponse,
    TermSeq,
    WantedFilter,
)
from overlay.forwarding.streams.portions import Portion, events_in, last_of, portions_of
from overlay.soundness import is_sound
from overlay.stores.advertisement_table import AdvertisementTable
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.past_ways import PastWays
from overlay.stores.store_names import store_name

# After these another store may be able to answer.
_ELSEWHERE = frozenset(
    {
        PastError.PAST_ERROR_EXPIRED,
        PastError.PAST_ERROR_FUTURE,
        PastError.PAST_ERROR_OVERLOADED,
        PastError.PAST_ERROR_DAMAGED,
        PastError.PAST_ERROR_NOT_YET,
    }
)


@dataclass(frozen=True, slots=True)
class AboutLog:
    """What a store says of its log: which spans it covers, or of which the events are all."""

    spans: Sequence[LogSpan]
    life: int
    version: int
    more_units: bool


@dataclass(frozen=True, slots=True)
class PastArrived:
    """A part of the answer; `is_lossy`: something before it is not kept any more."""

    ask: int
    portions: tuple[Portion, ...]
    is_lossy: bool
    # Of the credit that was granted, so much is spent.
    spent_bytes: int
    # Where a store asks: what the other one says of its log.
    about_log: AboutLog | None = None


@dataclass(frozen=True, slots=True)
class PastEnded:
    """That was all, as of now; or why there is no more."""

    ask: int
    error: PastError.ValueType = PastError.PAST_ERROR_UNSPECIFIED
    message: str = ""


PastNews = PastArrived | PastEnded


@dataclass(slots=True)
class _PastAsk:
    wanted: Filter
    wanted_range: PastRange
    # Stores that are not to be asked at all.
    never: frozenset[str]
    # Units of the filter that are still to be asked for, the present one first; and those before.
    units: list[str]
    # Bytes that may come, of all requests.
    credit: int
    # How far each topic has come, by terms.
    places: BoundedTable[str, dict[int, int]]
    early: BoundedTable[int, PastResponse]
    done: list[str] = field(default_factory=list)
    # The present request, 0 if there is none; what it and those before it have spent, and how much
    # it was told it may spend; the number of the next response.
    request: int = 0
    spent: int = 0
    spent_before: int = 0
    credit_told: int = 0
    expected: int = 1
    # Who answers it, and the way there; None before the first response. Until then there is only
    # the store that it was sent towards.
    route: tuple[NodeRef, ...] | None = None
    store: str = ""
    towards: str = ""
    # Where that store has come to.
    place: bytes = b""
    # Since something came, or was asked; since credit was given.
    heard_s: float = 0.0
    credit_said_s: float = 0.0
    # When it is to be asked again.
    retry_s: float | None = None
    # Since something came.
    attempts: int = 0
    # Stores that could not answer, and what the last of them said.
    avoid: dict[str, None] = field(default_factory=dict)
    error: PastError.ValueType = PastError.PAST_ERROR_UNSPECIFIED
    message: str = ""
    # No store has all that is wanted: what is left of it is taken.
    with_loss: bool = False

    @property
    def credit_left(self) -> int:
        return self.credit - self.spent_before - self.spent

    def end_request(self) -> None:
        self.spent_before += self.spent
        self.request = self.spent = self.credit_told = 0
        self.expected = 1
        self.route = None
        self.early.clear()

    def forget_errors(self) -> None:
        self.avoid.clear()
        self.error, self.message = PastError.PAST_ERROR_UNSPECIFIED, ""

    def range(self) -> PastRange:
        """What has not come yet."""
        wanted = self.wanted_range
        left = PastRange(
            since_us=wanted.since_us,
            last=wanted.last,
            with_loss=self.with_loss,
            upto=wanted.upto,
        )
        if wanted.HasField("for_store"):
            left.for_store.CopyFrom(wanted.for_store)
        for topic, terms in self.places.items():
            seen = [TermSeq(term=term, seq=seq) for term, seq in terms.items()]
            left.after.add(topic=topic, seen=seen)
        if self.place:
            left.store, left.place = self.store, self.place
        return left


class PastRequests:
    def __init__(
        self,
        table: AdvertisementTable,
        ways: PastWays,
        settings: PastSettings,
        counters: PastCounters,
    ) -> None:
        self._table = table
        self._ways = ways
        self._settings = settings
        self._counters = counters
        self._asks: BoundedTable[int, _PastAsk] = BoundedTable(
            settings.asks_max, counters, "asks_refused", past=Past.NEWEST
        )
        # By the number of the present request.
        self._by_request: dict[int, int] = {}
        self._numbers = 0
        self._news: list[PastNews] = []

    def __len__(self) -> int:
        return len(self._asks)

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_news(self) -> list[PastNews]:
        news, self._news = self._news, []
        return news

    # ---- who asks --------------------------------------------------------------------------------

    def ask(
        self,
        wanted: Filter,
        wanted_range: PastRange,
        credit_bytes: int,
        now_s: float,
        never: Iterable[str] = (),
    ) -> int:
        """The number of the question. `never`: stores that are not to be asked, such as the one
        that asks."""
        self._counters.asks += 1
        number = self._number()
        units = self._table.units_of(wanted.pattern)
        ask = self._new_ask(wanted, wanted_range, units, credit_bytes, frozenset(never))
        if not units:
            message = f"no store is known that keeps anything of {wanted.pattern}"
            self._fail(number, PastError.PAST_ERROR_NOT_STORED, message)
        elif len(units) > self._settings.units_per_ask_max:
            message = (
                f"{wanted.pattern} is about {len(units):,} topics and patterns that stores keep; "
                f"{self._settings.units_per_ask_max:,} may be asked for at once"
            )
            self._fail(number, PastError.PAST_ERROR_INVALID, message)
        elif not self._asks.put(number, ask):
            message = f"{len(self._asks):,} requests for the past are open at this broker already"
            self._fail(number, PastError.PAST_ERROR_OVERLOADED, message)
        else:
            self._send(number, ask, now_s)
        return number

    def ask_store(self, store: str, wanted: ForStore, credit_bytes: int, now_s: float) -> int:
        """Of that store alone, for the one here."""
        self._counters.asks += 1
        number = self._number()
        wanted_range = PastRange(for_store=wanted)
        unit = store_name(store)
        ask = self._new_ask(Filter.parse("#"), wanted_range, [unit], credit_bytes, frozenset())
        if not self._asks.put(number, ask):
            message = f"{len(self._asks):,} requests for the past are open at this broker already"
            self._fail(number, PastError.PAST_ERROR_OVERLOADED, message)
        else:
            self._send(number, ask, now_s)
        return number

    def topics_of(self, wanted: Filter) -> list[str]:
        """Topics that a question is about: the one that it names, or those of its pattern that
        stores keep by their names."""
        if not wanted.is_wildcard:
            return [wanted.pattern]
        units = self._table.units_of(wanted.pattern)
        most = self._settings.units_per_ask_max
        return [unit for unit in units[:most] if not is_wildcard(unit)]

    def _new_ask(
        self,
        wanted: Filter,
        wanted_range: PastRange,
        units: list[str],
        credit_bytes: int,
        never: frozenset[str],
    ) -> _PastAsk:
        settings, counters = self._settings, self._counters
        places: BoundedTable[str, dict[int, int]] = BoundedTable(
            settings.places_max, counters, "ask_places_dropped"
        )
        for place in wanted_range.after:
            places[place.topic] = {seen.term: seen.seq for seen in place.seen}
        early: BoundedTable[int, PastResponse] = BoundedTable(
            settings.early_responses_max, counters, "ask_responses_early", past=Past.NEWEST
        )
        return _PastAsk(wanted, wanted_range, never, units, credit_bytes, places, early)

    def grant(self, number: int, bytes_more: int, now_s: float) -> None:
        """So much more may come."""
        ask = self._asks.get(number)
        if ask is None or bytes_more <= 0:
            return
        if ask.credit_left <= 0:
            # The store has not been silent so far: it had nothing to say.
            ask.heard_s = now_s
        ask.credit += bytes_more
        if ask.request:
            self._give_credit(ask, now_s)
        elif ask.retry_s is None:
            self._send(number, ask, now_s)

    def cancel(self, number: int) -> None:
        """Nobody wants the answer any more."""
        ask = self._asks.pop(number, None)
        if ask is None or not ask.request:
            return
        self._by_request.pop(ask.request, None)
        if ask.route is not None:
            credit = PastCredit(request=ask.request, cancel=True)
            self._ways.send_credit(credit, ask.route)

    # ---- what stores say -------------------------------------------------------------------------

    def on_response(self, response: PastResponse, now_s: float) -> None:
        number = self._by_request.get(response.request)
        ask = self._asks.get(number) if number is not None else None
        if number is None or ask is None:
            self._counters.past_messages_strange += 1
            return
        ask.heard_s = now_s
        if response.error == PastError.PAST_ERROR_FORGOTTEN:
            self._on_error(number, ask, response, now_s)
            return
        if response.number != ask.expected:
            if response.number > ask.expected:
                ask.early.put(response.number, response)
            return
        self._take(number, ask, response, now_s)
        request = response.request
        while ask.request == request and (early := ask.early.pop(ask.expected, None)) is not None:
            self._take(number, ask, early, now_s)

    def _take(self, number: int, ask: _PastAsk, response: PastResponse, now_s: float) -> None:
        if response.error:
            self._on_error(number, ask, response, now_s)
            return
        ask.expected += 1
        ask.attempts = 0
        ask.place, ask.spent = response.place, response.spent_bytes
        if ask.route is None:
            self._counters.asks_moved += ask.store not in ("", response.store.broker_id)
            ask.store, ask.route = response.store.broker_id, tuple(response.route)
            self._counters.past_answers += 1
            self._counters.past_answer_hops += len(ask.route)
        spent = ask.spent_before + ask.spent
        if ask.wanted_range.HasField("for_store"):
            self._news.append(_arrived_for_store(number, response, spent))
        else:
            portions = tuple(self._read(ask, response))
            if portions or response.lossy:
                self._news.append(PastArrived(number, portions, response.lossy, spent))
        if response.end:
            self._end_unit(number, ask, now_s)
        else:
            self._give_credit(ask, now_s)

    def _read(self, ask: _PastAsk, response: PastResponse) -> Iterator[Portion]:
        """Events that came, but for those that a unit before has, too."""
        for portion in portions_of(response.events):
            part = _not_of(ask.done, portion)
            if part is not None:
                self._counters.past_events_received += events_in(part)
                _note_places(ask.places, part)
                yield part

    def _end_unit(self, number: int, ask: _PastAsk, now_s: float) -> None:
        self._end_request(ask)
        ask.done.append(ask.units.pop(0))
        if not ask.units:
            del self._asks[number]
            self._news.append(PastEnded(number))
            return
        ask.forget_errors()
        ask.store, ask.place = "", b""
        ask.with_loss = False
        self._send(number, ask, now_s)

    # ---- when there is no answer -----------------------------------------------------------------

    def _on_error(self, number: int, ask: _PastAsk, response: PastResponse, now_s: float) -> None:
        error = response.error
        self._end_request(ask)
        if error in _ELSEWHERE:
            self._avoid(ask, response.store.broker_id)
            # That something has expired weighs most: what is left of it may be asked for.
            if ask.error != PastError.PAST_ERROR_EXPIRED:
                ask.error, ask.message = error, response.message
            self._send(number, ask, now_s)
        elif error == PastError.PAST_ERROR_FORGOTTEN:
            self._try_again(number, ask, now_s)
        elif error != PastError.PAST_ERROR_NOT_STORED:
            self._give_up(number, error, response.message)
        elif not ask.error:
            self._try_later(number, ask, now_s)
        elif ask.error == PastError.PAST_ERROR_EXPIRED and self._may_lose(ask):
            ask.with_loss = True
            ask.forget_errors()
            self._send(number, ask, now_s)
        else:
            self._give_up(number, ask.error, ask.message)

    def _may_lose(self, ask: _PastAsk) -> bool:
        return ask.wanted_range.with_loss and not ask.with_loss

    def _avoid(self, ask: _PastAsk, store: str) -> None:
        ask.avoid[store] = None
        if ask.store == store:
            ask.place = b""

    def _on_silence(self, number: int, ask: _PastAsk, now_s: float) -> None:
        self._avoid(ask, ask.towards if ask.route is None else ask.store)
        self._end_request(ask)
        self._try_again(number, ask, now_s)

    def _try_again(self, number: int, ask: _PastAsk, now_s: float) -> None:
        ask.attempts += 1
        self._counters.asks_retried += 1
        if ask.attempts > self._settings.attempts_max:
            message = f"no store has answered for {ask.units[0]}, in {ask.attempts} attempts"
            self._give_up(number, PastError.PAST_ERROR_UNAVAILABLE, message)
        else:
            self._send(number, ask, now_s)

    def _try_later(self, number: int, ask: _PastAsk, now_s: float) -> None:
        """A store was known, and is none any more: tables may be about to change. Those that were
        silent may have been so by mischance."""
        ask.avoid.clear()
        ask.attempts += 1
        self._counters.asks_retried += 1
        if ask.attempts > self._settings.attempts_max:
            message = f"no store of {ask.units[0]} can be reached any more"
            self._give_up(number, PastError.PAST_ERROR_UNAVAILABLE, message)
        else:
            ask.retry_s = now_s + self._settings.retry_pause_s

    def _give_up(self, number: int, error: PastError.ValueType, message: str) -> None:
        del self._asks[number]
        self._fail(number, error, message)

    def _fail(self, number: int, error: PastError.ValueType, message: str) -> None:
        self._counters.asks_failed += 1
        self._news.append(PastEnded(number, error, message))

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        settings = self._settings
        for number, ask in list(self._asks.items()):
            if ask.retry_s is not None:
                if now_s >= ask.retry_s:
                    self._send(number, ask, now_s)
            elif not ask.request or ask.credit_left <= 0:
                continue
            elif now_s - ask.heard_s >= settings.response_patience_s:
                self._on_silence(number, ask, now_s)
            elif now_s - max(ask.heard_s, ask.credit_said_s) >= settings.credit_again_s:
                ask.credit_told = 0
                self._give_credit(ask, now_s)

    # ---- what is said ----------------------------------------------------------------------------

    def _send(self, number: int, ask: _PastAsk, now_s: float) -> None:
        ask.retry_s = None
        if ask.credit_left <= 0:
            # Once there is more.
            return
        ask.request = self._number()
        ask.heard_s = ask.credit_said_s = now_s
        ask.credit_told = ask.credit_left
        self._by_request[ask.request] = number
        ask.towards = self._ways.send_request(
            PastRequest(
                request=ask.request,
                unit=ask.units[0],
                filter=WantedFilter(pattern=ask.wanted.pattern, where=ask.wanted.where),
                range=ask.range(),
                credit_bytes=ask.credit_told,
                avoid=[*ask.never, *ask.avoid],
            )
        )

    def _give_credit(self, ask: _PastAsk, now_s: float) -> None:
        allowed = ask.credit - ask.spent_before
        if ask.route is None or allowed <= ask.credit_told:
            return
        ask.credit_told, ask.credit_said_s = allowed, now_s
        credit = PastCredit(request=ask.request, credit_bytes=allowed)
        self._ways.send_credit(credit, ask.route)

    def _end_request(self, ask: _PastAsk) -> None:
        self._by_request.pop(ask.request, None)
        ask.end_request()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _arrived_for_store(number: int, response: PastResponse, spent: int) -> PastArrived:
    spans = [span for span in response.spans if is_sound(span)]
    about = AboutLog(spans, response.life, response.version, response.more_units)
    return PastArrived(number, tuple(portions_of(response.events)), False, spent, about)


def _not_of(units: Sequence[str], portion: Portion) -> Portion | None:
    """But for events of topics that are in one of these units."""
    if not units:
        return portion
    if isinstance(portion, Bundle):
        others = [
            place
            for place, topic in enumerate(portion.topics)
            if not any(pattern_matches(unit, topic) for unit in units)
        ]
        return portion.pick(others) if others else None
    return None if any(pattern_matches(unit, portion.topic) for unit in units) else portion


def _note_places(places: BoundedTable[str, dict[int, int]], portion: Portion) -> None:
    if isinstance(portion, Bundle):
        read = zip(portion.topics, portion.terms, portion.seqs, strict=True)
    else:
        read = zip((portion.topic,), (portion.term,), (last_of(portion),), strict=True)
    for topic, term, seq in read:
        terms = places.get(topic)
        if terms is None:
            terms = places[topic] = {}
        terms[term] = max(terms.get(term, 0), seq)
