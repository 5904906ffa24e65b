"""How often small frames go out on one stream.

A frame costs some hundred microseconds of processors, whatever is in it: where many small ones
follow each other closely, what comes meanwhile had better wait for the next. A stream that is not
busy never waits, nor does one whose frames are large: time for so many frames is saved up.

    await pacer.turn()          # before the next frame is put together
    await stream.write(frame)
    pacer.wrote(len(frame))
"""

from __future__ import annotations

import asyncio

# Frames a second that a busy stream sends, and so many at once after a rest.
FRAMES_PER_S = 600.0
# Where nobody waits for the next frame who would not wait for an answer to the last one as well.
SELDOM_PER_S = 500.0
_BURST = 20.0
# From here on a frame is worth its cost.
_LARGE_BYTES = 16 << 10


class Pacer:
    __slots__ = ("_left", "_since_s")

    def __init__(self) -> None:
        # Frames that may go at once, as of then.
        self._left = _BURST
        self._since_s = 0.0

    async def turn(self, frames_per_s: float = FRAMES_PER_S) -> None:
        """Wait until another frame may go."""
        if self._left < 1.0:
            pause_s = self.pause_s(asyncio.get_running_loop().time(), frames_per_s)
            if pause_s:
                await asyncio.sleep(pause_s)

    def pause_s(self, now_s: float, frames_per_s: float) -> float:
        """How long to wait now."""
        self._left = min(_BURST, self._left + (now_s - self._since_s) * frames_per_s)
        self._since_s = now_s
        return max(0.0, 1.0 - self._left) / frames_per_s

    def wrote(self, nbytes: int) -> None:
        if nbytes < _LARGE_BYTES:
            self._left -= 1.0
