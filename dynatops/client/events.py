"""What comes to a subscriber: events, one by one or in batches.

What has arrived together is kept as it came, in columns, and an event is made of it when somebody
looks at it: an application that only counts, or wants the payloads, pays for nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol, overload

from dynatops.client.errors import AckError
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Value
from dynatops.v1.overlay_pb2 import Event as WireEvent
from dynatops.v1.overlay_pb2 import Run

# Of a payload, where an event is shown.
_SHOWN_BYTES = 40
NO_ATTRIBUTES: Mapping[str, Value] = MappingProxyType({})


class Event(NamedTuple):
    """One event, as a subscriber gets it.

    `topic`, `payload` and `attributes` are what the publisher gave; `published_us` is its wall
    clock then, in microseconds since 1970. `term` and `seq` are the event's place in the topic's
    history: no two events of a topic have the same, and within a topic they ascend.
    """

    topic: str
    payload: bytes
    published_us: int
    term: int
    seq: int
    attributes: Mapping[str, Value] = NO_ATTRIBUTES

    def __repr__(self) -> str:
        """With the beginning of the payload."""
        payload = repr(self.payload)
        if len(self.payload) > _SHOWN_BYTES:
            payload = f"{self.payload[:_SHOWN_BYTES]!r}… ({len(self.payload):,} bytes)"
        attributes = f", attributes={dict(self.attributes)}" if self.attributes else ""
        return (
            f"Event(topic={self.topic!r}, payload={payload}, published_us={self.published_us}, "
            f"term={self.term}, seq={self.seq}{attributes})"
        )

    @property
    def deliveries(self) -> int:
        """How often it has been handed out, this time included: to this process, and to those with
        the same client id before. Counted where events are acknowledged (`ack="manual"`)."""
        return 1

    def ack(self, *, wait: bool = False) -> Awaitable[None]:
        """The work on this event is done: it does not come again. More than once is harmless.

        The broker is told at once; with `wait`, this returns when it has heard. Raises AckError if
        the event is not to be acknowledged, or cannot be any more.
        """
        raise self._is_taken()

    def nak(self, delay_s: float = 0.0) -> Awaitable[None]:
        """The work on this event came to nothing: it is to come again, after this time at the
        earliest. Raises AckError as `ack` does."""
        raise self._is_taken()

    def in_progress(self) -> Awaitable[None]:
        """The work on this event goes on: `ack_wait_s` begins anew. Raises AckError."""
        raise self._is_taken()

    def _is_taken(self) -> AckError:
        reason = 'it was taken when it was handed out; subscribe with ack="manual" to acknowledge'
        return AckError(self.topic, self.term, self.seq, reason)


# As `Event(…)` makes them, without its call in between.
_new = tuple.__new__


class EventColumns(Protocol):
    """Events that have arrived together, without attributes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Event]: ...

    def event(self, place: int) -> Event: ...

    @property
    def topics(self) -> Sequence[str]: ...

    @property
    def payloads(self) -> Sequence[bytes]: ...


class BundleEvents:
    """Those of a bundle."""

    __slots__ = ("_bundle",)

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def __len__(self) -> int:
        return len(self._bundle)

    def __iter__(self) -> Iterator[Event]:
        bundle = self._bundle
        columns = zip(
            bundle.topics, bundle.payloads, bundle.published_us, bundle.terms, bundle.seqs,
            repeat(NO_ATTRIBUTES),
        )  # fmt: skip
        return map(_new, repeat(Event), columns)

    def event(self, place: int) -> Event:
        bundle = self._bundle
        columns = (
            bundle.topics[place], bundle.payloads[place], bundle.published_us[place],
            bundle.terms[place], bundle.seqs[place], NO_ATTRIBUTES,
        )  # fmt: skip
        return _new(Event, columns)

    @property
    def topics(self) -> Sequence[str]:
        return self._bundle.topics

    @property
    def payloads(self) -> Sequence[bytes]:
        return self._bundle.payloads


_payload_of = attrgetter("payload")
_published_us_of = attrgetter("published_us")


class RunEvents:
    """Those of a run, whole."""

    __slots__ = ("_first_seq", "_messages", "_term", "_topic")

    def __init__(self, run: Run, messages: Sequence[WireEvent]) -> None:
        self._topic = run.topic
        self._term = run.term
        self._first_seq = run.first_seq
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Event]:
        messages, first = self._messages, self._first_seq
        columns = zip(
            repeat(self._topic), map(_payload_of, messages), map(_published_us_of, messages),
            repeat(self._term), range(first, first + len(messages)), repeat(NO_ATTRIBUTES),
        )  # fmt: skip
        return map(_new, repeat(Event), columns)

    def event(self, place: int) -> Event:
        message, seq = self._messages[place], self._first_seq + place
        return Event(self._topic, message.payload, message.published_us, self._term, seq)

    @property
    def topics(self) -> Sequence[str]:
        return [self._topic] * len(self._messages)

    @property
    def payloads(self) -> Sequence[bytes]:
        return list(map(_payload_of, self._messages))


# Of what a batch consists.
Part = list[Event] | EventColumns


class Batch(Sequence[Event]):
    """Events that a subscription has taken together, in order: a sequence that cannot be changed.

    An `Event` is made when it is looked at, anew each time. `len(batch)`, `batch.topics` and
    `batch.payloads` make none.
    """

    __slots__ = ("_count", "_ends", "_parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._count = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        # Where each part ends, once it is asked for.
        self._ends: Sequence[int] = ()

    @property
    def topics(self) -> Sequence[str]:
        """The topic of each event."""
        return tuple(
            chain.from_iterable(
                [event.topic for event in part] if isinstance(part, list) else part.topics
                for part in self._parts
            )
        )

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payload of each event."""
        return tuple(
            chain.from_iterable(
                [event.payload for event in part] if isinstance(part, list) else part.payloads
                for part in self._parts
            )
        )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Batch: ...

    def __getitem__(self, index: int | slice) -> Event | Batch:
        if isinstance(index, slice):
            return Batch([[self._at(place) for place in range(*index.indices(len(self)))]])
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError("a batch has no event at that index")
        return self._at(place)

    def _at(self, place: int) -> Event:
        self._ends = self._ends or list(accumulate(map(len, self._parts)))
        number = bisect_right(self._ends, place)
        part = self._parts[number]
        if number:
            place -= self._ends[number - 1]
        return part[place] if isinstance(part, list) else part.event(place)

    def __repr__(self) -> str:
        return f"<Batch of {len(self):,} events>"
