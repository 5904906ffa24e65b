"""Who is inside, with what, and how fast: what the clients of each token use, against its limits.

Limits of rates are kept by not reading from a publisher until its token's bucket allows more. What
its clients had sent before they felt that is accepted, up to a bound of waiting; past it, it is
refused as too fast. All limits are those of one broker, and the clients of a token share them.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.clients.publication_checks import PublicationProblem
from broker_agent.core.rights.access import Access, Grant, Refusal, RefusalReason
from broker_agent.core.rights.throttle import Bucket
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter
from dynatops.kit.security.token_rights import NOBODY, TokenLimits
from dynatops.v1.client_pb2 import ErrorCode, Hello, TopicProblem
from dynatops.v1.overlay_pb2 import Publication

# A topic that a token has left alone for so long is not counted as one of its own any more.
TOPIC_COUNTS_S = 3_600.0


class _Pace:
    """How fast the clients of one token publish together."""

    __slots__ = ("_bytes", "_events")

    def __init__(self, limits: TokenLimits) -> None:
        self._events = Bucket(limits.publish_events_per_s)
        self._bytes = Bucket(limits.publish_bytes_per_s)

    def spend(self, events: int, nbytes: int, now_s: float) -> None:
        self._events.spend(events, now_s)
        self._bytes.spend(nbytes, now_s)

    def wait_s(self, now_s: float) -> float:
        return max(self._events.wait_s(now_s), self._bytes.wait_s(now_s))


class TopicsInUse:
    """Which topics the clients of one token publish on, lately."""

    __slots__ = ("_used_s",)

    def __init__(self) -> None:
        # Since when each has been left alone; longest first. Names may be long, so by their hash.
        self._used_s: OrderedDict[int, float] = OrderedDict()

    def use(self, topic: str, topics_max: int, now_s: float) -> bool:
        """Whether there is room for it."""
        used, key = self._used_s, hash(topic)
        if key in used:
            used.move_to_end(key)
        else:
            while len(used) >= topics_max:
                if next(iter(used.values())) > now_s - TOPIC_COUNTS_S:
                    return False
                used.popitem(last=False)
        used[key] = now_s
        return True


class Gate:
    def __init__(self, context: BrokerContext, access: Access) -> None:
        self.access = access
        self._settings = context.settings
        self._counters = context.counters
        # By names of tokens.
        self._sessions: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._filters: Counter[str] = Counter()
        self._topics: dict[str, TopicsInUse] = {}
        # Of which token a connection is, and how many filters of a session are counted.
        self._connected: dict[ConnectionId, str] = {}
        self._counted: dict[Session, int] = {}
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
        if isinstance(outcome, Grant):
            outcome = self._over_quota(outcome, outcome.rights.limits, present) or outcome
        if isinstance(outcome, Refusal):
            self._counters.authentication_refused += 1
        return outcome

    def _over_quota(
        self, grant: Grant, limits: TokenLimits, present: Session | None
    ) -> Refusal | None:
        name = grant.name
        # A client that comes for its session takes the place of its former connection.
        connections = self._connections[name]
        connections -= present is not None and present.connection is not None
        if limits.connections is not None and connections >= limits.connections:
            self._counters.connections_over_quota += 1
            have = f"{limits.connections:,} connections with this broker"
            message = f"the token {name!r} has {have} already"
            return Refusal(RefusalReason.TOO_MANY_CONNECTIONS, message)
        sessions = self._sessions[name]
        if limits.sessions is not None and present is None and sessions >= limits.sessions:
            self._counters.connections_over_quota += 1
            message = f"the token {name!r} has {limits.sessions:,} sessions on this broker already"
            return Refusal(RefusalReason.TOO_MANY_SESSIONS, message)
        return None

    def let_in(self, session: Session, grant: Grant) -> None:
        """The session has come, or come back."""
        self.release(session)
        session.grant, session.owner = grant, grant.name
        self._sessions[grant.name] += 1
        self.count_filters(session)
        if session.connection is not None and grant.rules is not None:
            self._connected[session.connection] = grant.name
            self._connections[grant.name] += 1

    def count_filters(self, session: Session) -> None:
        """The session may have others than before."""
        if session.grant.rules is None:
            return
        count, counted = len(session.filters), self._counted.get(session, 0)
        if count != counted:
            self._filters[session.grant.name] += count - counted
            self._counted[session] = count

    def release(self, session: Session) -> None:
        """The session has gone for good."""
        if session.grant.rules is not NOBODY:
            self._forget(session)
            session.grant = Grant(self._settings)

    def disconnected(self, connection: ConnectionId) -> None:
        self._waiting.pop(connection, None)
        name = self._connected.pop(connection, None)
        if name is not None:
            _take_off(self._connections, name, 1)

    def _forget(self, session: Session) -> None:
        name = session.grant.name
        _take_off(self._sessions, name, 1)
        _take_off(self._filters, name, self._counted.pop(session, 0))

    def replace(
        self, access: Access, sessions: Iterable[Session]
    ) -> Iterator[tuple[Session, Refusal]]:
        """Let other rules hold from now on: which sessions must go, and why."""
        self.access = access
        self._paces.clear()
        self._topics = {n: t for n, t in self._topics.items() if n in access.names}
        for session in sessions:
            if session.closing or session.grant.rules is NOBODY:
                continue
            renewed = access.renew(session.grant, session.client_id)
            if renewed is None:
                message = "this broker does not know the client's token any more"
                yield session, Refusal(RefusalReason.TOKEN_UNKNOWN, message)
                continue
            self._forget(session)
            session.grant = renewed
            self._sessions[renewed.name] += 1
            self.count_filters(session)
            if not all(renewed.may_subscribe(pattern) for pattern in session.filters):
                message = (
                    f"the token {renewed.name!r} does not allow all its subscriptions any more"
                )
                yield session, Refusal(RefusalReason.RULES_CHANGED, message)

    # ---- what is allowed ------------------------------------------------------------------------

    def sort_filters(
        self, session: Session, filters: Iterable[Filter]
    ) -> tuple[list[Filter], list[TopicProblem]]:
        """Which of these the client may subscribe with, and what is wrong with the others."""
        grant = session.grant
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
        limit = grant.rights.limits.filters
        if limit is None:
            return allowed, problems
        room = max(0, limit - self._filters[grant.name])
        new = dict.fromkeys(f.pattern for f in allowed if f.pattern not in session.filters)
        # In order: what is said of them is to be the same, whenever it is said again.
        excess = dict.fromkeys(list(new)[room:])
        code = ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
        message = f"the token {grant.name!r} has {limit:,} filters on this broker at most"
        problems += [TopicProblem(topic=p, code=code, message=message) for p in excess]
        self._counters.filters_over_quota += len(excess)
        return [f for f in allowed if f.pattern not in excess], problems

    def has_pace(self, grant: Grant) -> bool:
        """Whether it is limited how fast the clients of this token publish."""
        return self._pace_of(grant) is not None

    def allows_all(self, grant: Grant, topics: Iterable[str], now_s: float) -> bool:
        """Whether the client may publish on all of these. If not, each is to be asked about by
        itself: only then is it counted."""
        if grant.rules is None:
            return True
        return all(
            grant.may_publish(topic) and self._has_room_for(grant, topic, now_s) for topic in topics
        )

    def forbids(self, grant: Grant, topic: str, now_s: float) -> PublicationProblem | None:
        """Why the client may not publish on this topic; None if it may.

        Nothing of it reaches the network, not even its numbers: they might be another's. The
        client knows from the refusal that they are settled.
        """
        if grant.may_publish(topic):
            return self._over_topics(grant, topic, now_s)
        self._counters.publish_not_allowed += 1
        message = f"the token {grant.name!r} does not allow publishing on it"
        return PublicationProblem(ErrorCode.ERROR_CODE_NOT_ALLOWED, message, uses_up_numbers=False)

    def _over_topics(self, grant: Grant, topic: str, now_s: float) -> PublicationProblem | None:
        if self._has_room_for(grant, topic, now_s):
            return None
        self._counters.topics_over_quota += 1
        limit = self._topics_max(grant)
        message = f"the token {grant.name!r} has published on {limit:,} other topics here lately"
        return PublicationProblem(
            ErrorCode.ERROR_CODE_TOO_MANY_TOPICS, message, uses_up_numbers=False
        )

    def _has_room_for(self, grant: Grant, topic: str, now_s: float) -> bool:
        """Whether this is one of the topics that the token may use; it is in use then."""
        if grant.rules is None:
            return True
        topics = self._topics.get(grant.name)
        if topics is None:
            topics = self._topics[grant.name] = TopicsInUse()
        return topics.use(topic, self._topics_max(grant), now_s)

    def _topics_max(self, grant: Grant) -> int:
        limit = grant.rules.limits.topics if grant.rules is not None else None
        return limit or self._settings.topics_per_token_max

    # ---- how fast -------------------------------------------------------------------------------

    def overtaxed(
        self, grant: Grant, publication: Publication, now_s: float
    ) -> PublicationProblem | None:
        """Why this cannot wait for its turn; None if it can, and then it counts."""
        pace = self._pace_of(grant)
        if pace is None:
            return None
        wait_s = pace.wait_s(now_s)
        if wait_s <= self._settings.throttle_wait_max_s:
            pace.spend(publication.count, len(publication.events), now_s)
            return None
        self._counters.publish_too_fast += 1
        message = f"the token {grant.name!r} has used up its rate for {wait_s:.0f} s to come"
        return PublicationProblem(ErrorCode.ERROR_CODE_TOO_FAST, message, uses_up_numbers=True)

    def _pace_of(self, grant: Grant) -> _Pace | None:
        limits = grant.rights.limits
        if limits.publish_events_per_s is None and limits.publish_bytes_per_s is None:
            return None
        pace = self._paces.get(grant.name)
        if pace is None:
            pace = self._paces[grant.name] = _Pace(limits)
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


def _take_off(counts: Counter[str], name: str, count: int) -> None:
    counts[name] -= count
    if not counts[name]:
        del counts[name]
