"""Pages of what a store keeps: how long they may be, and what a cursor is, whatever the store."""

from __future__ import annotations

PAGE_ITEMS_MAX = 1_000
_DIGITS_MAX = 15


class StoreCursorError(ValueError):
    """No page begins there."""


def page_size(limit: int) -> int:
    return max(1, min(limit, PAGE_ITEMS_MAX))


def number_of(cursor: str) -> int:
    """The number that a page begins below. Raises StoreCursorError."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _DIGITS_MAX):
        raise StoreCursorError(f"{cursor[:40]!r} is no cursor")
    return int(cursor)
