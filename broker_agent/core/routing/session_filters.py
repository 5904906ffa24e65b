"""The filters that sessions have, and who is told of them: broker selection and the lake."""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter
from overlay.base.identifiers import key_of


class SessionFilters:
    def __init__(self, context: BrokerContext) -> None:
        self._local = context.local
        self._logbook = context.logbook

    def add(self, session: Session, wanted: Filter, now_s: float) -> bool:
        """Whether its pattern is new to the session."""
        is_new = session.add_filter(wanted)
        if is_new and not session.is_internal:
            self._local.add([key_of(wanted.pattern)])
            self._logbook.subscribed(session, wanted.pattern, now_s)
        return is_new

    def remove(self, session: Session, unwanted: Filter, now_s: float) -> bool:
        """Whether it was the session's last one with this pattern."""
        is_gone = session.remove_filter(unwanted)
        if is_gone and not session.is_internal:
            self._local.remove([key_of(unwanted.pattern)])
            self._logbook.unsubscribed(session, [unwanted.pattern], now_s)
        return is_gone

    def remove_all(self, session: Session, now_s: float) -> None:
        if not session.is_internal:
            self._local.remove(key_of(pattern) for pattern in session.filters)
            self._logbook.unsubscribed(session, session.filters, now_s)
        session.filters, session.wildcards = {}, ()
