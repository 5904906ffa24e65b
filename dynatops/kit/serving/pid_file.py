"""The file by which `dynatops leave` finds the broker: its number, and a lock while it is there.

A number alone may be that of another process by now; a lock ends with whoever holds it. No lock is
waited for here but in small steps: whoever waits has other things to do, too.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class PidFileError(Exception):
    """The file cannot be used; the message says why."""


class PidFile:
    """Held by the process whose number is in it."""

    def __init__(self, path: str | Path) -> None:
        """Take it. Raises PidFileError."""
        self._path = Path(path)
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PidFileError(f"cannot write {path}: {error.strerror}") from None
        if not _lock(self._fd):
            os.close(self._fd)
            raise PidFileError(f"{path} belongs to a broker that runs; give each its own")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: str | Path) -> int | None:
    """Whose it is; None if nobody holds it. Raises PidFileError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PidFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        if _lock(fd):
            return None
        number = os.pread(fd, 20, 0).strip()
        return int(number) if number.isdigit() else None
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
