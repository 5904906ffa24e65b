"""Rows on their way into the lake: taken at once, written by a thread in whole files.

    writer = LakeWriter(lake, settings, broker_id, incarnation)
    writer.start()
    writer.put(SESSIONS, rows)      # from any thread; never waits for a store
    writer.look()                   # now and then: says it if a call does not come back
    writer.close()                  # writes what is left

    put --> incoming --thread--> files by table and hour --full, or old--> sealed --> Lake.add

- What waits is bounded; past the bound rows are dropped, counted, and that is said once.
- A file that is due is sealed: it has its name and its bytes, and keeps both however often it is
  tried. A try that failed may have arrived; the next one puts the same file in the same place.
- What fails is tried again after longer and longer pauses: an outage of the lake costs nothing
  until the buffer is full. It is logged when it begins, when it becomes another, and at its end.
- Only the thread calls the store, one call at a time. It may hang in one for as long as the store
  likes: nobody waits for it but `close`, and that not for long.
- A row is a tuple with the table's fields in their order; times are microseconds since 1970.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dynatops.kit.observing.log_operations import (
    LAKE_FAILED,
    LAKE_RECOVERED,
    LAKE_ROWS_DROPPED,
    LAKE_ROWS_LOST,
    LAKE_STALLED,
)
from dynatops.lake.counters import LakeCounters
from dynatops.lake.fields import HOUR_S, TABLES, Table, file_name, owner_name
from dynatops.lake.files import Lake, WholeFile, arrow_schema
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.store_errors import Trouble, store_error
from dynatops.lake.stores import call_max_s

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
        # Guards the next five, for moments.
        self._lock = threading.Condition()
        self._incoming: deque[tuple[Table, Sequence[Row]]] = deque()
        self._waiting_rows = 0
        self._is_dropping = False
        self._ending = False
        self._abandoned = False
        # The thread's own.
        self._files: dict[tuple[str, int], _OpenFile] = {}
        self._sealed: deque[WholeFile] = deque()
        self._is_tried_out = False
        self._failures = 0
        self._retry_at_s = 0.0
        self._dropped_before = 0
        # Brokers that were told the same by a store do not come back at the same moment.
        self._random = random.Random(broker_id)
        # The thread's too; others read them.
        self._trouble: Trouble | None = None
        self._calling_since_s: float | None = None
        # Of the call that was said to hang.
        self._said_of_s: float | None = None
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
            begins_to_drop = len(taken) < len(rows) and not (self._is_dropping or self._ending)
            self._is_dropping |= begins_to_drop
            if self._ending:
                taken = ()
            self._waiting_rows += len(taken)
            if taken:
                self._incoming.append((table, taken))
                self._lock.notify()
        self.counters.lake_rows += len(rows)
        self.counters.lake_rows_dropped += len(rows) - len(taken)
        if begins_to_drop:
            text = (
                f"{self._waiting_rows:,} rows wait for the lake at {self._lake.root}, no more may: "
                "further ones are dropped and counted"
            )
            LAKE_ROWS_DROPPED.log(log, text, **self._where, rows=self._waiting_rows)

    def look(self) -> None:
        """Say it, once, if the thread hangs in a call."""
        since_s = self._calling_since_s
        if self._hangs(since_s) and since_s != self._said_of_s:
            self._said_of_s = since_s
            seconds = self._monotonic() - (since_s or 0.0)
            text = (
                f"the lake at {self._lake.root} has not answered a call for {seconds:.0f} s; "
                "nothing is written meanwhile, rows wait while there is room for them: look at the "
                "store, or at the mount"
            )
            LAKE_STALLED.log(log, text, **self._where, seconds=seconds, rows=self._waiting_rows)

    def _hangs(self, since_s: float | None) -> bool:
        if since_s is None:
            return False
        return self._monotonic() - since_s > call_max_s(self._settings.timeout_s)

    @property
    def is_failing(self) -> bool:
        """Whether the last call failed, or does not come back."""
        return self._trouble is not None or self._hangs(self._calling_since_s)

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
            lost = self._waiting_rows
            self.counters.lake_rows_lost += lost
            text = (
                f"the lake at {self._lake.root} took too long: {lost} rows are lost, but for those "
                "that it may be taking now"
            )
            LAKE_ROWS_LOST.log(log, text, **self._where, rows=lost)
            return False
        return True

    def abandon(self) -> None:
        """End without writing anything more."""
        with self._lock:
            self._ending = self._abandoned = True
            self._lock.notify()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._try_out()
        while True:
            incoming, is_last = self._wait()
            if self._abandoned:
                return
            for table, rows in incoming:
                self._sort_in(table, rows)
            self._write_due(everything=is_last)
            if self._abandoned:
                return
            if is_last:
                self._give_up_rest()
                return

    def _try_out(self) -> bool:
        """What is wrong with the lake shows when the broker starts, not when a file is full."""
        owner = owner_name(self._broker_id)
        self._is_tried_out = self._call(lambda: self._lake.try_out(owner))
        return self._is_tried_out

    def _wait(self) -> tuple[list[tuple[Table, Sequence[Row]]], bool]:
        """Until there is something to do: what has come, and whether nothing more will."""
        with self._lock:
            if not (self._incoming or self._ending):
                self._lock.wait(self._patience_s())
            incoming = list(self._incoming)
            self._incoming.clear()
            return incoming, self._ending

    def _patience_s(self) -> float | None:
        now_s = self._monotonic()
        if self._trouble is not None:
            return max(self._retry_at_s - now_s, 0.0)
        if not self._files:
            return None
        oldest_s = min(file.since_s for file in self._files.values())
        return max(oldest_s + self._settings.file_age_max_s - now_s, 0.0)

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
        if self._trouble is not None and now_s < self._retry_at_s and not everything:
            return
        if not (self._is_tried_out or self._try_out()) or not self._add_sealed():
            return
        full = self._settings.file_rows_max
        for key, file in list(self._files.items()):
            is_old = everything or now_s >= file.since_s + self._settings.file_age_max_s
            while len(file.rows) >= full or (is_old and file.rows):
                self._seal(key, file.rows[:full])
                del file.rows[:full]
                file.since_s = now_s
                if not self._add_sealed():
                    return
            if not file.rows:
                del self._files[key]

    def _seal(self, key: tuple[str, int], rows: list[Row]) -> None:
        """Make rows a file that is to be added."""
        table, hour = TABLES[key[0]], key[1]
        self._files_begun += 1
        name = file_name(self._broker_id, self._incarnation, self._files_begun)
        try:
            content = _content(table, rows)
            self._sealed += self._lake.whole_files(table, hour * HOUR_S, name, content)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            log.exception("%d rows for %s are no such rows, and are lost", len(rows), table.name)
            self._done_with(len(rows))
            self.counters.lake_rows_lost += len(rows)

    def _add_sealed(self) -> bool:
        """Whether all that is sealed is in the lake."""
        while self._sealed:
            file = self._sealed[0]
            if self._abandoned or not self._call(lambda file=file: self._lake.add(file)):  # type: ignore[misc]
                return False
            if self._abandoned:
                # It has been counted as lost.
                return False
            self._sealed.popleft()
            self._done_with(file.rows)
            self.counters.lake_files += 1
            self.counters.lake_file_bytes += file.nbytes
            self.counters.lake_rows_written += file.rows
        return True

    def _done_with(self, rows: int) -> None:
        with self._lock:
            self._waiting_rows -= rows
            if self._waiting_rows <= self._settings.buffer_rows_max // 2:
                self._is_dropping = False

    def _give_up_rest(self) -> None:
        lost = sum(len(file.rows) for file in self._files.values())
        lost += sum(file.rows for file in self._sealed)
        self.counters.lake_rows_lost += lost
        if lost:
            text = f"{lost} rows could not be written to the lake, and are lost"
            LAKE_ROWS_LOST.log(log, text, **self._where, rows=lost)

    # ---- calls of the store ---------------------------------------------------------------------

    def _call(self, work: Callable[[], None]) -> bool:
        """Whether the store did it."""
        self._calling_since_s = self._monotonic()
        try:
            work()
        except (OSError, pa.ArrowException) as error:
            if not self._abandoned:
                self._failed(error)
            return False
        finally:
            self._calling_since_s = None
        if self._trouble is not None:
            self._recovered()
        return True

    def _failed(self, raised: Exception) -> None:
        error = store_error(raised, self._lake.location)
        self.counters.lake_failures += 1
        settings = self._settings
        # The exponent is bounded: a store may be away for weeks.
        longer_s = settings.retry_s * 2.0 ** min(self._failures, 32)
        self._failures += 1
        pause_s = min(longer_s, settings.retry_max_s) * self._random.uniform(0.5, 1.0)
        self._retry_at_s = self._monotonic() + pause_s
        before, self._trouble = self._trouble, error.trouble
        if before is None:
            self._dropped_before = self.counters.lake_rows_dropped
        if before != error.trouble:
            LAKE_FAILED.log(
                log,
                f"the lake at {self._lake.root} cannot be written to: {error}; trying again after "
                f"{settings.retry_s:g} to {settings.retry_max_s:g} s, rows wait while there is "
                "room for them",
                **self._where,
                trouble=str(error.trouble),
                error=str(error),
                rows=self._waiting_rows,
            )

    def _recovered(self) -> None:
        self._trouble = None
        self._failures = 0
        dropped = self.counters.lake_rows_dropped - self._dropped_before
        text = f"the lake at {self._lake.root} can be written to again"
        if dropped:
            text += f"; {dropped} rows were dropped meanwhile"
        counted = {"files": self.counters.lake_files, "rows": self._waiting_rows}
        LAKE_RECOVERED.log(log, text, **self._where, **counted, dropped=dropped)


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
