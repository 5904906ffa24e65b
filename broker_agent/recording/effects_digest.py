"""A running digest of all that a core wanted done, to see whether a replay wants the same.

Counters are not in it: drivers count there, too. Nor is what is said to the lake and to managers,
which has such numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b

from google.protobuf.message import Message

from broker_agent.core.keeping.journal import Changes
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.core.stores.log.log_requests import AppendToLog
from broker_agent.doors.frames import FRAMES

_DIGEST_BYTES = 16
_SHORT_BYTES = 4


class EffectsDigest:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    def add(self, result: object) -> bool:
        """Take in what an input came to; whether that was anything."""
        if isinstance(result, Changes | AppendToLog):
            result = [result]
        if not isinstance(result, list) or not result:
            return False
        for effect in result:
            for part in _parts_of(effect):
                self._hash.update(len(part).to_bytes(4, "little"))
                self._hash.update(part)
        return True

    @property
    def shown(self) -> str:
        return self._hash.hexdigest()

    @property
    def short(self) -> int:
        """The first of its bytes, as logs have them."""
        return int.from_bytes(self._hash.digest()[:_SHORT_BYTES], "little")


def _parts_of(value: object) -> Iterator[bytes]:
    if isinstance(value, Message):
        yield value.SerializeToString(deterministic=True)
    elif isinstance(value, Content):
        # As its client reads it: it is encoded once, here or at the door.
        yield value.encoded(FRAMES)
    elif isinstance(value, Piece):
        # Since when it waits is of one life only.
        yield from _parts_of([value.serial, value.topic, value.events, value.content])
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _parts_of(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.items():
            yield from _parts_of(item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            yield from _parts_of(item)
    else:
        yield repr(value).encode()
