"""Which of many patterns a pattern covers, and which it has a topic in common with.

A tree of levels, exact patterns included, each with one value. Nothing that cannot be an answer is
visited but for levels below a `+` of the pattern asked about. `FilterTrie` is for topics: it takes
less memory, and knows nothing of patterns among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from dynatops.kit.filters.pattern import ONE_LEVEL, levels_and_openness

V = TypeVar("V")


class _PatternNode(Generic[V]):
    __slots__ = ("below", "exact", "open")

    def __init__(self) -> None:
        self.below: dict[str, _PatternNode[V]] = {}
        # Patterns that end here, and those that go on: `#` and `+/#` do at one node.
        self.exact: dict[str, V] = {}
        self.open: dict[str, V] = {}


class PatternTree(Generic[V]):
    """Patterns must have been checked, and begin with no character that is the system's own."""

    __slots__ = ("_root", "_values")

    def __init__(self) -> None:
        self._root: _PatternNode[V] = _PatternNode()
        self._values: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, pattern: str) -> V | None:
        return self._values.get(pattern)

    def put(self, pattern: str, value: V) -> None:
        self._values[pattern] = value
        levels, is_open = levels_and_openness(pattern)
        node = self._root
        for level in levels:
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _PatternNode()
            node = below
        (node.open if is_open else node.exact)[pattern] = value

    def remove(self, pattern: str) -> None:
        """Raise KeyError if the pattern is not there."""
        del self._values[pattern]
        levels, is_open = levels_and_openness(pattern)
        path = [self._root]
        for level in levels:
            path.append(path[-1].below[level])
        node = path.pop()
        del (node.open if is_open else node.exact)[pattern]
        for level in reversed(levels):
            if node.below or node.exact or node.open:
                break
            node = path.pop()
            del node.below[level]

    def covered(self, pattern: str) -> Iterator[V]:
        """The values of all patterns that this one covers, itself included."""
        levels, is_open = levels_and_openness(pattern)
        nodes = [self._root]
        for level in levels:
            if level == ONE_LEVEL:
                nodes = [below for node in nodes for below in node.below.values()]
            else:
                nodes = [node.below[level] for node in nodes if level in node.below]
        for node in nodes:
            if is_open:
                yield from _all_of(node)
            else:
                yield from node.exact.values()

    def intersecting(self, pattern: str) -> Iterator[V]:
        """The values of all patterns that match a topic in common with this one."""
        levels, is_open = levels_and_openness(pattern)
        nodes = [self._root]
        for level in levels:
            following: list[_PatternNode[V]] = []
            for node in nodes:
                # It matches at least as many levels as there are still to come.
                yield from node.open.values()
                if level == ONE_LEVEL:
                    following += node.below.values()
                    continue
                following += [node.below[name] for name in (level, ONE_LEVEL) if name in node.below]
            nodes = following
        for node in nodes:
            if is_open:
                yield from _all_of(node)
            else:
                yield from node.exact.values()
                yield from node.open.values()


def _all_of(node: _PatternNode[V]) -> Iterator[V]:
    nodes = [node]
    while nodes:
        node = nodes.pop()
        yield from node.exact.values()
        yield from node.open.values()
        nodes += node.below.values()
