"""The log of a recorded broker, as a file that grows until it is as long as it may be.

What is appended is in the file within a second, and at once where the core failed. A disk that does
not take it ends the log, not the broker.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from pathlib import Path

from google.protobuf.message import Message

from broker_agent.process_settings import RecordSettings
from broker_agent.recording.log_format import GZIP_BITS, framed
from dynatops.v1.stimulus_pb2 import Stimulus

SUFFIX = ".stimuli.gz"
_FLUSH_S = 1.0
# Recording is not to be what a broker spends its time on.
_ZIP_LEVEL = 1

log = logging.getLogger(__name__)


class StimulusFileError(Exception):
    """There can be no log; the message says why."""


class StimulusFile:
    """Implements `recorded_broker.LogWriter`."""

    def __init__(self, settings: RecordSettings, began_ms: int) -> None:
        """Raises StimulusFileError."""
        folder = Path(settings.dir)
        self.path = folder / f"{began_ms}{SUFFIX}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_oldest(folder, settings.files_max - 1)
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StimulusFileError(
                f"cannot record to {self.path} (record.dir): {error.strerror}"
            ) from error
        self.inputs = 0
        self._bytes_max = settings.bytes_max
        self._bytes = 0
        self._zip = zlib.compressobj(_ZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
        self._flushed_s = time.monotonic()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether it takes anything still."""
        return self._is_open

    def append(self, record: Message) -> None:
        if not self._is_open:
            return
        self.inputs += 1
        self._write(self._zip.compress(framed(record)))
        if self._bytes > self._bytes_max:
            self._end(is_full=True)
            log.warning("%s is as long as it may be (record.bytes_max): no more inputs", self.path)
        elif time.monotonic() - self._flushed_s >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        if self._is_open:
            self._flushed_s = time.monotonic()
            self._write(self._zip.flush(zlib.Z_SYNC_FLUSH))

    def sync(self) -> None:
        """What was appended is to outlive the machine."""
        self.flush()
        if self._is_open:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """The broker ends."""
        if self._is_open:
            self._end(is_full=False)

    def _end(self, *, is_full: bool) -> None:
        ended = Stimulus(ended=Stimulus.LogEnded(is_full=is_full))
        self._write(self._zip.compress(framed(ended)) + self._zip.flush(zlib.Z_FINISH))
        if self._is_open:
            self._is_open = False
            os.close(self._fd)

    def _write(self, raw: bytes) -> None:
        left = memoryview(raw)
        try:
            while left and self._is_open:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._give_up(error)
        self._bytes += len(raw)

    def _give_up(self, error: OSError) -> None:
        self._is_open = False
        os.close(self._fd)
        log.error("%s cannot be written, and ends here: %s", self.path, error.strerror)


def _remove_oldest(folder: Path, left_max: int) -> None:
    """Of the broker's former lives; their names are the times when they began."""
    logs = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: (len(path.name), path.name))
    for path in logs[: max(0, len(logs) - left_max)]:
        path.unlink()
