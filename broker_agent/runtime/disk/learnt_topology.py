"""The newest topology that a broker has learnt since it was given a file, on disk.

Operators change the topology of brokers that run; the file that these are started with is as old as
it was. What is here is as a broker gives it to another. It is written whole, and then takes the
place of what was there before.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from overlay.forwarding.topology import Topology, TopologyError

FILE_NAME = "topology.json"

log = logging.getLogger(__name__)


class LearntTopology:
    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / FILE_NAME
        self._version = 0
        self._lock = asyncio.Lock()

    def read(self) -> Topology | None:
        """None if nothing was learnt; what cannot be read is said in the log."""
        try:
            topology = Topology.from_text(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, TopologyError) as error:
            log.error("%s cannot be used, and counts for nothing: %s", self.path, error)
            return None
        self._version = topology.version
        return topology

    async def keep(self, version: int, text: str) -> str:
        """Have it on disk; why it is not, if that cannot be done."""
        async with self._lock:
            if version <= self._version:
                return ""
            try:
                await asyncio.to_thread(self._write, text)
            except OSError as error:
                problem = f"{self.path} cannot be written: {error.strerror or error}"
                log.error("topology version %d is not on disk: %s", version, problem)
                return problem
            self._version = version
            return ""

    def _write(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
