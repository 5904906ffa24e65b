"""What docs/security.md tells of the rights and limits of tokens, from their declarations.
`generate_reference.py` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from page_tables import row, with_rows

from dynatops.kit.security.token_rights import DEFAULTS, LIMITS, RIGHTS, RightKind

_DOCS = Path(__file__).resolve().parent.parent / "docs" / "security.md"


def security_page() -> Iterator[str]:
    """The page as it is, with its tables of rights and limits made anew."""
    text = _DOCS.read_text()
    for heading, rows in (
        ("| entry | means | default |", _entries()),
        ("| limit | of | past it |", _limits()),
    ):
        text = with_rows(text, _DOCS.name, heading, list(rows))
    yield text.removesuffix("\n")


def _entries() -> Iterator[str]:
    yield row("`name`", "what messages call it; no two the same", "")
    yield row("`sha256`", "of the token, in hexadecimal: `printf %s TOKEN \\| sha256sum`", "")
    for name, right in RIGHTS.items():
        yield row(f"`{name}`", right.meaning, _default(name, right.kind))
    yield row("`limits`", "see below", "the broker's")


def _default(name: str, kind: RightKind) -> str:
    match kind:
        case RightKind.CLIENT_IDS:
            return "all"
        case RightKind.YES_OR_NO:
            return "yes" if DEFAULTS[name] else "no"
    return "none"


def _limits() -> Iterator[str]:
    for name, limit in LIMITS.items():
        yield row(f"`{name}`", limit.of, limit.meaning)
