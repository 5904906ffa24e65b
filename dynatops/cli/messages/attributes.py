"""Attributes of events, as they are typed: `price=1500`, `brand=IBM`, `new=true`, `code="007"`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dynatops.cli.errors import UsageError

if TYPE_CHECKING:
    from dynatops.kit.filters import Value

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def read_attributes(texts: Iterable[str]) -> dict[str, Value]:
    """Raises UsageError."""
    attributes: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--attribute {text!r}: write NAME=VALUE")
        if name in attributes:
            raise UsageError(f"--attribute {text!r}: {name!r} has a value already")
        attributes[name] = _read_value(text, value)
    _check(attributes)
    return attributes


def _check(attributes: dict[str, Value]) -> None:
    """Before anything is connected to: what an event cannot have."""
    from dynatops.kit.filters import AttributesError, attributes_to_wire

    try:
        attributes_to_wire(attributes)
    except AttributesError as error:
        raise UsageError(str(error)) from None


def written_value(value: Value) -> str:
    """What `read_attributes` would read as this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    return value if _looks_plain(value) else json.dumps(value, ensure_ascii=False)


def _read_value(text: str, value: str) -> Value:
    """By the same rules as in conditions, but that a text needs quotes only to look unlike one."""
    if value in ("true", "false"):
        return value == "true"
    # int() and float() read more than what is a number in a condition.
    if _WHOLE.fullmatch(value):
        return int(value)
    if _NUMBER.fullmatch(value):
        number = float(value)
        if not math.isfinite(number):
            raise UsageError(f"--attribute {text!r}: that is too large a number")
        return number
    if value.startswith('"'):
        return _read_quoted(text, value)
    return value


def _looks_plain(value: str) -> bool:
    """Whether it is read as the text that it is, and nothing in it could be mistaken."""
    is_other = value in ("true", "false") or _NUMBER.fullmatch(value)
    return bool(value) and value.isprintable() and not is_other and not set(value) & set(' "')


def _read_quoted(text: str, value: str) -> str:
    try:
        return str(json.loads(value))
    except ValueError:
        raise UsageError(
            f"--attribute {text!r}: the quotes do not end, or more follows; "
            'within them write \\" for a quote and \\\\ for a backslash'
        ) from None
