"""What a subscriber wants: patterns of topics, and conditions on the attributes of events."""

from __future__ import annotations

from dynatops.filters.pattern import (
    FilterError,
    check_pattern,
    is_wildcard,
    pattern_covers,
    pattern_matches,
)

__all__ = [
    "FilterError",
    "check_pattern",
    "is_wildcard",
    "pattern_covers",
    "pattern_matches",
]
