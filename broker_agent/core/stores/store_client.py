"""A store: a broker that keeps events of some topics on its disk, as a client of its own.

    routing --deliveries--> session --what is new--> rows --driver--> log, synced
                                                                        |
       whoever stamps: "has it" <--marks of what was in the rows--------'

What other stores gave because the log lacks it (`readiness.py`) goes to the log between that.

It subscribes with the places that its log has come to, as a client that has come back. Its driver
takes rows when the disk is ready for more; what waits until then is in the session, within its
bounds, and is missing in the log where that is too little. What it keeps may change while it runs
(`assign`): what is new it subscribes to, and what goes it no longer hears of; what its log has of
that stays there as long as it is retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId, StoreNow
from broker_agent.core.base.store_units import is_side_unit
from broker_agent.core.routing.routing import Routing
from broker_agent.core.sessions.session import OWN_SESSION, Session
from broker_agent.core.stores.filling import rows_that_fill
from broker_agent.core.stores.intake import Had, StoreIntake
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendStored,
    AppendToLog,
    LogOutcome,
    UnitExtent,
)
from broker_agent.core.stores.readiness import LackedEvents
from broker_agent.core.stores.store_options import StoreOptions
from broker_agent.core.stores.store_telling import StoreTelling
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import Cursor, SlowPolicy
from dynatops.v1.overlay_pb2 import StoreMark

_REQUEST = 1
# What the log has refused for want of room is offered again after this.
_AGAIN_S = 1.0
_FOR_GOOD = frozenset({AppendRefusal.UNREADABLE, AppendRefusal.TOO_MANY_UNITS})


class StoreClient:
    def __init__(self, context: BrokerContext, routing: Routing, options: StoreOptions) -> None:
        self._routing = routing
        self._outbox = context.outbox
        self._counters = context.counters
        self._options = options
        self._filters = tuple(options.filters)
        # Requests that are not confirmed, and what each is about.
        self._open: dict[int, tuple[str, ...]] = {}
        self._request = 0
        # Of topics that are kept by their names, how many events the log has.
        self._events: dict[str, int] = {}
        self._intake = StoreIntake(
            routing.stamping, options.extents, options.units_max, context.counters
        )
        self._telling = StoreTelling(context, routing.stamping)
        self.session = Session(
            OWN_SESSION,
            OWN_SESSION,
            SlowPolicy.SLOW_POLICY_DROP_NEWEST,
            context.settings,
            connection=ConnectionId(OWN_SESSION),
        )
        self.session.speaks_bundles = True
        # What the log has been given, and what is had once it is there.
        self._given: dict[int, tuple[AppendToLog, Sequence[Had]]] = {}
        self._numbers = 0
        # What came from other stores, for the log to take; and by number, what it was given of
        # that.
        self._lacked: deque[LackedEvents] = deque()
        self._filling: dict[int, LackedEvents] = {}
        self._is_filling_next = True
        self._done: list[LackedEvents] = []
        # What was refused, and is offered again then.
        self._refused: dict[int, float] = {}
        self.failure = ""

    @property
    def filters(self) -> Sequence[Filter]:
        return self._filters

    @property
    def in_place(self) -> list[str]:
        """Patterns that nothing is missed of that is published now."""
        if self.failure:
            return []
        waiting = {pattern for patterns in self._open.values() for pattern in patterns}
        return [pattern for pattern in self.patterns if pattern not in waiting]

    @property
    def events(self) -> Mapping[str, int]:
        """By topic, of those kept by their names: how many are in the log, or have been."""
        return self._events

    @property
    def patterns(self) -> list[str]:
        return list(dict.fromkeys(wanted.pattern for wanted in self._filters))

    @property
    def unready(self) -> str:
        """Why it may lack what is published now; empty if it does not."""
        if self.failure:
            return f"the disk of the store here has failed: {self.failure}"
        is_first = _REQUEST in self._open and not self._intake.is_in_place
        return "the store here has not been subscribed yet" if is_first else ""

    def start(self, now_s: float) -> None:
        """Read on from where the log stands; of what is not there, all that is retained. In a tree
        nobody can say from where on that is all: there a store that has nothing begins now."""
        self._request = _REQUEST
        if not self._filters:
            return
        self._begin_with(self._filters)
        stamping, extents = self._routing.stamping, self._options.extents
        reached = {unit: e.upto for unit, e in extents.items() if not is_side_unit(unit)}
        cursors: list[Cursor] | None = stamping.cursors_of(reached)
        if stamping.shares_numbers:
            cursors = cursors if reached else None
            if reached:
                self._intake.goes_on_with(_REQUEST)
        self._routing.subscriptions.subscribe(
            self.session, _REQUEST, self._filters, [], cursors, now_s
        )

    def assign(self, patterns: tuple[str, ...], now_s: float) -> None:
        """Keep these from now on, and nothing else. What is new is read on from where the log
        stands; of what it has not, all that is retained."""
        subscriptions, wanted = self._routing.subscriptions, set(patterns)
        gone = [each for each in self._filters if each.pattern not in wanted]
        kept = {each.pattern for each in self._filters}
        added = [Filter.parse(pattern) for pattern in patterns if pattern not in kept]
        self._filters = (*(each for each in self._filters if each.pattern in wanted), *added)
        for each in gone:
            self._events.pop(each.pattern, None)
        for number, waiting in list(self._open.items()):
            self._open[number] = tuple(pattern for pattern in waiting if pattern in wanted)
        if self.failure:
            return
        if gone:
            subscriptions.unsubscribe(self.session, gone, now_s)
        if added:
            self._request += 1
            self._begin_with(added)
            reached = self._intake.reached(each.pattern for each in added)
            cursors = self._routing.stamping.cursors_of(reached)
            subscriptions.subscribe(self.session, self._request, added, [], cursors, now_s)

    def _begin_with(self, filters: Sequence[Filter]) -> None:
        self._open[self._request] = tuple(each.pattern for each in filters)
        for each in filters:
            if not each.is_wildcard:
                self._events[each.pattern] = _events_of(self._options.extents.get(each.pattern))

    def settle(self) -> None:
        """After an input: is there anything for the log?"""
        if self._outbox.touched.pop(self.session, True) is None:
            self._outbox.do(StoreNow())

    def has_come_to(self, topic: str, term: int, seq: int) -> bool:
        """Whether all of the topic up to this stamp that is kept here is on the disk; of
        `$streams`, all of the stream."""
        stamping, stamp = self._routing.stamping, (term, seq)
        unit = stamping.unit_of(topic, term)
        rows = (row for append, _ in self._given.values() for row in append.rows)
        if any(row.unit == unit and row.after < stamp for row in rows):
            return False
        reached = self._intake.stamp_of(unit)
        if reached is not None and reached >= stamp:
            return True
        # What does not concern the store is told to it now and then: with nothing on its way to the
        # disk, it has all that this broker has.
        is_idle = not (self.session.has_output or self._given)
        return is_idle and self._intake.is_in_place and stamping.stream_place(term) >= seq

    def take_missed(self) -> bool:
        """Whether the store was told since the last call that it missed something."""
        return self._intake.take_missed()

    def fill(self, lacked: LackedEvents) -> None:
        """Another store gave that."""
        self._lacked.append(lacked)
        self._outbox.do(StoreNow())

    def take(self, bytes_max: int, now_us: int, now_s: float) -> AppendToLog | None:
        """Rows for the log, about so much of them; None if there is nothing, or it is over."""
        again = next((n for n, due_s in self._refused.items() if due_s <= now_s), None)
        if again is not None:
            del self._refused[again]
            return self._given[again][0]
        # What was refused comes first: the log is to have things in their order.
        if self._refused or self.failure:
            return None
        # In turns: neither waits for the other to end.
        self._is_filling_next = not self._is_filling_next
        if not self._is_filling_next:
            return self._take_news(bytes_max, now_us, now_s) or self._take_lacked(now_us)
        return self._take_lacked(now_us) or self._take_news(bytes_max, now_us, now_s)

    def _take_lacked(self, now_us: int) -> AppendToLog | None:
        if not self._lacked:
            return None
        lacked = self._lacked.popleft()
        rows = rows_that_fill(lacked.portions, lacked.proven, self.patterns, now_us)
        self._numbers += 1
        append = AppendToLog(self._numbers, rows, fills=True)
        self._given[self._numbers] = append, ()
        self._filling[self._numbers] = lacked
        return append

    def _take_news(self, bytes_max: int, now_us: int, now_s: float) -> AppendToLog | None:
        while self.session.has_output:
            contents = self.session.take_output(bytes_max, now_s)
            rows, had = self._intake.rows_of(contents, now_us)
            for number in self._intake.take_confirmed():
                self._open.pop(number, None)
            if rows:
                self._numbers += 1
                append = AppendToLog(self._numbers, rows)
                self._given[self._numbers] = append, had
                return append
        return None

    def on_outcome(self, outcome: LogOutcome, now_s: float) -> list[StoreMark]:
        """What is to be told to those who stamp."""
        if isinstance(outcome, AppendStored):
            given = self._given.pop(outcome.number, None)
            if given is None:
                return []
            append, had = given
            if append.fills:
                return self._filled(append, outcome, now_s)
            self._counters.stored_events += sum(row.events for row in append.rows)
            for row in append.rows:
                if row.topic in self._events:
                    self._events[row.topic] += row.events
            return self._telling.news(had, now_s)
        if outcome.refusal is AppendRefusal.FAILED:
            self._fail(outcome.reason, now_s)
        elif outcome.number in self._filling and outcome.refusal in _FOR_GOOD:
            # It stays a hole.
            self._counters.store_fills_refused += 1
            del self._given[outcome.number]
            self._done.append(self._filling.pop(outcome.number))
        elif outcome.number in self._given:
            self._counters.store_refusals += 1
            self._refused[outcome.number] = now_s + _AGAIN_S
        return []

    def _filled(self, append: AppendToLog, stored: AppendStored, now_s: float) -> list[StoreMark]:
        self._done.append(self._filling.pop(append.number))
        marks: list[StoreMark] = []
        for unit, extent in stored.extents.items():
            mark = self._intake.filled(unit, extent)
            if mark is not None:
                topics = {row.topic: None for row in append.rows if row.unit == unit and row.events}
                marks += self._telling.widened(unit, topics, mark, now_s)
        return marks

    def take_filled(self) -> list[LackedEvents]:
        """What other stores gave that is on the disk now, or never will be."""
        done, self._done = self._done, []
        return done

    def _fail(self, reason: str, now_s: float) -> None:
        """Nothing more is stored in this life."""
        if not self.failure:
            self.failure = reason
            self._given.clear()
            self._lacked.clear()
            self._filling.clear()
            self._refused.clear()
            self._routing.subscriptions.end(self.session, now_s)

    def tick(self, now_s: float) -> list[StoreMark]:
        """What is to be told again."""
        if any(due_s <= now_s for due_s in self._refused.values()):
            self._outbox.do(StoreNow())
        return self._telling.due(now_s)


def _events_of(extent: UnitExtent | None) -> int:
    """About: of a history of several terms, only the last is counted."""
    if extent is None:
        return 0
    (term, seq), (since_term, since_seq) = extent.upto, extent.since
    return seq - since_seq if term == since_term else seq
