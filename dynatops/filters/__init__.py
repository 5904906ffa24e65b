"""What a subscriber wants: patterns of topics, and conditions on the attributes of events."""

from __future__ import annotations

from dynatops.filters.attributes import AttributesError, attributes_of, attributes_to_wire
from dynatops.filters.conditions import Attributes, Value
from dynatops.filters.covering import covers
from dynatops.filters.filter import Filter
from dynatops.filters.pattern import (
    FilterError,
    check_pattern,
    is_wildcard,
    pattern_covers,
    pattern_matches,
)
from dynatops.filters.predicate import Predicate
from dynatops.filters.trie import FilterTrie

__all__ = [
    "Attributes",
    "AttributesError",
    "Filter",
    "FilterError",
    "FilterTrie",
    "Predicate",
    "Value",
    "attributes_of",
    "attributes_to_wire",
    "check_pattern",
    "covers",
    "is_wildcard",
    "pattern_covers",
    "pattern_matches",
]
