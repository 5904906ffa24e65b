"""What a subscriber wants: patterns of topics, and conditions on the attributes of events."""

from __future__ import annotations

from dynatops.kit.filters.attributes import AttributesError, attributes_of, attributes_to_wire
from dynatops.kit.filters.conditions import Attributes, Value
from dynatops.kit.filters.covering import covers, intersects, settled_covers
from dynatops.kit.filters.filter import Filter
from dynatops.kit.filters.filter_index import FilterIndex, TopicHolders
from dynatops.kit.filters.pattern import (
    FilterError,
    check_pattern,
    is_wildcard,
    pattern_covers,
    pattern_intersects,
    pattern_matches,
)
from dynatops.kit.filters.pattern_tree import PatternTree
from dynatops.kit.filters.predicate import Predicate
from dynatops.kit.filters.trie import FilterTrie

__all__ = [
    "Attributes",
    "AttributesError",
    "Filter",
    "FilterError",
    "FilterIndex",
    "FilterTrie",
    "PatternTree",
    "Predicate",
    "TopicHolders",
    "Value",
    "attributes_of",
    "attributes_to_wire",
    "check_pattern",
    "covers",
    "intersects",
    "is_wildcard",
    "pattern_covers",
    "pattern_intersects",
    "pattern_matches",
    "settled_covers",
]
