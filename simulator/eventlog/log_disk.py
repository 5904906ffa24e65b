"""A disk for logs that does what disks do: files in memory, which a crash leaves as it pleases.

What was not synced when it crashes is there or is not, in sectors, each by itself; a file whose
making or renaming had not returned is there or is not. That is an honest disk. On demand it is
full, a sync fails, a sync does nothing and says that all is well (`lies`), and bits flip. What it
did against its word, it remembers: checkers ask whether that was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from broker_agent.core.stores.log.log_files import LogDiskFullError, LogFilesError

_SECTOR_BYTES = 512


@dataclass(slots=True)
class _SimulatedFile:
    written: bytearray = field(default_factory=bytearray)
    # What a crash leaves for certain.
    synced: bytes = b""
    # From where to where a failed sync has left it in memory alone: the system takes it for
    # written, and no later sync brings it to the disk, unless it is written again.
    forgotten: tuple[int, int] = (0, 0)


class SimulatedLogDisk:
    """A `LogFiles`."""

    def __init__(self, rng: Random, capacity_bytes: int = 1 << 40) -> None:
        self._rng = rng
        self._files: dict[str, _SimulatedFile] = {}
        self.capacity_bytes = capacity_bytes
        # The next syncs do nothing, or fail.
        self.lies = 0
        self.sync_failures = 0
        # The next calls that change something succeed; all after them do not happen.
        self.power_left: int | None = None
        # How often it has done what it should not; and syncs that did nothing.
        self.betrayals = 0
        self.lied = 0
        # The files that bits flipped in, or that went.
        self.betrayed: set[str] = set()
        self.syncs = 0

    # ---- what a log asks for --------------------------------------------------------------------

    def names(self) -> Iterable[str]:
        return list(self._files)

    def size(self, name: str) -> int:
        return len(self._file(name).written)

    def read(self, name: str, offset: int, size: int) -> bytes:
        return bytes(self._file(name).written[offset : offset + size])

    def create(self, name: str) -> None:
        self._spend_power()
        if name in self._files:
            raise LogFilesError(f"{name} is there already")
        self._files[name] = _SimulatedFile()

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        file = self._file(name)
        data = b"".join(parts)
        room = self.free_bytes()
        if self.power_left == 0:
            # The machine dies while it writes.
            file.written += data[: self._rng.randrange(len(data) + 1)]
        self._spend_power()
        file.written += data[:room]
        if len(data) > room:
            raise LogDiskFullError("no space left on device")

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        self._spend_power()
        file = self._files.setdefault(name, _SimulatedFile())
        file.written[offset : offset + len(data)] = data
        start, end = file.forgotten
        if offset <= start:
            file.forgotten = min(max(start, offset + len(data)), end), end

    def cut(self, name: str, size: int) -> None:
        self._spend_power()
        del self._file(name).written[size:]

    def sync(self, name: str) -> None:
        self._spend_power()
        file = self._file(name)
        self.syncs += 1
        if self.sync_failures:
            self.sync_failures -= 1
            file.forgotten = len(file.synced), len(file.written)
            raise LogFilesError(f"{name} could not be synced: input/output error")
        if self.lies:
            self.lies -= 1
            self.betrayals += 1
            self.lied += 1
            return
        start, end = file.forgotten
        gap = bytes(max(min(end, len(file.written)) - start, 0))
        file.synced = b"".join((file.written[:start], gap, file.written[start + len(gap) :]))

    def rename(self, old: str, new: str) -> None:
        self._spend_power()
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        self._spend_power()
        self._files.pop(name, None)

    def free_bytes(self) -> int:
        used = sum(len(file.written) for file in self._files.values())
        return max(self.capacity_bytes - used, 0)

    # ---- what happens to it ---------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies; what it wrote is in the machine's memory, and is there."""
        self.power_left = None

    def crash(self) -> None:
        """The machine loses power."""
        self.power_left = None
        for file in self._files.values():
            file.written = bytearray(self._after_crash(file.synced, bytes(file.written)))
            file.synced = bytes(file.written)
            file.forgotten = 0, 0

    def _after_crash(self, synced: bytes, written: bytes) -> bytes:
        if synced == written:
            return written
        size = self._rng.randint(min(len(synced), len(written)), len(written))
        left = bytearray(written[:size])
        for start in range(0, size, _SECTOR_BYTES):
            end = min(start + _SECTOR_BYTES, size)
            if left[start:end] != synced[start:end] and self._rng.random() < 0.5:
                old = synced[start:end]
                left[start:end] = old + bytes(end - start - len(old))
        return bytes(left)

    def flip_bit(self, name: str, offset: int, bit: int) -> None:
        file = self._file(name)
        file.written[offset] ^= 1 << bit
        file.synced = bytes(file.written) if offset < len(file.synced) else file.synced
        self.betrayals += 1
        self.betrayed.add(name)

    def lose_file(self, name: str) -> None:
        del self._files[name]
        self.betrayals += 1
        self.betrayed.add(name)

    def _file(self, name: str) -> _SimulatedFile:
        if name not in self._files:
            raise LogFilesError(f"there is no {name}")
        return self._files[name]

    def _spend_power(self) -> None:
        if self.power_left is None:
            return
        if self.power_left == 0:
            raise PowerLostError
        self.power_left -= 1


class PowerLostError(Exception):
    """The machine is off; nobody catches this but whoever switched it off."""
