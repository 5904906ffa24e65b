"""The files of a log, as the core sees them. A disk answers in the runtime, and one that lies in
the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class LogFilesError(Exception):
    """The disk did not do what it was asked to; the message says what."""


class LogDiskFullError(LogFilesError):
    """There is no room; some of what was to be written may be in the file."""


class LogFiles(Protocol):
    """One folder, flat. All methods raise LogFilesError."""

    def names(self) -> Iterable[str]: ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Fewer bytes where the file ends."""

    def create(self, name: str) -> None:
        """A new, empty file; once this returns it is there after a power failure, too."""

    def append(self, name: str, parts: Sequence[bytes]) -> None: ...

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """The file is made if there is none."""

    def cut(self, name: str, size: int) -> None:
        """Make it shorter."""

    def sync(self, name: str) -> None:
        """Once this returns, all that was written to it is there after a power failure, too."""

    def rename(self, old: str, new: str) -> None:
        """In place of `new`, if there is one; lasting once this returns. What is in it was
        synced."""

    def remove(self, name: str) -> None:
        """Not an error if there is none."""

    def free_bytes(self) -> int:
        """How much more can be written."""


def replace_file(files: LogFiles, name: str, data: bytes) -> None:
    """All of it or, after a crash, what was there before."""
    temporary = f"{name}.new"
    files.remove(temporary)
    files.create(temporary)
    files.append(temporary, [data])
    files.sync(temporary)
    files.rename(temporary, name)
