"""One history of the client's core, as its reader waits for it: parts, the end, or an error.

What is not there a moment after a connection was lost may be there soon: the new broker may not
know of the stores yet. So it is asked for again a few times before that is an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dynatops.client.core.histories import Histories, PastEnd, PastPart
from dynatops.client.errors import HistoryError
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import PastError

_AGAIN_S = 0.5
_TIMES_AGAIN_MAX = 20
# After these it may be there in a moment, if another broker had it.
_PASSING = frozenset(
    {
        PastError.PAST_ERROR_NOT_STORED,
        PastError.PAST_ERROR_OVERLOADED,
        PastError.PAST_ERROR_UNAVAILABLE,
    }
)


class PastSource:
    def __init__(
        self,
        histories: Histories,
        number: int,
        pattern: str,
        wake: Callable[[], None],
        upto: Sequence[Cursor] = (),
    ) -> None:
        """`wake`: there is something to say."""
        self.number = number
        self.pattern = pattern
        self._histories = histories
        self._wake = wake
        self._came: deque[PastPart | PastEnd] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._times_again = 0
        self._upto = upto

    # ---- the client's side ----------------------------------------------------------------------

    def put(self, item: PastPart | PastEnd) -> None:
        self._came.append(item)
        self._rouse()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._rouse()

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the reader's side ----------------------------------------------------------------------

    async def next_part(self) -> PastPart | None:
        """None: that was all, as of now. Raises HistoryError, and ClosedError once the client is
        closed."""
        while True:
            item = await self._next()
            if isinstance(item, PastPart):
                self._times_again = 0
                return item
            if not item.error:
                return None
            if not self._may_pass(item):
                raise error_of(self.pattern, item)
            self._times_again += 1
            await asyncio.sleep(_AGAIN_S)
            self.ask_again(self._upto)

    def _may_pass(self, end: PastEnd) -> bool:
        return end.went_on and end.error in _PASSING and self._times_again < _TIMES_AGAIN_MAX

    async def _next(self) -> PastPart | PastEnd:
        while not self._came:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._came.popleft()

    def taken(self, part: PastPart) -> None:
        """The application has had it: as much may come."""
        self._histories.taken(self.number, part.nbytes)
        self._wake()

    def ask_again(
        self, upto: Sequence[Cursor] = (), beyond: Sequence[Cursor] = (), *, whole: bool = False
    ) -> None:
        """After the end: see `Histories.ask_again`."""
        self._upto = upto
        self._histories.ask_again(self.number, upto, beyond, whole=whole)
        self._wake()


def error_of(pattern: str, end: PastEnd) -> HistoryError:
    code = PastError.Name(end.error).removeprefix("PAST_ERROR_").lower()
    return HistoryError(pattern, code, end.message)
