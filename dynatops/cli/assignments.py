"""What is wrong with `--set NAME=VALUE`, in words for the user that typed it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_SHOWN_MAX = 3
# Of models and of dataclasses.
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})


def explain_settings(error: ValidationError, known: Iterable[str]) -> str:
    """The first thing that is wrong; `known` are all names that `--set` takes."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] in _UNKNOWN:
        return f"there is no setting {where}{suggestion(where, known)}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant, or where to look."""
    near = _near(name, list(known))
    return f"; did you mean {' or '.join(near)}?" if near else "; `dynatops settings` lists all"


def _near(name: str, known: list[str]) -> list[str]:
    """Of the same group first: a group's name makes all in it look alike."""
    group, _, field = name.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in known if _group(other) == group}
    found = get_close_matches(field, siblings, _SHOWN_MAX)
    if found:
        return [siblings[one] for one in found]
    elsewhere = {other.rpartition(".")[2]: other for other in known}
    if field in elsewhere:
        return [other for other in known if other.rpartition(".")[2] == field][:_SHOWN_MAX]
    groups = dict.fromkeys(_group(other) for other in known)
    return get_close_matches(name, [*groups, *known], _SHOWN_MAX, cutoff=0.75)


def _group(name: str) -> str:
    return name.rpartition(".")[0]
