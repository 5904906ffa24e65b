"""What happens at this broker, for the lake: noted here until the driver takes it.

Sessions and subscriptions become rows, each at an instant of its own, so that their order is known
from their times alone; publications and requests are counted by topic. What is noted is bounded:
past it, rows are dropped and counted. Nobody takes it unless the broker writes to a lake; then
nothing is noted.

Topics of the system's own are in no row and no count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_agent.core.base.clock import SteadyClock
from broker_agent.core.sessions.session import Session
from dynatops.lake.fields import LEAVE, SUBSCRIBE, UNSUBSCRIBE
from overlay.history.reigns import TopicTally


class SessionRow(NamedTuple):
    # The core's time, in microseconds.
    at_us: int
    user_id: str
    op: str
    # Latitude and longitude, if the user said so.
    place: tuple[float, float] | None


class SubscriptionRow(NamedTuple):
    at_us: int
    user_id: str
    # Or a pattern of topics.
    topic: str
    op: str


@dataclass(slots=True)
class LogbookPage:
    """What was noted in a window of time."""

    since_us: int
    until_us: int = 0
    sessions: list[SessionRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    # How often the past of a topic was asked for by sessions here.
    requests: dict[str, int] = field(default_factory=dict)
    # What was stamped here, as rendezvous point; the broker adds it.
    publications: Mapping[str, TopicTally] = field(default_factory=dict)
    # Rows that there was no room for.
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.sessions) + len(self.subscriptions) + len(self.requests)


class Logbook:
    def __init__(self, clock: SteadyClock, rows_max: int) -> None:
        """With room for no row it notes nothing."""
        self._clock = clock
        self._rows_max = rows_max
        self._page = LogbookPage(0)
        self._last_us = 0
        # Of sessions whose clients said where they are.
        self._places: dict[Session, tuple[float, float]] = {}

    def begin(self, now_s: float) -> None:
        """The first window begins when this is first said."""
        if not self._page.since_us:
            self._page.since_us = _us(now_s)

    def take_page(self, reading_s: float) -> LogbookPage:
        """What was noted since the last call."""
        page, now_us = self._page, _us(self._clock.at(reading_s))
        page.until_us = now_us
        self._page = LogbookPage(now_us)
        return page

    def end(self, sessions: Iterable[Session], reading_s: float) -> LogbookPage:
        """The broker is gone, and with it whoever was left: the last page."""
        now_s = self._clock.at(reading_s)
        for session in sessions:
            self.unsubscribed(session, session.filters, now_s)
            self.session(session, LEAVE, now_s)
        return self.take_page(reading_s)

    def place(self, session: Session, place: tuple[float, float] | None) -> None:
        """Where the session's client says it is; None: it does not say."""
        if place is None:
            self._places.pop(session, None)
        elif self._rows_max:
            self._places[session] = place

    def session(self, session: Session, op: str, now_s: float) -> None:
        if self._has_room():
            place = self._places.get(session)
            row = SessionRow(self._instant(now_s), session.client_id, op, place)
            self._page.sessions.append(row)

    def subscribed(self, session: Session, topic: str, now_s: float) -> None:
        self._subscription(session, topic, SUBSCRIBE, now_s)

    def unsubscribed(self, session: Session, topics: Iterable[str], now_s: float) -> None:
        for topic in topics:
            self._subscription(session, topic, UNSUBSCRIBE, now_s)

    def _subscription(self, session: Session, topic: str, op: str, now_s: float) -> None:
        if self._has_room():
            row = SubscriptionRow(self._instant(now_s), session.client_id, topic, op)
            self._page.subscriptions.append(row)

    def requested(self, topic: str) -> None:
        """A session asks for the topic's past."""
        requests = self._page.requests
        if topic in requests:
            requests[topic] += 1
        elif self._has_room():
            requests[topic] = 1

    def _has_room(self) -> bool:
        if len(self._page) < self._rows_max:
            return True
        # Without any room, nobody wants to know.
        self._page.dropped += bool(self._rows_max)
        return False

    def _instant(self, now_s: float) -> int:
        """Now, or as soon after it as no other row is."""
        self._last_us = max(_us(now_s), self._last_us + 1)
        return self._last_us


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
