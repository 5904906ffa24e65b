"""Files of a log, in memory, on a disk that does what it is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_agent.core.stores.log.log_files import LogFilesError


class KeptFiles:
    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self.room_bytes = 1 << 40

    def of(self, name: str) -> bytearray:
        """What is in it, to be changed."""
        return self._files[name]

    def names(self) -> Iterable[str]:
        return list(self._files)

    def _file(self, name: str) -> bytearray:
        if name not in self._files:
            raise LogFilesError(f"there is no {name}")
        return self._files[name]

    def size(self, name: str) -> int:
        return len(self._file(name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        return bytes(self._file(name)[offset : offset + size])

    def create(self, name: str) -> None:
        self._files[name] = bytearray()

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        self._files[name] += b"".join(parts)

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        self._files.setdefault(name, bytearray())[offset : offset + len(data)] = data

    def cut(self, name: str, size: int) -> None:
        del self._files[name][size:]

    def sync(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def free_bytes(self) -> int:
        return self.room_bytes
