"""Work that goes on behind the scenes of a process, and is missed when it ends.

    supervisor = Supervisor()
    supervisor.start("ticks", self._tick_forever())
    failure = await supervisor.failure()       # beside whatever else ends the process

A task that nobody awaits takes its exception with it: a broker goes on without its ticks, and says
that it is alive. So work that is to last as long as the process is started here. If it raises, or
ends although nobody has stopped it, that is logged with its traceback, and ends the process with
`EXIT_CODE`: it is started again, and whole then. What lasts only as long as a function is run by
`until_one_ends`, or is awaited where it was made; `tests/unit/test_background.py` knows those.

Not here: how a process ends. That is for whoever runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn

# Of a process whose own work failed (EX_SOFTWARE of sysexits.h): a bug, or a machine that is not
# well. What could not be done as asked ends with 1.
EXIT_CODE = 70
# Work that is told to end and goes on all the same is told so again after this.
_TOLD_AGAIN_S = 5.0

Work = Coroutine[Any, Any, object]

log = logging.getLogger(__name__)


class BackgroundError(Exception):
    """Work that was to go on has ended; its cause is what it raised, if it did."""

    def __init__(self, name: str, cause: BaseException | None = None) -> None:
        said = f"failed: {cause!r}" if cause is not None else "ended, although it was to go on"
        super().__init__(f"{name} {said}")
        self.name = name
        self.__cause__ = cause


class Supervisor:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._failed = asyncio.Event()
        self._failure: BackgroundError | None = None
        self._stopping = False

    @property
    def failed(self) -> BackgroundError | None:
        """The first failure; what fails after it follows from it, perhaps."""
        return self._failure

    async def failure(self) -> BackgroundError:
        """Wait for it."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def start(self, name: str, work: Work, *, may_end: bool = False) -> asyncio.Task[object]:
        """For as long as the process lives. What `may_end` has something to get done; what is
        cancelled was told to end."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        # The loop itself holds tasks weakly.
        self._tasks.add(task)

        def done(ended: asyncio.Task[object]) -> None:
            self._tasks.discard(ended)
            if ended.cancelled():
                return
            cause = ended.exception()
            if cause is not None:
                self.fail(BackgroundError(name, cause))
            elif not may_end and not self._stopping:
                self.fail(BackgroundError(name))

        task.add_done_callback(done)
        return task

    def fail(self, failure: BackgroundError) -> None:
        """The process cannot go on."""
        log.critical("%s; this process ends", failure, exc_info=failure.__cause__)
        if self._failure is None:
            self._failure = failure
            self._failed.set()

    async def stop(self) -> None:
        """Cancel everything, and wait until it is over."""
        self._stopping = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            # Libraries have swallowed it: work that goes on is told again.
            await asyncio.wait(tasks, timeout=_TOLD_AGAIN_S)
            self._tasks.difference_update([task for task in tasks if task.done()])


async def _logged(name: str, work: Work) -> None:
    try:
        await work
    except Exception:
        log.exception("%s failed", name)


_finishing: set[asyncio.Task[None]] = set()


def finish(name: str, work: Work) -> None:
    """Let it come to its end although nobody waits for it: something is to be closed."""
    task = asyncio.get_running_loop().create_task(_logged(name, work), name=name)
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)


def end_now(code: int = 0) -> NoReturn:
    """End this process, which has done its work, although a thread of it hangs in foreign code."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Whoever was to read it may be gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_within(seconds: float) -> None:
    """Whatever still waits in the way, this process ends by then: it has failed."""
    timer = threading.Timer(seconds, os._exit, (EXIT_CODE,))
    timer.daemon = True
    timer.start()


async def until_one_ends(*works: Work) -> None:
    """Run them side by side until the first ends, or this is cancelled; then all end. Raises what
    the first of them raised, in the order in which they are given."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
