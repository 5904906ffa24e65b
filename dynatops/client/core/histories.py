"""What this client asks of the past, at whichever broker it is.

    open --History--> broker --HistoryPart, ..., HistoryEnd--> PastPart, ..., PastEnd
                      ^                                           |
                      '--HistoryCredit-- taken by the application-'

A history is of one connection. When that is lost it is asked for again at the next broker, from
where it has come to: nothing comes twice, and nothing is left out. Not more than a window of bytes
is on its way or waits here to be taken. One that has ended stays until it is closed, and may be
asked for again from there: what has been stored since comes then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from dynatops.client.core.past_reading import TOPICS_MAX, PastReading, Places
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.kit.bundles import Bundle, is_whole
from dynatops.v1.client_pb2 import (
    ClientMessage,
    Cursor,
    Filter,
    History,
    HistoryCredit,
    HistoryEnd,
    HistoryPart,
    Welcome,
)
from dynatops.v1.overlay_pb2 import PastError

# Of each history: what is on its way, and what the application has not taken.
HISTORY_WINDOW_BYTES = 1 << 20
# More is asked for once it is so much.
_CREDIT_STEP_BYTES = HISTORY_WINDOW_BYTES // 4

_NOT_OFFERED = "the broker {} is of a version that has no histories for clients"
_TOO_MANY = (
    f"the connection was lost, and the history has more than {TOPICS_MAX:,} topics: nobody knows "
    "how far each was read; ask for parts of it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastWish:
    """What is wanted of the past of topics."""

    pattern: str
    where: str = ""
    # What is beyond these places; of other topics all.
    after: Places = field(default_factory=dict)
    # Microseconds since 1970; 0: from the beginning.
    since_us: int = 0
    # Of each topic the newest so many; 0: all.
    last: int = 0
    # If what follows the places is not kept any more: what is left.
    with_loss: bool = False


@dataclass(frozen=True, slots=True)
class PastPart:
    history: int
    events: Sequence[Arrived | ArrivedBundle]
    # Something before it is not kept any more.
    is_lossy: bool
    # What it counts as until it is taken.
    nbytes: int


@dataclass(frozen=True, slots=True)
class PastEnd:
    """That was all, as of now; or why there is no more."""

    history: int
    error: PastError.ValueType
    message: str
    # It went on from another connection: what is not there now may be there in a moment.
    went_on: bool = False


@dataclass(slots=True)
class _HistoryUnderWay:
    wish: PastWish
    reading: PastReading
    # Its number on this connection; 0 while it is not asked for.
    request: int = 0
    # Whether it is to be asked for, as soon as there is a broker.
    is_wanted: bool = True
    times_asked: int = 0
    connections: int = 0
    upto: Sequence[Cursor] = ()
    # Of the present request; and, of all, what the application has not taken.
    granted: int = 0
    spent: int = 0
    waiting: int = 0

    @property
    def allowed(self) -> int:
        """What the present request may have spent in all."""
        return self.spent + max(HISTORY_WINDOW_BYTES - self.waiting, 0)


class Histories:
    def __init__(self) -> None:
        self._open: dict[int, _HistoryUnderWay] = {}
        # By their numbers on this connection.
        self._requests: dict[int, int] = {}
        self._numbers = 0
        self._is_connected = False
        self._unsaid: list[ClientMessage] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_awaited(self) -> bool:
        """Whether anything may come."""
        return any(history.is_wanted or history.request for history in self._open.values())

    @property
    def has_output(self) -> bool:
        return bool(self._unsaid)

    def take_unsaid(self) -> list[ClientMessage]:
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    # ---- the connection -------------------------------------------------------------------------

    def disconnected(self) -> None:
        self._is_connected = False
        self._unsaid.clear()
        self._requests.clear()
        for history in self._open.values():
            if history.request:
                history.request, history.is_wanted = 0, True

    def greeted(self, welcome: Welcome) -> Iterator[PastEnd]:
        self._is_connected = True
        for number, history in list(self._open.items()):
            if not history.is_wanted:
                continue
            if not welcome.histories:
                error = PastError.PAST_ERROR_UNAVAILABLE
                yield self._end(number, history, error, _NOT_OFFERED.format(welcome.broker_id))
            elif history.times_asked and history.reading.has_too_many_topics:
                yield self._end(number, history, PastError.PAST_ERROR_UNAVAILABLE, _TOO_MANY)
            else:
                history.connections += 1
                self._ask(history, number)

    # ---- what the application wants -------------------------------------------------------------

    def open(
        self, wish: PastWish, reading: PastReading | None = None, upto: Sequence[Cursor] = ()
    ) -> int:
        """Its number. `reading`: of several histories together. `upto`: see History.upto."""
        self._numbers += 1
        history = _HistoryUnderWay(wish, reading or PastReading(wish.after), upto=upto)
        if reading is not None and wish.after:
            reading.begin(wish.after)
        number = self._numbers
        self._open[number] = history
        if self._is_connected:
            history.connections = 1
            self._ask(history, number)
        return number

    def ask_again(
        self,
        number: int,
        upto: Sequence[Cursor] = (),
        beyond: Sequence[Cursor] = (),
        *,
        whole: bool = False,
    ) -> None:
        """One that has ended: what is beyond what has come. `beyond`: what was wanted up to these
        places has come, and from there on everything is wanted. `whole`: not only the newest."""
        history = self._open[number]
        if whole:
            history.wish = replace(history.wish, last=0)
        if beyond:
            history.wish = replace(history.wish, since_us=0, last=0)
            history.reading.begin({c.topic: {s.term: s.seq for s in c.seen} for c in beyond})
        history.upto, history.is_wanted = upto, True
        if self._is_connected:
            self._ask(history, number)

    def taken(self, number: int, nbytes: int) -> None:
        """The application has taken a part: as much may come."""
        history = self._open.get(number)
        if history is None:
            return
        history.waiting -= nbytes
        more = history.allowed - history.granted
        if history.request and more >= _CREDIT_STEP_BYTES:
            history.granted += more
            credit = HistoryCredit(request=history.request, credit_bytes=more)
            self._unsaid.append(ClientMessage(history_credit=credit))

    def close(self, number: int) -> None:
        history = self._open.pop(number, None)
        if history is not None and history.request:
            del self._requests[history.request]
            cancel = HistoryCredit(request=history.request, cancel=True)
            self._unsaid.append(ClientMessage(history_credit=cancel))

    def _ask(self, history: _HistoryUnderWay, number: int) -> None:
        self._numbers += 1
        history.request, history.is_wanted = self._numbers, False
        history.times_asked += 1
        history.spent = 0
        history.granted = history.allowed
        self._requests[history.request] = number
        wish = history.wish
        message = History(
            request=history.request,
            filter=Filter(pattern=wish.pattern, where=wish.where),
            after=history.reading.cursors(),
            since_us=wish.since_us,
            last=wish.last,
            with_loss=wish.with_loss,
            credit_bytes=history.granted,
            upto=history.upto,
        )
        self._unsaid.append(ClientMessage(history=message))

    # ---- what brokers say -----------------------------------------------------------------------

    def on_part(self, part: HistoryPart) -> Iterator[PastPart]:
        number = self._requests.get(part.request)
        if number is None:
            # It was closed meanwhile.
            return
        history = self._open[number]
        nbytes = part.spent_bytes - history.spent
        history.spent = part.spent_bytes
        history.waiting += nbytes
        events: list[Arrived | ArrivedBundle] = []
        for run in part.events.runs:
            events += history.reading.admit(run)
        for bundle in part.events.bundles:
            if not is_whole(bundle) or not bundle.terms:
                raise DecodeError("a bundle whose columns are not equally long")
            events += history.reading.admit(Bundle.from_wire(bundle))
        yield PastPart(number, events, part.lossy, nbytes)

    def on_end(self, end: HistoryEnd) -> Iterator[PastEnd]:
        number = self._requests.get(end.request)
        if number is not None:
            yield self._end(number, self._open[number], end.error, end.message)

    def _end(
        self, number: int, history: _HistoryUnderWay, error: PastError.ValueType, message: str
    ) -> PastEnd:
        self._requests.pop(history.request, None)
        history.request, history.is_wanted = 0, False
        return PastEnd(number, error, message, history.connections > 1)
