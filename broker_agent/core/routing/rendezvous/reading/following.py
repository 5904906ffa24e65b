"""Wildcards: which topics exist, and whose filters they match.

A broker with wildcard filters reads the catalogue (`overlay.base.catalogue`) from its beginning.
Until it has read all of it, new wildcards wait. From then on a topic that turns up in it is new:
sessions with a matching filter read it from its first event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import FilterTrie
from overlay.base.catalogue import shard_topics

# In a tree of names: a topic ends here. No level contains it.
_END = "\0"
# Beside that: the term that it began in.
_BEGAN = "\0began"
_NO_LEVELS = (_END, _BEGAN)


class TopicNames:
    """A set of topic names that can be searched by pattern."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._count = 0
        # Levels of names looked at so far, in search of what matches.
        self.looked_at = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic: str) -> bool:
        node: dict[str, Any] | None = self._root
        for level in topic.split("/"):
            node = node.get(level) if node is not None else None
        return node is not None and _END in node

    def add(self, topic: str, began: int = 0) -> bool:
        """A topic, and the term that it began in (0 if that is not known); whether it is new."""
        node = self._root
        for level in topic.split("/"):
            node = node.setdefault(level, {})
        if _END in node:
            return False
        node[_END] = topic
        if began:
            node[_BEGAN] = began
        self._count += 1
        return True

    def began(self, topic: str) -> int:
        """The term that the topic began in; 0 if that is not known."""
        node: dict[str, Any] | None = self._root
        for level in topic.split("/"):
            node = node.get(level) if node is not None else None
        found: int = node.get(_BEGAN, 0) if node is not None else 0
        return found

    def matching(self, pattern: str) -> Iterator[str]:
        """The topics that the pattern matches."""
        levels = pattern.split("/")
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            self.looked_at += 1
            if depth == len(levels):
                if _END in node:
                    yield node[_END]
            elif levels[depth] == "#":
                yield from self._all_below(node)
            elif levels[depth] == "+":
                stack.extend((node[below], depth + 1) for below in node if below not in _NO_LEVELS)
            elif (below_node := node.get(levels[depth])) is not None:
                stack.append((below_node, depth + 1))

    def _all_below(self, root: dict[str, Any]) -> Iterator[str]:
        stack = [root]
        while stack:
            node = stack.pop()
            self.looked_at += len(node)
            for level, below in node.items():
                if level == _END:
                    yield below
                elif level != _BEGAN:
                    stack.append(below)


class Following:
    def __init__(self) -> None:
        self.names = TopicNames()
        self._filters: FilterTrie[Session] = FilterTrie()
        # Sessions with wildcards, and how many patterns of each.
        self._sessions: Counter[Session] = Counter()
        # Catalogue shards not read to their end yet.
        self._unread: set[str] = set()
        self._active = False

    @property
    def is_active(self) -> bool:
        """Whether there are wildcards here at all."""
        return self._active

    @property
    def is_complete(self) -> bool:
        """Whether every topic that exists is known here."""
        return self._active and not self._unread

    def start(self) -> list[str]:
        """The first wildcard has come: the catalogue's topics, all to be read."""
        self._active = True
        self._unread = set(shard_topics())
        return shard_topics()

    def stop(self) -> list[str]:
        """The last wildcard has gone: the catalogue's topics, which nobody needs any more."""
        self._active = False
        self.names = TopicNames()
        return shard_topics()

    def add(self, session: Session, pattern: str) -> None:
        self._filters.add(pattern, session)
        self._sessions[session] += 1

    def remove(self, session: Session, pattern: str) -> None:
        self._filters.remove(pattern, session)
        self._sessions[session] -= 1
        if self._sessions[session] <= 0:
            del self._sessions[session]

    @property
    def sessions(self) -> Iterable[Session]:
        """Those with wildcards."""
        return self._sessions

    @property
    def is_idle(self) -> bool:
        return self._active and not len(self._filters)

    def shard_read(self, shard: str) -> bool:
        """A shard has been read to its end; whether it was the last one."""
        if shard not in self._unread:
            return False
        self._unread.remove(shard)
        return not self._unread

    def learn(self, topics: Iterable[tuple[str, int]]) -> Iterator[tuple[str, list[Session]]]:
        """Topics from the catalogue, and the terms that they began in: those that are new, and the
        sessions whose filters match."""
        for topic, began in topics:
            if self.names.add(topic, began) and self.is_complete:
                sessions = dict.fromkeys(self._filters.match(topic))
                if sessions:
                    yield topic, list(sessions)
