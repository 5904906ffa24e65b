"""Driving what counts in steps to its end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


def counted(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The counts, and how often it waited."""
    found: list[T] = []

    def drive() -> Iterator[None]:
        found.append((yield from steps))

    waits = sum(1 for _ in drive())
    return found[0], waits
