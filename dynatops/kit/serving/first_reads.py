"""What strangers say first, read a few at a time.

gRPC hands over whole messages, and has taken all of one, as large as the largest that a broker may
send, before anybody can look at it. As long as nobody knows who opened a stream, what it may take
is therefore shared: it is read from once it has a place, and there are as many places as largest
messages fit into the bound. Whoever means it has said hello before it is asked, and needs a place
for a moment. Who holds one for longer while others wait loses it, and its stream ends.

    waiting --place--> reading --a message--> known for what it is
                          `--held for long, and others wait--> ended

The newest waits least, and whose host holds fewest: one host that opens streams and says nothing
is in the way of itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dynatops.kit.addresses import counted_as

# Of gRPC's algorithms only the first, which leaves all as it is: a few bytes that stand for
# millions are refused before they are unpacked.
NOTHING_COMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
# Of whoever says that it is a broker.
FIRST_FRAME_BYTES_MAX = 64 << 10
# Streams that have not said who they are, and those of one host; further ones are ended.
UNNAMED_MAX = 1_000
UNNAMED_PER_ADDRESS_MAX = 500
# A place is held for so long at least.
PLACE_S = 0.25

Said = TypeVar("Said")


def host_of(peer: str) -> str:
    """Whose a stream is, by what gRPC calls its peer."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return counted_as(host) if host else kind


@dataclass(eq=False, slots=True)
class _Place:
    host: str
    since_s: float
    patience: asyncio.Timeout | None = None
    is_lost: bool = False


@dataclass(eq=False, slots=True)
class _Waiter:
    host: str
    place: asyncio.Future[_Place] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FirstReads:
    def __init__(self, bytes_max: int, message_bytes_max: int, on_lost: Callable[[], None]) -> None:
        self._places_max = max(1, bytes_max // message_bytes_max)
        # Called when a stream has lost its place.
        self._on_lost = on_lost
        # Oldest first.
        self._places: list[_Place] = []
        # As many as there may be streams that nobody knows.
        self._waiting: list[_Waiter] = []
        self._looking: asyncio.TimerHandle | None = None

    async def read(self, host: str, read: Callable[[], Coroutine[Any, Any, Said]]) -> Said | None:
        """What a stream says first; None if it has lost its place to others."""
        place = await self._place(host)
        try:
            async with asyncio.timeout(None) as place.patience:
                return await read()
        except TimeoutError:
            if place.is_lost:
                return None
            raise
        finally:
            self._leave(place)

    async def _place(self, host: str) -> _Place:
        if len(self._places) < self._places_max:
            return self._new_place(host)
        waiter = _Waiter(host)
        self._waiting.append(waiter)
        self._look_soon()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.place.cancelled():
                self._leave(waiter.place.result())
            raise

    def _new_place(self, host: str) -> _Place:
        place = _Place(host, asyncio.get_running_loop().time())
        self._places.append(place)
        return place

    def _leave(self, place: _Place) -> None:
        self._places.remove(place)
        if not self._waiting:
            return
        held = Counter(other.host for other in self._places)
        waiter = min(reversed(self._waiting), key=lambda waiter: held[waiter.host])
        self._waiting.remove(waiter)
        if not waiter.place.done():
            waiter.place.set_result(self._new_place(waiter.host))

    # ---- who has had a place for long ------------------------------------------------------------

    def _look_soon(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(PLACE_S, self._look)

    def _look(self) -> None:
        self._looking = None
        if not self._waiting:
            return
        now_s = asyncio.get_running_loop().time()
        oldest_s = now_s - PLACE_S
        held = Counter(place.host for place in self._places)
        slow = [place for place in self._places if place.since_s <= oldest_s and not place.is_lost]
        slow.sort(key=lambda place: -held[place.host])
        for place in slow[: len(self._waiting)]:
            if place.patience is not None:
                place.is_lost = True
                place.patience.reschedule(now_s)
                self._on_lost()
        self._look_soon()
