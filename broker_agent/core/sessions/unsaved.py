"""What of the sessions has changed since it was last looked at in order to save it.

Whoever changes something notes it here; `journal` takes the notes. A broker that saves nothing
notes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_agent.core.sessions.session import Session


class Unsaved:
    def __init__(self, *, noting: bool) -> None:
        self._noting = noting
        # Sessions that came, went, or changed in what is said of them beside their queue.
        self.sessions: dict[Session, None] = {}
        # Sessions whose queue grew or was confirmed.
        self.queues: dict[Session, None] = {}
        # Topics that were read on, or whose readers' sessions changed.
        self.topics: dict[str, None] = {}

    def session(self, session: Session) -> None:
        if self._noting:
            self.sessions[session] = None

    def queue(self, session: Session) -> None:
        if self._noting and session.is_kept:
            self.queues[session] = None

    def topic(self, topic: str) -> None:
        if self._noting:
            self.topics[topic] = None

    def all_topics(self, topics: Iterable[str]) -> None:
        if self._noting:
            self.topics.update(dict.fromkeys(topics))

    def note_all(
        self, sessions: Iterable[Session], queues: Iterable[Session], topics: Iterable[str]
    ) -> None:
        """All this once more: what was made of it has come to nothing."""
        self.sessions.update(dict.fromkeys(sessions))
        self.queues.update(dict.fromkeys(queues))
        self.topics.update(dict.fromkeys(topics))

    def take_sessions(self) -> tuple[list[Session], list[Session]]:
        """Sessions that changed, and those whose queues did."""
        sessions, queues = list(self.sessions), list(self.queues)
        self.sessions, self.queues = {}, {}
        return sessions, queues

    def take_topics(self) -> list[str]:
        topics, self.topics = list(self.topics), {}
        return topics
