"""Tables of pages that are written by hand, with their rows made anew."""

from __future__ import annotations

import re
from collections.abc import Sequence


def with_rows(text: str, page: str, heading: str, rows: Sequence[str]) -> str:
    """The page's text, with these below the one heading that begins so."""
    table = re.compile(rf"(?<=\n){re.escape(heading)}[^\n]*\n\|[-|]+\|\n(?:\|[^\n]*\n)*")
    found = table.findall(text)
    if len(found) != 1:
        raise ValueError(f"{page} has {len(found)} tables that begin with {heading}")
    head = found[0].splitlines()[:2]
    return text.replace(found[0], "".join(f"{line}\n" for line in (*head, *rows)))


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("  |", " |")
