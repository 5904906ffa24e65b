"""Noticing that files have been replaced: certificates are renewed, tokens change, by themselves.

Looked at now and then, because what replaces them (Kubernetes, by a link in a folder above) does so
in ways that a notification of the file itself may miss.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable

from dynatops.kit.background import Supervisor

# Of a file: what changes when another takes its place. None: it is not there.
_Look = tuple[int, int, int] | None


@contextlib.asynccontextmanager
async def watched(
    paths: Iterable[str], period_s: float, call: Callable[[], None], supervisor: Supervisor
) -> AsyncIterator[None]:
    """While in the block, call whenever any of the files has changed; not at all with period 0."""
    if not period_s:
        yield
        return
    looks = {path: _look(path) for path in paths if path}
    watching = supervisor.start("watching files", _watch(looks, period_s, call))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(seen: dict[str, _Look], period_s: float, call: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(period_s)
        now = {path: _look(path) for path in seen}
        if now != seen:
            seen = now
            call()


def _look(path: str) -> _Look:
    try:
        status = os.stat(path)  # noqa: PTH116  # links are followed either way
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
