"""JSON as the standard has it: Python reads and writes NaN and Infinity, which nothing else can
read, and of two fields with one name it forgets the first.

    document = parse_json(raw)     # JsonError says what is wrong, and where
    text = write_json(document)    # numbers that JSON does not have are null
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class JsonError(ValueError):
    """What is no JSON; the message says why."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.problem = problem
        # The name that is there twice.
        self.field = field


def parse_json(raw: str | bytes, *, check_numbers: bool = True) -> Any:
    """Raises JsonError. Numbers that are none are left to a caller that can say in which field."""
    try:
        return json.loads(
            raw,
            parse_constant=_no_number if check_numbers else None,
            parse_float=_finite if check_numbers else None,
            object_pairs_hook=_without_repeats,
        )
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeError as error:
        raise JsonError(f"not UTF-8: {error}") from None
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except JsonError:
        raise
    except ValueError as error:
        # Whole numbers of thousands of digits.
        raise JsonError(str(error)) from None


def write_json(
    document: object, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    options: dict[str, Any] = {
        "ensure_ascii": False, "allow_nan": False, "indent": indent, "default": default
    }  # fmt: skip
    try:
        return json.dumps(document, **options)
    except ValueError:
        return json.dumps(_with_null(document), **options)


def _no_number(name: str) -> float:
    raise JsonError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError(f"{digits[:40]} is too large a number")
    return number


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise JsonError("is there twice", name)
            seen.add(name)
    return document


def _with_null(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {name: _with_null(each) for name, each in value.items()}
        case list() | tuple():
            return [_with_null(each) for each in value]
    return value
