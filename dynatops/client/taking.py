"""What of a session's deliveries the application has taken.

A session that outlives its connections keeps what its application has not taken. Deliveries are
spread over subscriptions, which are read at different paces; a delivery is taken when every
subscription has been read past the events that it brought.
"""

from __future__ import annotations

from collections import deque

from dynatops.client.subscription import EventQueue


class Taking:
    def __init__(self) -> None:
        # (serial, for each subscription: how many events it must have given out), ascending.
        self._open: deque[tuple[int, list[tuple[EventQueue, int]]]] = deque()

    def note(self, serial: int, queues: list[EventQueue]) -> None:
        """Everything up to this serial has been put; into these subscriptions since last time."""
        self._open.append((serial, [(queue, queue.put_events) for queue in queues]))

    def taken(self) -> int:
        """The newest serial up to which all has been taken since last asked; 0 if none."""
        serial = 0
        while self._open and all(queue.has_given(n) for queue, n in self._open[0][1]):
            serial = self._open.popleft()[0]
        return serial

    def begin_anew(self) -> None:
        """Another session has begun, whose broker knows nothing of the serials before. What they
        brought must be taken all the same before anything newer counts as taken."""
        self._open = deque((0, required) for _, required in self._open)

    def require(self, queue: EventQueue) -> None:
        """Events that came earlier have been put into this subscription only now."""
        if not self._open:
            self._open.append((0, []))
        self._open[0][1].append((queue, queue.put_events))
