"""How the counters of cores are declared: with what they count, in words for operators."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def counter(doc: str) -> Any:
    """A field of a dataclass of counters; `doc` goes to the reference of metrics."""
    return field(default=0, metadata={"doc": doc})
