"""Who is inside, and how fast: what the clients of each token use, against the token's limits.

Limits of rates are kept by not reading from a publisher until its token's bucket allows more. What
its clients had sent before they felt that is accepted, up to a bound of waiting; past it, it is
refused as too fast. All limits are those of one broker, and the clients of a token share them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

from broker_agent.core.access import NOBODY, Access, Grant, Limits, Refusal, RefusalReason
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.effects import ConnectionId
from broker_agent.core.sessions import Session
from broker_agent.core.settings import CoreSettings
from broker_agent.core.throttle import Bucket
from broker_agent.core.validation import Problem
from dynatops.filters import Filter
from dynatops.v1.client_pb2 import ErrorCode, Hello, TopicProblem
from dynatops.v1.overlay_pb2 import Publication


class _Pace:
    """How fast the clients of one token publish together."""

    __slots__ = ("_bytes", "_events")

    def __init__(self, limits: Limits) -> None:
        self._events = Bucket(limits.publish_events_per_s)
        self._bytes = Bucket(limits.publish_bytes_per_s)

    def take(self, publication: Publication, now_s: float) -> None:
        self._events.take(publication.count, now_s)
        self._bytes.take(len(publication.events), now_s)

    def wait_s(self, now_s: float) -> float:
        return max(self._events.wait_s(now_s), self._bytes.wait_s(now_s))


class Gate:
    def __init__(self, access: Access, settings: CoreSettings, counters: BrokerCounters) -> None:
        self.access = access
        self._settings = settings
        self._counters = counters
        # By names of tokens.
        self._sessions: Counter[str] = Counter()
        self._paces: dict[str, _Pace] = {}
        # Connections not read from, until when; and the same by time, some of it out of date.
        self._waiting: dict[ConnectionId, float] = {}
        self._due: list[tuple[float, ConnectionId]] = []

    # ---- coming and going -----------------------------------------------------------------------

    def admit(self, hello: Hello, present: Session | None) -> Grant | Refusal:
        """What the client may do; if that is anything, `release` ends it.

        `present` is the session that its id stands for now, if there is one: nobody gets another's.
        """
        outcome = self.access.authenticate(hello.token, hello.client_id)
        if isinstance(outcome, Grant) and present is not None and present.owner != outcome.name:
            message = f"the client id {hello.client_id!r} is that of another token's client"
            outcome = Refusal(RefusalReason.CLIENT_ID_TAKEN, message)
        if isinstance(outcome, Grant) and outcome.rules is not None and present is None:
            limit = outcome.rules.limits.sessions
            if limit is not None and self._sessions[outcome.name] >= limit:
                message = (
                    f"the token {outcome.name!r} has {limit:,} sessions on this broker already"
                )
                outcome = Refusal(RefusalReason.TOO_MANY_SESSIONS, message)
        if isinstance(outcome, Refusal):
            self._counters.authentication_refused += 1
        return outcome

    def let_in(self, session: Session, grant: Grant) -> None:
        """The session has come, or come back."""
        self.release(session)
        session.grant, session.owner = grant, grant.name
        self._sessions[grant.name] += 1

    def release(self, session: Session) -> None:
        """The session has gone for good."""
        if session.grant.rules is not NOBODY:
            self._forget(session.grant)
            session.grant = Grant(self._settings)

    def disconnected(self, connection: ConnectionId) -> None:
        self._waiting.pop(connection, None)

    def _forget(self, grant: Grant) -> None:
        self._sessions[grant.name] -= 1
        if not self._sessions[grant.name]:
            del self._sessions[grant.name]

    def replace(
        self, access: Access, sessions: Iterable[Session]
    ) -> Iterator[tuple[Session, Refusal]]:
        """Let other rules hold from now on: which sessions must go, and why."""
        self.access = access
        self._paces.clear()
        for session in sessions:
            if session.closing or session.grant.rules is NOBODY:
                continue
            renewed = access.renew(session.grant, session.client_id)
            if renewed is None:
                message = "this broker does not know the client's token any more"
                yield session, Refusal(RefusalReason.TOKEN_UNKNOWN, message)
                continue
            self._forget(session.grant)
            session.grant = renewed
            self._sessions[renewed.name] += 1
            if not all(renewed.may_subscribe(pattern) for pattern in session.filters):
                message = (
                    f"the token {renewed.name!r} does not allow all its subscriptions any more"
                )
                yield session, Refusal(RefusalReason.RULES_CHANGED, message)

    # ---- what is allowed ------------------------------------------------------------------------

    def sort_filters(
        self, grant: Grant, filters: Iterable[Filter]
    ) -> tuple[list[Filter], list[TopicProblem]]:
        """Which of these the client may subscribe with, and what is wrong with the others."""
        allowed: list[Filter] = []
        problems: list[TopicProblem] = []
        for wanted in filters:
            pattern = wanted.pattern
            if grant.may_subscribe(pattern):
                allowed.append(wanted)
                continue
            message = f"the token {grant.name!r} does not allow subscribing to {pattern!r}"
            code = ErrorCode.ERROR_CODE_NOT_ALLOWED
            problems.append(TopicProblem(topic=pattern, code=code, message=message))
        self._counters.subscribe_not_allowed += len(problems)
        return allowed, problems

    def forbids(self, grant: Grant, publication: Publication) -> Problem | None:
        """Why the client may not publish this; None if it may.

        Nothing of it reaches the network, not even its numbers: they might be another's. The
        client knows from the refusal that they are settled.
        """
        if grant.may_publish(publication.topic):
            return None
        self._counters.publish_not_allowed += 1
        message = f"the token {grant.name!r} does not allow publishing on it"
        return Problem(ErrorCode.ERROR_CODE_NOT_ALLOWED, message, uses_up_numbers=False)

    # ---- how fast -------------------------------------------------------------------------------

    def overtaxed(self, grant: Grant, publication: Publication, now_s: float) -> Problem | None:
        """Why this cannot wait for its turn; None if it can, and then it counts."""
        pace = self._pace_of(grant)
        if pace is None:
            return None
        wait_s = pace.wait_s(now_s)
        if wait_s <= self._settings.throttle_wait_max_s:
            pace.take(publication, now_s)
            return None
        self._counters.publish_too_fast += 1
        message = f"the token {grant.name!r} has used up its rate for {wait_s:.0f} s to come"
        return Problem(ErrorCode.ERROR_CODE_TOO_FAST, message, uses_up_numbers=True)

    def _pace_of(self, grant: Grant) -> _Pace | None:
        if grant.rules is None or not grant.rules.limits.has_rate:
            return None
        pace = self._paces.get(grant.name)
        if pace is None:
            pace = self._paces[grant.name] = _Pace(grant.rules.limits)
        return pace

    def must_wait(self, session: Session, now_s: float) -> bool:
        """Whether to stop reading from the session now, for its token's rate."""
        pace = self._pace_of(session.grant)
        wait_s = pace.wait_s(now_s) if pace is not None else 0.0
        if not wait_s or session.connection is None:
            return False
        is_new = session.connection not in self._waiting
        self._waiting[session.connection] = now_s + wait_s
        if is_new:
            self._counters.throttle_pauses += 1
            heapq.heappush(self._due, (now_s + wait_s, session.connection))
        return is_new

    def is_waiting(self, session: Session) -> bool:
        return session.connection in self._waiting

    def due(self, now_s: float) -> Iterator[ConnectionId]:
        """Connections that have waited long enough."""
        while self._due and self._due[0][0] <= now_s:
            _, connection = heapq.heappop(self._due)
            until_s = self._waiting.get(connection)
            if until_s is None:
                continue
            if until_s > now_s:
                heapq.heappush(self._due, (until_s, connection))
                continue
            del self._waiting[connection]
            yield connection
