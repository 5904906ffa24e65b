"""Which of many patterns match a topic.

Patterns without wildcards lie in one dictionary. The others form a trie: a node is a dictionary
from a level to what is below it, which is a node, or at the end of a pattern its value itself. A
topic is followed along its own levels and along `+` at once. Texts of levels are shared and know
their hashes, which makes this twice as fast as one flat dictionary of numbered nodes and levels.

At worst, that is where patterns with `+` at every choice of levels have been added, a topic passes
2^(its levels + 1) nodes; but never more than there are nodes, which is LEVELS_MAX for each pattern.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

from dynatops.kit.filters.pattern import ALL_LEVELS, ONE_LEVEL, SEPARATOR, is_wildcard
from dynatops.kit.topics import RESERVED_PREFIX

# Texts of levels are shared between nodes; past this many, the sharing begins anew.
SHARED_LEVELS_MAX = 100_000

T = TypeVar("T", bound=Hashable)


# From a level to a node, a value or `_Several` of them. No value is a dictionary: they have hashes.
_Node = dict[str, Any]


class _Several(dict[Any, None]):
    """Values of one pattern, in the order in which they came."""

    __slots__ = ()


# The key of the value of a pattern that ends at a node with others below. No level is like this.
_HERE: Final = "##"
_NOTHING: Final = object()


class FilterTrie(Generic[T]):
    """Patterns must have been checked. A value is held once for each pattern it is added with."""

    __slots__ = ("_exact", "_root", "_shared", "_size")

    def __init__(self) -> None:
        self._exact: dict[str, Any] = {}
        self._root: _Node = {}
        self._shared: dict[str, str] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many pairs of pattern and value there are."""
        return self._size

    def add(self, pattern: str, value: T) -> None:
        """Once more of the same changes nothing."""
        if not is_wildcard(pattern):
            self._size += _put(self._exact, pattern, value)
            return
        *levels, last = pattern.split(SEPARATOR)
        node = self._root
        for level in levels:
            below: Any = node.get(level, _NOTHING)
            if below.__class__ is not dict:
                below = {} if below is _NOTHING else {_HERE: below}
                node[self._share(level)] = below
            node = below
        below = node.get(last)
        if below.__class__ is dict:
            self._size += _put(below, _HERE, value)
        else:
            self._size += _put(node, self._share(last), value)

    def remove(self, pattern: str, value: T) -> None:
        """Raise KeyError if the value is not there with this pattern."""
        if not is_wildcard(pattern):
            _drop(self._exact, pattern, value)
            self._size -= 1
            return
        path: list[tuple[_Node, str]] = []
        below: Any = self._root
        for level in pattern.split(SEPARATOR):
            if below.__class__ is not dict:
                raise KeyError(pattern)
            path.append((below, level))
            below = below.get(level)
        if below.__class__ is dict:
            path.append((below, _HERE))
        node, level = path.pop()
        _drop(node, level, value)
        self._size -= 1
        while path:
            emptied, (node, level) = node, path.pop()
            if not _fold(node, level, emptied):
                break

    def match(self, topic: str) -> list[T]:
        """The values of all patterns that match; one with several such patterns comes as often."""
        found: list[Any] = []
        entry = self._exact.get(topic, _NOTHING)
        if entry is not _NOTHING:
            found.append(entry)
        *levels, last = topic.split(SEPARATOR)
        nodes = [self._first_node(topic)]
        for level in levels:
            following: list[_Node] = []
            for node in nodes:
                if ALL_LEVELS in node:
                    found.append(node[ALL_LEVELS])
                below = node.get(level)
                if below.__class__ is dict:
                    following.append(below)
                below = node.get(ONE_LEVEL)
                if below.__class__ is dict:
                    following.append(below)
            nodes = following
        _find_last(found, nodes, last)
        for entry in found:
            if entry.__class__ is _Several:
                return _flat(found)
        return found

    def _first_node(self, topic: str) -> _Node:
        if not topic.startswith(RESERVED_PREFIX):
            return self._root
        # No wildcard in the first level matches.
        level = topic.split(SEPARATOR, 1)[0]
        return {level: self._root[level]} if level in self._root else {}

    def _share(self, level: str) -> str:
        if len(self._shared) >= SHARED_LEVELS_MAX:
            self._shared.clear()
        return self._shared.setdefault(level, level)


def _find_last(found: list[Any], nodes: list[_Node], last: str) -> None:
    levels = (last, ONE_LEVEL)
    for node in nodes:
        if ALL_LEVELS in node:
            found.append(node[ALL_LEVELS])
        for level in levels:
            if level not in node:
                continue
            below = node[level]
            if below.__class__ is not dict:
                found.append(below)
                continue
            # What ends here, and `#`, which matches its parent too.
            if _HERE in below:
                found.append(below[_HERE])
            if ALL_LEVELS in below:
                found.append(below[ALL_LEVELS])


def _flat(entries: list[Any]) -> list[Any]:
    values: list[Any] = []
    for entry in entries:
        if entry.__class__ is _Several:
            values += entry
        else:
            values.append(entry)
    return values


def _put(entries: dict[str, Any], key: str, value: object) -> bool:
    """Whether the value was not there before."""
    entry = entries.get(key, _NOTHING)
    if entry is _NOTHING:
        entries[key] = value
    elif entry.__class__ is _Several:
        if value in entry:
            return False
        entry[value] = None
    elif entry == value:
        return False
    else:
        entries[key] = _Several({entry: None, value: None})
    return True


def _drop(entries: dict[str, Any], key: str, value: object) -> None:
    """Raise KeyError if the value is not there."""
    entry = entries[key]
    if entry.__class__ is not _Several:
        if entry != value:
            raise KeyError(value)
        del entries[key]
        return
    del entry[value]
    if len(entry) == 1:
        entries[key] = next(iter(entry))


def _fold(node: _Node, level: str, below: _Node) -> bool:
    """Put in place of a node that has too little in it what it has; whether that was nothing."""
    if not below:
        del node[level]
        return True
    if len(below) == 1 and _HERE in below:
        node[level] = below[_HERE]
    return False
