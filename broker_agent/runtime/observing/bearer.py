"""The token that somebody shows who asks a broker something, or commands it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_SCHEME = "Bearer "


def token_in(metadata: Iterable[Any] | None) -> str:
    """Empty if none is shown."""
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return ""
