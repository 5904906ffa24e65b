"""The files of a log, in a folder on a real disk. One process has it at a time.

What returns is what the disk says: a new file is there once its folder has been synced, data once
the file has. Nothing here tries again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker_agent.core.stores.log.log_files import LogDiskFullError, LogFilesError

_LOCK = "lock"
# Files that are held open: what is read lies in few segments.
_OPEN_MAX = 64
# So many parts a call writes at most (IOV_MAX).
_PARTS_MAX = 1024
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskLogFiles:
    """A `LogFiles`. Its constructor makes the folder and locks it. Raises LogFilesError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: OrderedDict[str, int] = OrderedDict()
        with _complaints(f"the folder {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._lock_fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            os.fsync(self._folder_fd)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            message = f"another broker has the log in {folder} open; each needs a folder of its own"
            raise LogFilesError(message) from error

    def close(self) -> None:
        for fd in (*self._open.values(), self._folder_fd, self._lock_fd):
            os.close(fd)
        self._open.clear()

    def names(self) -> Iterable[str]:
        with _complaints(f"the folder {self.folder}"):
            return sorted(entry.name for entry in self.folder.iterdir() if entry.name != _LOCK)

    def size(self, name: str) -> int:
        with _complaints(name):
            return (self.folder / name).stat().st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        with _complaints(name):
            return os.pread(self._fd(name), size, offset)

    def create(self, name: str) -> None:
        with _complaints(name):
            self._keep(name, os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
            os.fsync(self._folder_fd)

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        with _complaints(name):
            fd = self._fd(name)
            os.lseek(fd, 0, os.SEEK_END)
            for start in range(0, len(parts), _PARTS_MAX):
                _write_all(fd, parts[start : start + _PARTS_MAX])

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        with _complaints(name):
            if name not in self._open and not (self.folder / name).exists():
                self._keep(name, os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o644))
            fd = self._fd(name)
            rest = memoryview(data)
            while rest:
                written = os.pwrite(fd, rest, offset)
                rest, offset = rest[written:], offset + written

    def cut(self, name: str, size: int) -> None:
        with _complaints(name):
            os.ftruncate(self._fd(name), size)

    def sync(self, name: str) -> None:
        with _complaints(name):
            os.fdatasync(self._fd(name))

    def rename(self, old: str, new: str) -> None:
        with _complaints(new):
            self._let_go(new)
            self._let_go(old)
            (self.folder / old).rename(self.folder / new)
            os.fsync(self._folder_fd)

    def remove(self, name: str) -> None:
        with _complaints(name):
            self._let_go(name)
            (self.folder / name).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        with _complaints(f"the folder {self.folder}"):
            found = os.fstatvfs(self._folder_fd)
            return found.f_bavail * found.f_frsize

    # ---- open files -----------------------------------------------------------------------------

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            fd = os.open(self.folder / name, os.O_RDWR)
            self._keep(name, fd)
        else:
            self._open.move_to_end(name)
        return fd

    def _keep(self, name: str, fd: int) -> None:
        self._open[name] = fd
        if len(self._open) > _OPEN_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def _let_go(self, name: str) -> None:
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)


def _write_all(fd: int, parts: Sequence[bytes]) -> None:
    wanted = sum(map(len, parts))
    written = os.writev(fd, parts)
    if written < wanted:
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            rest = rest[os.write(fd, rest) :]


@contextmanager
def _complaints(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = LogDiskFullError if error.errno in _NO_ROOM else LogFilesError
        raise kind(f"{what}: {os.strerror(error.errno or errno.EIO)}") from error
