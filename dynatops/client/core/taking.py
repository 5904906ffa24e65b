"""What of a session's deliveries the application has taken.

A session that outlives its connections keeps what its application has not taken. Deliveries are
spread over subscriptions, which are read at different paces. Where events are taken by being handed
out, a delivery is taken when every subscription has been read past the events that it brought; a
whole frame of them is one entry here. Where somebody holds single events (an application that
acknowledges them, a filter that nobody has asked for yet) each delivery is an entry of its own.

The broker is told up to where everything is taken, and what is taken beyond.

    entries:   taken  taken  held  taken  read on demand  taken
               `--up to here-'     `beyond'               `beyond'

Serials are those of one session. When another has begun, whose broker knows nothing of the serials
before, what came before must be taken all the same before anything newer is: the new broker sends
again what had not been taken, and the client does not hand it out twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from dynatops.v1.client_pb2 import EventMark, SerialRange

_Marked = tuple["Delivery", int, int]


class Given(Protocol):
    """A subscription whose events are taken by being handed out."""

    @property
    def put_events(self) -> int: ...

    def has_given(self, events: int) -> bool: ...


class Delivery:
    """Deliveries that are taken together: those of a frame, or one with events that are held."""

    __slots__ = ("acked", "first", "handed", "holds", "is_told", "needs", "serial")

    def __init__(self, first: int, serial: int) -> None:
        # The first and the last of their serials; 0 if they are those of a former session.
        self.first = first
        self.serial = serial
        # Subscriptions, and how many events each must have given out.
        self.needs: list[tuple[Given, int]] = []
        # Offset of an event that is held -> by how many.
        self.holds: dict[int, int] = {}
        # Offsets that were held and are not any more; and how often others were handed out.
        self.acked: set[int] = set()
        self.handed: dict[int, int] = {}
        # Whether the broker was told of it beyond others.
        self.is_told = False

    @property
    def is_read(self) -> bool:
        for queue, n in self.needs:  # noqa: SIM110  # asked of every frame
            if not queue.has_given(n):
                return False
        return True

    @property
    def is_taken(self) -> bool:
        return not self.holds and self.is_read


class Taking:
    def __init__(self) -> None:
        self._open: deque[Delivery] = deque()
        # The newest serial that has an entry.
        self._noted = 0
        # What the broker is to be told of single events; and deliveries that are not held any more.
        self._marks: list[_Marked] = []
        self._done: list[Delivery] = []

    # ---- what has come --------------------------------------------------------------------------

    def note_given(self, serial: int, queues: Sequence[Given]) -> None:
        """Everything up to this serial has been put; into these subscriptions since last time."""
        if serial > self._noted or queues:
            delivery = Delivery(min(self._noted + 1, serial), serial)
            delivery.needs = [(queue, queue.put_events) for queue in queues]
            self._open.append(delivery)
            self._noted = max(serial, self._noted)

    def open(self, serial: int) -> Delivery:
        """The delivery that has just come: an entry of its own."""
        last = self._open[-1] if self._open else None
        if last is None or last.serial != serial or last.first != serial:
            last = Delivery(serial, serial)
            self._open.append(last)
            self._noted = max(serial, self._noted)
        return last

    # ---- what becomes of single events ----------------------------------------------------------

    def hold(self, delivery: Delivery, offset: int) -> None:
        """One more holds it: it is not taken until all have let go."""
        delivery.holds[offset] = delivery.holds.get(offset, 0) + 1

    def release(self, delivery: Delivery, offset: int) -> None:
        """One less holds it: if it was the last, it is taken."""
        delivery.holds[offset] -= 1
        if delivery.holds[offset]:
            return
        del delivery.holds[offset]
        delivery.acked.add(offset)
        delivery.handed.pop(offset, None)
        self._marks.append((delivery, offset, 0))
        if not delivery.holds:
            self._done.append(delivery)

    def hand_out(self, delivery: Delivery, offset: int, deliveries: int) -> None:
        """It is about to be handed to the application, for so many times in all."""
        delivery.handed[offset] = deliveries
        self._marks.append((delivery, offset, deliveries))

    # ---- what the broker is to know -------------------------------------------------------------

    def taken(self) -> int:
        """The newest serial up to which all has been taken since last asked; 0 if none."""
        serial = 0
        while self._open and self._open[0].is_taken:
            delivery = self._open.popleft()
            delivery.is_told = True
            serial = max(serial, delivery.serial)
        return serial

    def beyond(self, *, everything: bool = False) -> list[SerialRange]:
        """What has been taken beyond that, since last asked: of what was held, or of everything."""
        if self._waits_for_former:
            return []
        done, self._done = self._done, []
        candidates = self._open if everything else done
        taken = [d for d in candidates if d.serial and not d.is_told and d.is_taken]
        ranges: list[SerialRange] = []
        for delivery in taken:
            delivery.is_told = True
            if ranges and ranges[-1].last + 1 == delivery.first:
                ranges[-1].last = delivery.serial
            else:
                ranges.append(SerialRange(first=delivery.first, last=delivery.serial))
        return ranges

    def marks(self) -> list[EventMark]:
        """What has become of single events since last asked; not of deliveries taken as a whole."""
        marks, self._marks = self._marks, []
        told: list[EventMark] = []
        tells_singly = self._waits_for_former
        for delivery, offset, deliveries in marks:
            if not delivery.serial or delivery.is_told:
                continue
            if delivery.is_taken and not tells_singly:
                continue
            if not deliveries and not delivery.is_read:
                # It was let go of, but a subscription that takes by reading has not read it.
                continue
            newest = told[-1] if told else None
            if (
                newest is not None
                and (newest.serial, newest.last + 1) == (delivery.serial, offset)
                and newest.deliveries == deliveries
            ):
                newest.last = offset
            else:
                told.append(
                    EventMark(
                        serial=delivery.serial, first=offset, last=offset, deliveries=deliveries
                    )
                )
        return told

    @property
    def has_words(self) -> bool:
        """Whether there is anything that was held, and that the broker is to hear of."""
        return bool(self._marks or self._done)

    @property
    def _waits_for_former(self) -> bool:
        """Whether something of a former session is not taken. What has come again of it looks as if
        there were nothing in it."""
        return bool(self._open) and self._open[0].serial == 0 and not self._open[0].is_taken

    # ---- connections and sessions ---------------------------------------------------------------

    def tell_again(self) -> None:
        """The session goes on with another connection: nobody knows what the broker has heard."""
        self._marks, self._done = [], []
        for delivery in self._open:
            delivery.is_told = False
            if delivery.is_taken:
                self._done.append(delivery)
                continue
            self._marks += [(delivery, offset, 0) for offset in sorted(delivery.acked)]
            self._marks += [(delivery, offset, n) for offset, n in delivery.handed.items()]

    def begin_anew(self, serial: int = 0) -> None:
        """Another session has begun, whose first delivery is the one after this serial."""
        self._marks, self._done = [], []
        self._noted = serial
        for delivery in self._open:
            delivery.first = delivery.serial = 0
