"""What a store lacks, and whether it may be asked for the past: each store asks all others.

    kept ----> SUBSCRIBING --in place--> CATCHING_UP --gone through the others--> READY: advertised
                                           ^                                       |
                                           '------ fell behind: withdrawn ---------'

    a round:  the log here --> for each other store, one after the other:
                 what does your log have? --a page--> what of that is not in the log here?
                 the events of those --> appended, on the disk --> the next page

Who advertises a topic first and subscribes then misses what is published in between; a new replica
that does not ask the others lacks all that was before it. What a store lacks anywhere, in the
middle as well, it asks others for as long as one of them has it; rounds come at growing intervals.
What no log has any more is asked of nobody, and readers are told that it is missing.

All stores are known by their names (`store_names.py`) as soon as they run, whatever they lack: so
several that begin together, each with a part of the past, get it from each other. Clients' requests
only find those that are READY.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from broker_agent.core.base.store_units import is_sound_unit
from broker_agent.core.stores.log_peers import is_of_patterns
from broker_agent.core.stores.past_requests import (
    AboutLog,
    PastArrived,
    PastEnded,
    PastNews,
    PastRequests,
)
from broker_agent.core.stores.past_serving import PastServing
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion
from dynatops.v1.overlay_pb2 import ForStore, LogSpan, PastError, PastRange
from overlay.forwarding.streams.portions import Portion, events_in
from overlay.stores.advertisement_table import AdvertisementTable
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.store_names import store_name


class KeepingState(Enum):
    SUBSCRIBING = "subscribing"
    CATCHING_UP = "catching up"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class LackedEvents:
    """What the log had not: to be appended, and confirmed with `appended`."""

    # The question that it came of.
    ask: int
    portions: tuple[Portion, ...]
    # These events are all that there are in these.
    proven: tuple[LogSpan, ...]


@dataclass(slots=True)
class _KeptPattern:
    state: KeepingState = KeepingState.SUBSCRIBING
    # Since when it catches up.
    since_s: float = 0.0


@dataclass(slots=True)
class _Round:
    """Through all other stores."""

    # What it is about; of all units, or of those that have changed since the last one.
    patterns: tuple[str, ...]
    is_full: bool
    peers: deque[str]
    began_s: float
    # Who is asked, and where its pages and that of now are; what it said of its log at first.
    peer: str = ""
    after_unit: str = ""
    more_units: bool = False
    standing: tuple[int, int] | None = None
    lacked: deque[LogSpan] = field(default_factory=deque)
    # The present question, 0 if there is none; whether it is for a page.
    ask: int = 0
    is_listing: bool = False
    page: list[LogSpan] = field(default_factory=list)
    # What came of it, what of that is on the disk, in messages; of its credit.
    came: int = 0
    appended: int = 0
    spent_bytes: int = 0
    granted_bytes: int = 0
    has_ended: bool = False
    # Spans that came; stores that could be asked for all, and that could not.
    filled: int = 0
    gone_through: int = 0
    has_failed: bool = False


class StoreReadiness:
    def __init__(
        self,
        me: str,
        table: AdvertisementTable,
        serving: PastServing,
        requests: PastRequests,
        settings: PastSettings,
        counters: PastCounters,
        read: Callable[[ReadOrder], None],
    ) -> None:
        """`read`: of the log here; `on_read` is its answer, later."""
        self._me = me
        self._table = table
        self._serving = serving
        self._requests = requests
        self._settings = settings
        self._counters = counters
        self._read = read
        self._kept: dict[str, _KeptPattern] = {}
        self._round: _Round | None = None
        self._reads = 0
        # By other store: what its log said of itself when it was last gone through.
        self._met: dict[str, tuple[int, int]] = {}
        # When the next round is due, and how long after it the one after that.
        self._due_s = 0.0
        self._pause_s = settings.catch_up_again_s
        # Something is missing here that was not before; how much damage was known of then.
        self._is_behind = False
        self._damaged = 0
        # Events to append.
        self._lacked: list[LackedEvents] = []
        # Units of the log that have holes, as of the last round; and as of the last one that went
        # through all that others have, and found nothing: nobody is asked for everything because of
        # those again. Who gets some of it later says so.
        self.units_with_holes = 0
        self._lost = 0

    def state(self, pattern: str) -> KeepingState | None:
        kept = self._kept.get(pattern)
        return kept.state if kept is not None else None

    def states(self) -> Iterator[tuple[str, KeepingState]]:
        return ((pattern, kept.state) for pattern, kept in self._kept.items())

    @property
    def asked(self) -> str:
        """The store that is being asked; empty if none is."""
        return self._round.peer if self._round is not None else ""

    @property
    def lacked_spans(self) -> int:
        """What is known to be missing here, and had there."""
        return len(self._round.lacked) if self._round is not None else 0

    # ---- what the store is told ------------------------------------------------------------------

    def start(self) -> None:
        """Other stores may ask this one from now on."""
        self._table.keep(store_name(self._me))

    def keep(self, patterns: Sequence[str]) -> None:
        """The store is to keep these, and no others."""
        if patterns == list(self._kept):
            return
        for pattern in [pattern for pattern in self._kept if pattern not in patterns]:
            self._withdraw(pattern, self._kept.pop(pattern))
        for pattern in patterns:
            self._kept.setdefault(pattern, _KeptPattern())
        self._serving.keep(self._kept)

    def subscribed(self, pattern: str, now_s: float) -> None:
        """The subscription is in place: whatever is published from now on comes to the log."""
        kept = self._kept.get(pattern)
        if kept is not None and kept.state is KeepingState.SUBSCRIBING:
            kept.state, kept.since_s = KeepingState.CATCHING_UP, now_s
            self._fall_behind(now_s)

    def fell_behind(self, now_s: float) -> None:
        """Something is missing in the log: the store missed it, or its disk is damaged."""
        for pattern, kept in self._kept.items():
            if kept.state is KeepingState.READY:
                self._withdraw(pattern, kept)
                kept.state, kept.since_s = KeepingState.CATCHING_UP, now_s
        self._fall_behind(now_s)

    def disk_failed(self) -> None:
        """Nothing can be appended any more."""
        self._end_round_early()
        for pattern, kept in self._kept.items():
            self._withdraw(pattern, kept)
            kept.state = KeepingState.SUBSCRIBING
        self._lacked.clear()

    def _fall_behind(self, now_s: float) -> None:
        self._is_behind = True
        self._pause_s = self._settings.catch_up_again_s
        self._due_s = now_s

    def appended(self, events: LackedEvents, now_s: float) -> None:
        """They are on the disk, or cannot be put there."""
        this = self._round
        if this is None or this.ask != events.ask:
            return
        this.appended += 1
        if this.has_ended and this.appended == this.came:
            self._go_on(this, now_s)
        else:
            self._grant(this, now_s)

    def _grant(self, this: _Round, now_s: float) -> None:
        """What is on the disk makes room for more."""
        if this.appended == this.came and not this.has_ended:
            self._requests.grant(this.ask, this.spent_bytes - this.granted_bytes, now_s)
            this.granted_bytes = this.spent_bytes

    def take_lacked(self) -> list[LackedEvents]:
        """What came, for whoever has the log."""
        lacked, self._lacked = self._lacked, []
        return lacked

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        in_place = [
            p for p, kept in self._kept.items() if kept.state is not KeepingState.SUBSCRIBING
        ]
        if not in_place or self._round is not None:
            return
        others = self._others()
        is_new = any(peer not in self._met for peer in others)
        if others and (now_s >= self._due_s or (is_new and not self._is_pausing(now_s))):
            self._begin_round(in_place, others, now_s)
        elif not others:
            self._review(now_s, now_s, self._settings.first_patience_s)

    def _is_pausing(self, now_s: float) -> bool:
        """Whether a round has ended just now, which some store did not answer in."""
        return self._due_s - self._settings.catch_up_again_s <= now_s < self._due_s

    def _others(self) -> list[str]:
        return [store for store in self._table.stores() if store != self._me]

    def _begin_round(self, patterns: Iterable[str], others: Sequence[str], now_s: float) -> None:
        self._counters.catch_up_rounds += 1
        self._met = {peer: met for peer, met in self._met.items() if peer in others}
        self._round = _Round(tuple(patterns), self._is_behind, deque(others), now_s)
        self._is_behind = False
        self._compare(())

    def _end_round(self, this: _Round, now_s: float) -> None:
        self._round = None
        settings = self._settings
        if this.has_failed or this.filled:
            self._pause_s = settings.catch_up_again_s
            # What others have got meanwhile, and what could not be had.
            self._is_behind = True
        else:
            self._pause_s = min(self._pause_s * 2, settings.catch_up_pause_max_s)
            if this.is_full:
                self._lost = self.units_with_holes
            self._is_behind |= self.units_with_holes > self._lost
        self._due_s = now_s + self._pause_s
        if this.gone_through:
            # All have begun to tell of themselves by then.
            self._review(this.began_s, now_s, 2 * settings.renew_s)
        self._review(this.began_s, now_s, settings.catch_up_patience_s)

    def _review(self, began_s: float, now_s: float, patience_s: float) -> None:
        """What was to be caught up with before that has what others have, if it has waited for them
        for so long."""
        for pattern, kept in self._kept.items():
            waited_s = now_s - kept.since_s
            is_done = kept.since_s <= began_s and waited_s >= patience_s
            if is_done and kept.state is KeepingState.CATCHING_UP:
                kept.state = KeepingState.READY
                self._table.keep(pattern)

    def _withdraw(self, pattern: str, kept: _KeptPattern) -> None:
        if kept.state is KeepingState.READY:
            self._table.give_up(pattern)
            self._serving.give_up(pattern)

    def _end_round_early(self) -> None:
        this, self._round = self._round, None
        if this is not None and this.ask:
            self._requests.cancel(this.ask)

    # ---- the log here ----------------------------------------------------------------------------

    def _compare(self, spans: Iterable[LogSpan]) -> None:
        self._reads += 1
        key = ServedKey("", 0, self._reads)
        self._read(ReadOrder(key, "", PastRange(), b"", 0, compared=tuple(spans)))

    def on_read(self, key: ServedKey, portion: StorePortion, now_s: float) -> bool:
        """Whether it was read for this."""
        if key.broker_id:
            return False
        this = self._round
        if this is None or key.request != self._reads:
            return True
        if portion.error:
            this.has_failed = True
            self._end_round(this, now_s)
        elif this.peer:
            self._counters.catch_up_spans += len(portion.spans)
            this.lacked.extend(portion.spans)
            self._go_on(this, now_s)
        else:
            standing = portion.standing
            self.units_with_holes = standing.units_with_holes
            if standing.damaged > self._damaged:
                self._damaged = standing.damaged
                self.fell_behind(now_s)
                self._is_behind, this.is_full, this.began_s = False, True, now_s
            self._next_peer(this, now_s)
        return True

    # ---- the other stores ------------------------------------------------------------------------

    def _next_peer(self, this: _Round, now_s: float) -> None:
        if not this.peers:
            self._end_round(this, now_s)
            return
        this.peer = this.peers.popleft()
        this.after_unit, this.standing = "", None
        this.lacked.clear()
        self._list(this, now_s)

    def _list(self, this: _Round, now_s: float) -> None:
        life, version = (0, 0) if this.is_full else self._met.get(this.peer, (0, 0))
        this.page = []
        this.more_units = False
        wanted = ForStore(
            patterns=this.patterns, life=life, version=version, after_unit=this.after_unit
        )
        self._ask(this, wanted, now_s, is_listing=True)

    def _go_on(self, this: _Round, now_s: float) -> None:
        """Ask for what is lacked, or for the next page, or the next store."""
        if this.lacked:
            wanted = ForStore(patterns=this.patterns)
            while this.lacked and len(wanted.spans) < self._settings.spans_per_ask:
                wanted.spans.append(this.lacked.popleft())
            self._ask(this, wanted, now_s, is_listing=False)
        elif this.more_units:
            self._list(this, now_s)
        else:
            this.gone_through += 1
            if this.standing is not None:
                self._met[this.peer] = this.standing
            self._next_peer(this, now_s)

    def _ask(self, this: _Round, wanted: ForStore, now_s: float, *, is_listing: bool) -> None:
        this.is_listing = is_listing
        this.came = this.appended = this.spent_bytes = this.granted_bytes = 0
        this.has_ended = False
        credit = self._settings.catch_up_bytes
        this.ask = self._requests.ask_store(this.peer, wanted, credit, now_s)

    def on_news(self, news: PastNews, now_s: float) -> bool:
        """Whether it was about a question of the store's."""
        this = self._round
        if this is None or news.ask != this.ask:
            return False
        match news:
            case PastArrived():
                assert news.about_log is not None
                if this.is_listing:
                    self._note_page(this, news.about_log)
                else:
                    self._note_events(this, news, news.about_log, now_s)
            case PastEnded():
                this.has_ended = True
                self._on_end(this, news, now_s)
            case _:
                assert_never(news)
        return True

    def _note_page(self, this: _Round, about: AboutLog) -> None:
        this.page += [
            span
            for span in about.spans
            if is_sound_unit(span.unit) and is_of_patterns(span.unit, this.patterns)
        ]
        if this.standing is None:
            this.standing = about.life, about.version
        this.more_units = about.more_units and bool(about.spans)
        if about.spans:
            this.after_unit = about.spans[-1].unit

    def _note_events(
        self, this: _Round, arrived: PastArrived, about: AboutLog, now_s: float
    ) -> None:
        this.spent_bytes = arrived.spent_bytes
        if about.spans:
            this.came += 1
            this.filled += 1
            self._counters.catch_up_events += sum(map(events_in, arrived.portions))
            self._lacked.append(LackedEvents(this.ask, arrived.portions, tuple(about.spans)))
        self._grant(this, now_s)

    def _on_end(self, this: _Round, ended: PastEnded, now_s: float) -> None:
        if ended.error != PastError.PAST_ERROR_UNSPECIFIED:
            # Others may have it; this one is asked again in another round.
            self._counters.catch_up_failures += 1
            this.has_failed = True
            self._met.pop(this.peer, None)
            self._next_peer(this, now_s)
        elif this.is_listing:
            self._compare(this.page)
        elif this.appended == this.came:
            self._go_on(this, now_s)
