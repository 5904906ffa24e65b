"""Modes of ten topics (DYNATOPS IV-A), which all generators share: interests fall into them."""

from __future__ import annotations

MODE_TOPICS = 10


def modes_of(topics: int) -> list[range]:
    """The modes of so many topics; the last may be smaller."""
    starts = range(0, topics, MODE_TOPICS)
    return [range(start, min(start + MODE_TOPICS, topics)) for start in starts]


def topic_name(topic: int) -> str:
    """A name that says of which mode the topic is."""
    return f"mode{topic // MODE_TOPICS}/{topic % MODE_TOPICS}"
