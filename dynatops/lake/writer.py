"""Rows on their way into the lake: taken at once, written by a thread in whole files.

    writer = LakeWriter(lake, settings, broker_id, incarnation)
    writer.start()
    writer.put(SESSIONS, rows)      # from any thread; never waits for a disk
    writer.close()                  # writes what is left

    put --> incoming --thread--> files by table and hour --full, or old--> Lake.write

- What waits is bounded; past the bound rows are dropped and counted.
- A file that cannot be written stays, and is tried again: an outage of the lake costs nothing until
  the buffer is full. It is logged when it begins and when it is over.
- A row is a tuple with the table's fields in their order; times are microseconds since 1970.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dynatops.kit.observing.log_operations import LAKE_FAILED, LAKE_RECOVERED, LAKE_ROWS_LOST
from dynatops.lake.counters import LakeCounters
from dynatops.lake.fields import HOUR_S, TABLES, Table, file_name, owner_name
from dynatops.lake.files import Lake, arrow_schema
from dynatops.lake.lake_settings import LakeSettings

log = logging.getLogger(__name__)

Row = tuple[object, ...]
_HOUR_US = HOUR_S * 1_000_000
# Converted at once: whoever else runs in this process waits for as long.
_BATCH_ROWS = 2_048


@dataclass(slots=True)
class _OpenFile:
    """Rows of one table and hour that are to be a file."""

    since_s: float
    rows: list[Row] = field(default_factory=list)


class LakeWriter:
    def __init__(
        self,
        lake: Lake,
        settings: LakeSettings,
        broker_id: str,
        incarnation: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = LakeCounters()
        self._lake = lake
        self._settings = settings
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._monotonic = monotonic
        self._files_begun = 0
        # Guards the next three, for moments.
        self._lock = threading.Condition()
        self._incoming: deque[tuple[Table, Sequence[Row]]] = deque()
        self._waiting_rows = 0
        self._ending = False
        self._abandoned = False
        # The thread's own.
        self._files: dict[tuple[str, int], _OpenFile] = {}
        self._retry_at_s = 0.0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"lake of {broker_id}", daemon=True)

    @property
    def _where(self) -> dict[str, Any]:
        """In each line of the log."""
        return {"broker": self._broker_id, "lake": self._lake.root}

    # ---- from outside ---------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Take over rows; what there is no room for is dropped."""
        if not rows:
            return
        with self._lock:
            free = self._settings.buffer_rows_max - self._waiting_rows
            taken = rows if len(rows) <= free else rows[: max(free, 0)]
            if self._ending:
                taken = ()
            self._waiting_rows += len(taken)
            if taken:
                self._incoming.append((table, taken))
                self._lock.notify()
        self.counters.lake_rows += len(rows)
        self.counters.lake_rows_dropped += len(rows) - len(taken)

    @property
    def is_failing(self) -> bool:
        """Whether the last file could not be written."""
        return self._is_failing

    @property
    def is_alive(self) -> bool:
        """Whether there is anybody to write what is put."""
        return self._thread.is_alive()

    @property
    def waiting_rows(self) -> int:
        return self._waiting_rows

    def close(self) -> bool:
        """Write what is left, once, and end; whether that was done in time."""
        with self._lock:
            self._ending = True
            self._lock.notify()
        self._thread.join(self._settings.close_timeout_s)
        if self._thread.is_alive():
            self.abandon()
            text = f"the lake took too long: {self._waiting_rows} rows are lost"
            LAKE_ROWS_LOST.log(log, text, **self._where, rows=self._waiting_rows)
            return False
        return True

    def abandon(self) -> None:
        """End without writing anything more."""
        with self._lock:
            self._ending = self._abandoned = True
            self._lock.notify()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._tidy_up()
        while True:
            incoming, is_last = self._wait()
            if self._abandoned:
                return
            for table, rows in incoming:
                self._sort_in(table, rows)
            self._write_due(everything=is_last)
            if is_last:
                self._give_up_rest()
                return

    def _tidy_up(self) -> None:
        try:
            self._lake.remove_unfinished(owner_name(self._broker_id))
        except OSError as error:
            self._failed(error)

    def _wait(self) -> tuple[list[tuple[Table, Sequence[Row]]], bool]:
        """Until there is something to do: what has come, and whether nothing more will."""
        with self._lock:
            if not (self._incoming or self._ending):
                self._lock.wait(self._patience_s())
            incoming = list(self._incoming)
            self._incoming.clear()
            return incoming, self._ending

    def _patience_s(self) -> float | None:
        if not self._files:
            return None
        now_s = self._monotonic()
        oldest_s = min(file.since_s for file in self._files.values())
        due_s = oldest_s + self._settings.file_age_max_s
        if self._is_failing:
            due_s = self._retry_at_s
        return max(due_s - now_s, 0.0)

    def _sort_in(self, table: Table, rows: Iterable[Row]) -> None:
        at = table.names.index(table.time_field)
        now_s = self._monotonic()
        for row in rows:
            hour = row[at] // _HOUR_US  # type: ignore[operator]  # a time, as the table says
            file = self._files.get((table.name, hour))
            if file is None:
                file = self._files[table.name, hour] = _OpenFile(now_s)
            file.rows.append(row)

    def _write_due(self, *, everything: bool) -> None:
        now_s = self._monotonic()
        if self._is_failing and now_s < self._retry_at_s and not everything:
            return
        full = self._settings.file_rows_max
        for key, file in list(self._files.items()):
            is_old = everything or now_s >= file.since_s + self._settings.file_age_max_s
            while len(file.rows) >= full or (is_old and file.rows):
                if not self._write(key, file.rows[:full]):
                    return
                del file.rows[:full]
                file.since_s = now_s
            if not file.rows:
                del self._files[key]

    def _write(self, key: tuple[str, int], rows: list[Row]) -> bool:
        """Whether these rows need not be kept any longer."""
        table, hour = TABLES[key[0]], key[1]
        if self._abandoned:
            return False
        try:
            content = _content(table, rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            log.exception("%d rows for %s are no such rows, and are lost", len(rows), table.name)
            self._done_with(rows)
            self.counters.lake_rows_lost += len(rows)
            return True
        self._files_begun += 1
        name = file_name(self._broker_id, self._incarnation, self._files_begun)
        try:
            size = self._lake.write(table, hour * HOUR_S, name, content)
        except (OSError, pa.ArrowException) as error:
            self._failed(error)
            return False
        if self._is_failing:
            self._is_failing = False
            text = f"the lake at {self._lake.root} can be written to again"
            counted = {"files": self.counters.lake_files, "rows": self._waiting_rows}
            LAKE_RECOVERED.log(log, text, **self._where, **counted)
        self._done_with(rows)
        self.counters.lake_files += 1
        self.counters.lake_file_bytes += size
        self.counters.lake_rows_written += len(rows)
        return True

    def _done_with(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self._waiting_rows -= len(rows)

    def _failed(self, error: Exception) -> None:
        self.counters.lake_failures += 1
        self._retry_at_s = self._monotonic() + self._settings.retry_s
        if not self._is_failing:
            LAKE_FAILED.log(
                log,
                f"the lake at {self._lake.root} cannot be written to: {error}; trying again every "
                f"{self._settings.retry_s:g} s, rows wait while there is room for them",
                **self._where,
                error=str(error),
                rows=self._waiting_rows,
            )
        self._is_failing = True

    def _give_up_rest(self) -> None:
        lost = sum(len(file.rows) for file in self._files.values())
        self.counters.lake_rows_lost += lost
        if lost:
            text = f"{lost} rows could not be written to the lake, and are lost"
            LAKE_ROWS_LOST.log(log, text, **self._where, rows=lost)


def _content(table: Table, rows: Sequence[Row]) -> pa.Table:
    """In batches: converting holds everybody up who waits for the interpreter."""
    schema = arrow_schema(table)
    batches = []
    for first in range(0, len(rows), _BATCH_ROWS):
        # Let the event loop go first.
        time.sleep(0)
        columns = zip(*rows[first : first + _BATCH_ROWS], strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema)
