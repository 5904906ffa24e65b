"""What a manager has told the store here to keep, on disk, beside the store's log.

It is written whole, and then takes the place of what was there before. While there is none, or it
is removed, the store keeps what its settings say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker_agent.core.stores.store_options import StoreAssignment
from dynatops.kit.filters import FilterError, check_pattern

FILE_NAME = "assignment.json"

log = logging.getLogger(__name__)


class _WrittenAssignment(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    keep: list[str]
    epoch: int = Field(ge=1)
    fence: int = Field(ge=0)


class AssignmentFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = asyncio.Lock()
        self._epoch = 0

    def read(self) -> StoreAssignment | None:
        """None if no manager has said anything; what cannot be used is said in the log."""
        try:
            written = _WrittenAssignment.model_validate_json(self.path.read_bytes())
            for pattern in written.keep:
                check_pattern(pattern)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError, FilterError) as error:
            log.error("%s cannot be used, and counts for nothing: %s", self.path, error)
            return None
        self._epoch = written.epoch
        return StoreAssignment(tuple(written.keep), written.epoch, written.fence)

    async def remember(self, assignment: StoreAssignment) -> str:
        """Have it on disk; why it is not, if that cannot be done."""
        async with self._lock:
            if assignment.epoch < self._epoch:
                return f"assignment {self._epoch} is newer"
            try:
                await asyncio.to_thread(self._write, assignment)
            except OSError as error:
                problem = f"{self.path} cannot be written: {error.strerror or error}"
                log.error("assignment %d is not on disk: %s", assignment.epoch, problem)
                return problem
            self._epoch = assignment.epoch
            return ""

    def _write(self, assignment: StoreAssignment) -> None:
        content = {
            "keep": list(assignment.patterns),
            "epoch": assignment.epoch,
            "fence": assignment.fence,
        }
        unfinished = self.path.with_suffix(".new")
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
