"""What filters a client may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter, FilterError
from dynatops.v1.client_pb2 import ErrorCode, TopicProblem
from dynatops.v1.client_pb2 import Filter as WireFilter

# Conditions that one session may have on one pattern.
CONDITIONS_MAX = 100


def sort_filters(
    wanted: Iterable[WireFilter], session: Session, counters: BrokerCounters
) -> tuple[list[Filter], list[TopicProblem]]:
    """Which filters the session may add, and what is wrong with the others."""
    settings = session.grant.settings
    accepted: list[Filter] = []
    problems: list[TopicProblem] = []
    load = _Load(session)
    unread_bytes = settings.condition_bytes_max
    for pattern, where in dict.fromkeys((f.pattern, f.where) for f in wanted):
        unread_bytes -= len(where)
        if where and unread_bytes < 0:
            limit = f"{settings.condition_bytes_max:,}"
            message = f"the conditions of one request have at most {limit} characters"
        else:
            try:
                parsed = parse_filter(pattern, where, settings.topic_bytes_max)
            except FilterError as error:
                problems.append(TopicProblem(topic=pattern, code=error.code, message=str(error)))
                continue
            message = load.add(parsed, settings)
        if message:
            counters.filters_over_quota += 1
            code = ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
            problems.append(TopicProblem(topic=pattern, code=code, message=message))
        else:
            accepted.append(parsed)
    return accepted, problems


class _Load:
    """What the filters of a session cost: how many there are, how many with wildcards, and how many
    tests an event may have to pass."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._new: dict[str, set[Filter]] = {}
        self._patterns = len(session.filters)
        self._wildcards = len({f.pattern for f in session.wildcards})
        self._wildcard_tests = sum(f.tests for f in session.wildcards)

    def add(self, wanted: Filter, settings: CoreSettings) -> str:
        """Why there is no room for it; empty if there was."""
        present = self._session.filters.get(wanted.pattern, ())
        added = self._new.get(wanted.pattern, set())
        if wanted in present or wanted in added:
            return ""
        is_new = not present and not added
        tests = wanted.tests
        if is_new and self._patterns >= settings.filters_per_session_max:
            return f"a session has at most {settings.filters_per_session_max:,} filters"
        if len(present) + len(added) >= CONDITIONS_MAX:
            return f"a session has at most {CONDITIONS_MAX} conditions on one pattern"
        if wanted.is_wildcard:
            if is_new and self._wildcards >= settings.wildcards_per_session_max:
                limit = f"{settings.wildcards_per_session_max:,}"
                return f"a session has at most {limit} filters with wildcards"
            others = self._wildcard_tests
        else:
            others = sum(f.tests for f in (*present, *added))
        if tests and others + tests > settings.condition_tests_max:
            limit = f"{settings.condition_tests_max:,}"
            return f"the conditions that one event may have to pass have at most {limit} tests"
        self._patterns += is_new
        if wanted.is_wildcard:
            self._wildcards += is_new
            self._wildcard_tests += tests
        self._new.setdefault(wanted.pattern, set()).add(wanted)
        return ""


def parse_filter(pattern: str, where: str, bytes_max: int) -> Filter:
    """Filters that many sessions share are one object. Raises FilterError."""
    parse = _parse_conditional if where else _parse_plain
    return parse(pattern, where, bytes_max)


# A condition takes up to 25 KB, a pattern alone a hundredth of that.
_parse_plain = lru_cache(maxsize=65_536)(Filter.parse)
_parse_conditional = lru_cache(maxsize=4_096)(Filter.parse)


def present_filters(filters: Iterable[WireFilter], session: Session) -> list[Filter]:
    """Those that the session may have; all others are not worth reading."""
    present: list[Filter] = []
    tried: Counter[str] = Counter()
    for pattern, where in dict.fromkeys((f.pattern, f.where) for f in filters):
        if pattern not in session.filters or tried[pattern] >= CONDITIONS_MAX:
            continue
        tried[pattern] += 1
        try:
            bytes_max = session.grant.settings.topic_bytes_max
            present.append(parse_filter(pattern, where, bytes_max))
        except FilterError:
            continue
    return present
