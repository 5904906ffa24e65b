"""A filter: which topics, and of their events which."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynatops.kit.filters.conditions import Attributes, number_of_tests
from dynatops.kit.filters.pattern import check_pattern, is_wildcard, pattern_matches
from dynatops.kit.filters.predicate import Predicate
from dynatops.kit.topics import TOPIC_BYTES_MAX
from dynatops.v1 import client_pb2


@dataclass(frozen=True, slots=True)
class Filter:
    """Made by `parse`. Filters whose condition is written alike are equal."""

    pattern: str
    # As the predicate writes itself; empty for all events.
    where: str
    predicate: Predicate | None = field(compare=False, repr=False)
    is_wildcard: bool = field(compare=False, repr=False)

    @classmethod
    def parse(cls, pattern: str, where: str = "", bytes_max: int = TOPIC_BYTES_MAX) -> Filter:
        """Raise FilterError unless both are sound. `where` may be empty: all events."""
        check_pattern(pattern, bytes_max)
        predicate = Predicate.parse(where) if where else None
        return cls(pattern, str(predicate or ""), predicate, is_wildcard(pattern))

    @classmethod
    def of_system(cls, topic: str) -> Filter:
        """All events of a topic of the system's own, which clients cannot ask for."""
        return cls(topic, "", None, is_wildcard=False)

    @classmethod
    def from_wire(cls, message: client_pb2.Filter, bytes_max: int = TOPIC_BYTES_MAX) -> Filter:
        return cls.parse(message.pattern, message.where, bytes_max)

    def to_wire(self) -> client_pb2.Filter:
        return client_pb2.Filter(pattern=self.pattern, where=self.where)

    def matches(self, topic: str, attributes: Attributes) -> bool:
        if not pattern_matches(self.pattern, topic):
            return False
        return self.predicate is None or self.predicate.holds(attributes)

    @property
    def tests(self) -> int:
        """How many tests its condition consists of."""
        return number_of_tests(self.predicate.condition) if self.predicate is not None else 0

    def __str__(self) -> str:
        return f"{self.pattern} where {self.where}" if self.where else self.pattern
