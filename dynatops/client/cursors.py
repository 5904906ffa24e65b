"""Places that an application remembers, to go on from later: `Cursor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

from dynatops.client.errors import ArgumentTypeError, ArgumentValueError
from dynatops.client.events import Event
from dynatops.kit.topics import TopicError, check_topic

_NUMBER_MAX = (1 << 64) - 1
_WANTED = 'what str(cursor) gives, such as {"quake/ca": {"1": 93}}'


class Cursor:
    """How far topics have been read: `note` events, and later ask for what is beyond.

    It can be written down, `str(cursor)`, and read again, `Cursor.parse(text)`.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[str, dict[int, int]] = {}

    def note(self, event: Event) -> None:
        """This event has been read, and all of its topic before it."""
        terms = self._places.get(event.topic)
        if terms is None:
            terms = self._places[event.topic] = {}
        terms[event.term] = max(terms.get(event.term, 0), event.seq)

    @property
    def places(self) -> Mapping[str, Mapping[int, int]]:
        """By topic: up to which `event.seq` in each `event.term`."""
        return self._places

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ArgumentError if this is no cursor."""
        if not isinstance(text, str):
            raise ArgumentTypeError("cursor", text, "a text")
        try:
            places = json.loads(text)
        except ValueError:
            places = None
        if not isinstance(places, dict):
            raise ArgumentValueError("cursor", f"should be {_WANTED}")
        cursor = cls()
        for topic, terms in places.items():
            cursor._places[topic] = _checked_terms(topic, terms)
        return cursor

    def __str__(self) -> str:
        return json.dumps(self._places, ensure_ascii=False, separators=(", ", ": "))

    def __repr__(self) -> str:
        return f"<Cursor of {len(self._places):,} topics>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self._places == other._places

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __copy__(self) -> Cursor:
        copied = Cursor()
        copied._places = {topic: dict(terms) for topic, terms in self._places.items()}
        return copied


def _checked_terms(topic: str, terms: object) -> dict[int, int]:
    try:
        check_topic(topic)
    except TopicError as error:
        raise ArgumentValueError("cursor", str(error)) from None
    if not isinstance(terms, dict):
        raise ArgumentValueError("cursor", f"should be {_WANTED}")
    checked: dict[int, int] = {}
    for term, seq in terms.items():
        is_whole = isinstance(term, str) and term.isdecimal() and type(seq) is int
        if not is_whole or int(term) > _NUMBER_MAX or not 0 <= seq <= _NUMBER_MAX:
            raise ArgumentValueError("cursor", f"of {topic!r}: should be {_WANTED}")
        checked[int(term)] = seq
    return checked
