"""When a store may advertise what it keeps: once it is subscribed, and has what it lacked.

    assign --> SUBSCRIBING --in place--> CATCHING_UP --all there, on its disk--> READY: advertised
                                           ^    |  ^                              |
                                           |    '--' cannot be had at present     |
                                           '---------- fell behind: withdrawn ----'

Who advertises first and subscribes then misses what is published in between; a new replica that
does not ask its peers lacks all that was before it. So a store asks the nearest other store for the
past of a unit, from where its own log ends, after its subscription is in place. If no other store
becomes known for a while it is the first. What comes is appended by whoever has the log, and
confirmed (`appended`); no more is asked for than has been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from broker_agent.core.stores.past_requests import PastArrived, PastEnded, PastNews, PastRequests
from broker_agent.core.stores.past_serving import PastServing
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import PastError, PastRange
from overlay.forwarding.streams.portions import Portion
from overlay.stores.advertisement_table import AdvertisementTable
from overlay.stores.past_settings import PastSettings


class UnitState(Enum):
    SUBSCRIBING = "subscribing"
    CATCHING_UP = "catching up"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class LackedEvents:
    """What the store had not: to be appended, and confirmed with `appended`."""

    unit: str
    # The question that it came of.
    ask: int
    portions: tuple[Portion, ...]
    # Something before it is kept by nobody any more.
    is_lossy: bool


@dataclass(slots=True)
class _KeptUnit:
    state: UnitState = UnitState.SUBSCRIBING
    # The last question to its peers, and whether it is open.
    ask: int = 0
    is_asking: bool = False
    # What came, what of it is appended, in messages; what it took of the credit, what was granted
    # again.
    came: int = 0
    appended: int = 0
    spent_bytes: int = 0
    granted_bytes: int = 0
    has_all: bool = False
    since_s: float = 0.0
    retry_s: float | None = None


class StoreReadiness:
    def __init__(
        self,
        me: str,
        table: AdvertisementTable,
        serving: PastServing,
        requests: PastRequests,
        settings: PastSettings,
        lacked: Callable[[str], PastRange],
    ) -> None:
        """`lacked`: of a unit, what is beyond all that the log has."""
        self._me = me
        self._table = table
        self._serving = serving
        self._requests = requests
        self._settings = settings
        self._lacked = lacked
        self._units: dict[str, _KeptUnit] = {}
        self._asks: dict[int, str] = {}
        # Units to subscribe to, events to append: taken by whoever has client and log.
        self.to_subscribe: list[str] = []
        self.to_append: list[LackedEvents] = []

    def state(self, unit: str) -> UnitState | None:
        kept = self._units.get(unit)
        return kept.state if kept is not None else None

    def units(self) -> Iterator[tuple[str, UnitState]]:
        return ((unit, kept.state) for unit, kept in self._units.items())

    # ---- what the store is told ------------------------------------------------------------------

    def assign(self, unit: str) -> None:
        """The store is to keep it."""
        if unit not in self._units:
            self._units[unit] = _KeptUnit()
            self.to_subscribe.append(unit)

    def release(self, unit: str) -> None:
        """It keeps it no more; others are told before the subscription may go."""
        kept = self._units.pop(unit, None)
        if kept is not None:
            self._withdraw(unit, kept)

    def subscribed(self, unit: str, now_s: float) -> None:
        """The subscription is in place: whatever is published from now on comes to the log."""
        kept = self._units.get(unit)
        if kept is not None and kept.state is UnitState.SUBSCRIBING:
            kept.since_s = now_s
            self._catch_up(unit, kept, now_s)

    def fell_behind(self, unit: str, now_s: float) -> None:
        """Something is missing in the log: the store missed it, or its disk is damaged."""
        kept = self._units.get(unit)
        if kept is not None and kept.state is not UnitState.SUBSCRIBING:
            self._withdraw(unit, kept)
            kept.since_s = now_s
            self._catch_up(unit, kept, now_s)

    def appended(self, events: LackedEvents, now_s: float) -> None:
        """They are on the disk."""
        kept = self._units.get(events.unit)
        if kept is None or kept.ask != events.ask:
            return
        kept.appended += 1
        if kept.appended == kept.came and kept.is_asking:
            self._requests.grant(kept.ask, kept.spent_bytes - kept.granted_bytes, now_s)
            kept.granted_bytes = kept.spent_bytes
        self._review(events.unit, kept)

    def tick(self, now_s: float) -> None:
        for unit, kept in self._units.items():
            if kept.retry_s is not None and now_s >= kept.retry_s:
                self._catch_up(unit, kept, now_s)

    # ---- what peers answer -----------------------------------------------------------------------

    def on_news(self, news: PastNews, now_s: float) -> bool:
        """Whether it was about a question of the store's."""
        unit = self._asks.get(news.ask)
        if unit is None:
            return False
        kept = self._units[unit]
        match news:
            case PastArrived():
                kept.came += 1
                kept.spent_bytes = news.spent_bytes
                events = LackedEvents(unit, news.ask, news.portions, news.is_lossy)
                self.to_append.append(events)
            case PastEnded():
                del self._asks[news.ask]
                kept.is_asking = False
                self._on_end(unit, kept, news, now_s)
            case _:
                assert_never(news)
        return True

    def _on_end(self, unit: str, kept: _KeptUnit, ended: PastEnded, now_s: float) -> None:
        error = ended.error
        waited = now_s - kept.since_s >= self._settings.first_patience_s
        is_first = error == PastError.PAST_ERROR_NOT_STORED and waited
        # If the places lie in the future, others have nothing that this one lacks.
        if is_first or error in (
            PastError.PAST_ERROR_UNSPECIFIED,
            PastError.PAST_ERROR_FUTURE,
        ):
            kept.has_all = True
            self._review(unit, kept)
        else:
            # Those that advertise it serve it meanwhile.
            kept.retry_s = now_s + self._settings.catch_up_again_s

    # ---- changes of state ------------------------------------------------------------------------

    def _catch_up(self, unit: str, kept: _KeptUnit, now_s: float) -> None:
        kept.state, kept.retry_s, kept.has_all = UnitState.CATCHING_UP, None, False
        kept.came = kept.appended = kept.spent_bytes = kept.granted_bytes = 0
        lacked = self._lacked(unit)
        lacked.with_loss = True
        credit = self._settings.catch_up_bytes
        kept.ask = self._requests.ask(Filter.parse(unit), lacked, credit, now_s, never=(self._me,))
        kept.is_asking = True
        self._asks[kept.ask] = unit

    def _review(self, unit: str, kept: _KeptUnit) -> None:
        if kept.has_all and kept.appended == kept.came:
            kept.state = UnitState.READY
            self._table.keep(unit)

    def _withdraw(self, unit: str, kept: _KeptUnit) -> None:
        if kept.is_asking:
            self._requests.cancel(kept.ask)
            del self._asks[kept.ask]
            kept.is_asking = False
        if kept.state is UnitState.READY:
            self._table.give_up(unit)
            self._serving.give_up(unit)
