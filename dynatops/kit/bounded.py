"""Queues and tables that cannot grow past their bound.

    self._known = BoundedTable(settings.known_max, counters, "known_forgotten")
    self._words = BoundedQueue(settings.words_max, counters, "words_dropped", past=Past.NEWEST)

Each has its bound from a setting, a policy for what happens past it, and a field of somebody's
counters that says how often that was. Every container of a core that can grow is one of these, or
stands in `tests/support/containers.py` with the reason why it cannot. Reading costs what it costs
with a dictionary or a deque.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Item = TypeVar("Item")


class Past(Enum):
    """What goes when there is one too many."""

    OLDEST = "the oldest"
    NEWEST = "the one that comes"


class _Bound:
    """How many there may be, and where it is counted that there were more."""

    __slots__ = ("_counter", "_counters", "limit", "past")

    def __init__(self, limit: int, counters: object, counter: str, past: Past) -> None:
        if limit < 1:
            raise ValueError(f"a bound of {limit} holds nothing")
        # A counter that is not there would be missed only when it is needed.
        getattr(counters, counter)
        self._counters = counters
        self._counter = counter
        self.limit = limit
        self.past = past

    def count(self, dropped: int = 1) -> None:
        setattr(self._counters, self._counter, getattr(self._counters, self._counter) + dropped)


class BoundedTable(OrderedDict[Key, Value], Generic[Key, Value]):
    """A dictionary in the order in which its keys came; `move_to_end` makes one the newest."""

    def __init__(
        self,
        entries_max: int,
        counters: object,
        counter: str,
        *,
        past: Past = Past.OLDEST,
        on_drop: Callable[[Key, Value], None] | None = None,
    ) -> None:
        """`on_drop` is called with each entry that had to go for another."""
        self._bound = _Bound(entries_max, counters, counter, past)
        self._on_drop = on_drop
        super().__init__()

    @property
    def entries_max(self) -> int:
        return self._bound.limit

    def put(self, key: Key, value: Value) -> bool:
        """Whether there was room for it: always, where the oldest goes."""
        if key not in self and len(self) >= self._bound.limit:
            self._bound.count()
            if self._bound.past is Past.NEWEST:
                return False
            gone = self.popitem(last=False)
            if self._on_drop is not None:
                self._on_drop(*gone)
        super().__setitem__(key, value)
        return True

    def __setitem__(self, key: Key, value: Value) -> None:
        self.put(key, value)


class BoundedQueue(Generic[Item]):
    """First in, first out. `weigh` says what an item weighs, such as its bytes: all together may
    then weigh `weight_max`. One item alone is let in however heavy it is."""

    __slots__ = ("_bound", "_items", "_weigh", "_weight_max", "weight")

    def __init__(
        self,
        items_max: int,
        counters: object,
        counter: str,
        *,
        past: Past = Past.OLDEST,
        weigh: Callable[[Item], int] | None = None,
        weight_max: int = 0,
    ) -> None:
        self._bound = _Bound(items_max, counters, counter, past)
        self._items: deque[Item] = deque()
        self._weigh = weigh
        self._weight_max = weight_max
        # Of all that is in it.
        self.weight = 0

    @property
    def items_max(self) -> int:
        return self._bound.limit

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __getitem__(self, index: int) -> Item:
        return self._items[index]

    def put(self, item: Item) -> bool:
        """Whether there was room for it: always, where the oldest goes."""
        weight = self._weigh(item) if self._weigh is not None else 0
        while self._items and self._is_too_much(weight):
            self._bound.count()
            if self._bound.past is Past.NEWEST:
                return False
            self.take()
        self._items.append(item)
        self.weight += weight
        return True

    def _is_too_much(self, weight: int) -> bool:
        return len(self._items) >= self._bound.limit or (
            self._weigh is not None and self.weight + weight > self._weight_max
        )

    def take(self) -> Item:
        """The oldest. Raises IndexError if there is none."""
        item = self._items.popleft()
        if self._weigh is not None:
            self.weight -= self._weigh(item)
        return item

    def take_all(self) -> list[Item]:
        """All of them, the oldest first."""
        items = list(self._items)
        self.clear()
        return items

    def clear(self) -> None:
        self._items.clear()
        self.weight = 0
