"""Failures that are messages for a person; `main` prints them and sets the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynatops.kit.filters import FilterError

# Of a condition, as much as fits into a line with its marker.
_BEFORE_MARKER = 50
_AFTER_MARKER = 25


class CommandError(Exception):
    """It could not be done. Exit code 1."""


class UsageError(Exception):
    """The command line or an input file is wrong. Exit code 2."""


def explain_filter(error: FilterError) -> str:
    """The message, and below it the text with a marker at the place that is to blame."""
    position = error.position
    if position is None:
        return str(error)
    first = max(0, position - _BEFORE_MARKER)
    shown = error.text[first : position + _AFTER_MARKER]
    line = "".join(character if character.isprintable() else " " for character in shown)
    return f"{error}\n  {line}\n  {' ' * (position - first)}^"
