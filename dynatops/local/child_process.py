"""A broker or a manager as a child of this process: the command is started, waited for until it
says where it listens, and told to stop or killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, Self

_STOP_TIMEOUT_S = 15.0


class ProcessLog:
    """Where a process says what it says: in no pipe, as a process that writes to a full one
    stands still, and nobody reads while all is well."""

    def __init__(self) -> None:
        self.fd, path = tempfile.mkstemp(prefix="dynatops-")
        os.unlink(path)  # noqa: PTH108  # the file lives as long as somebody has it open
        weakref.finalize(self, os.close, self.fd)

    def text(self) -> str:
        """What it has said so far."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, size, 0).decode(errors="replace").strip()


class ChildProcess:
    def __init__(
        self, name: str, process: asyncio.subprocess.Process, facts: Any, log: ProcessLog
    ) -> None:
        """`facts` are those of its first line."""
        self._log = log
        self.name = name
        # For brokers, and for clients or people.
        self.address: str = facts["address"]
        # Probes and metrics, or REST; empty if it has none.
        self.http: str = facts.get("http", "")
        self.process = process

    @classmethod
    async def spawn(
        cls, name: str, arguments: Sequence[str], failure: type[Exception] = RuntimeError
    ) -> Self:
        """`arguments` of `dynatops`, which has to say its addresses as JSON. Raises `failure`."""
        log = ProcessLog()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dynatops", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=log.fd,
            # Ctrl-C is for the process that started it, which stops it then.
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
        except BaseException:
            # Nobody would know of it.
            process.kill()
            await process.communicate()
            raise
        if not line:
            await process.communicate()
            raise failure(log.text() or f"{arguments[0]} {name} ended at once")
        return cls(name, process, json.loads(line), log)

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    @property
    def said(self) -> str:
        """What it has said on standard error."""
        return self._log.text()

    def kill(self) -> None:
        """SIGKILL: no farewell; a lease runs out by itself."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.process.communicate()
        except TimeoutError:
            self.kill()
            await self.process.communicate()
        return self.process.returncode or 0
