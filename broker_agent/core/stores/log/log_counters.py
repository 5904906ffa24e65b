"""What the log of a store counts. Names and meanings here are the ones shown to operators."""

from __future__ import annotations

from dataclasses import dataclass

from dynatops.kit.counters import counter


@dataclass(slots=True)
class LogCounters:
    log_events_stored: int = counter("Events written to the store's log, and synced.")
    log_bytes_written: int = counter("Bytes written to segments, frames included.")
    log_syncs: int = counter("Groups of events that were synced.")
    log_rows_repeated: int = counter("Rows that the log had already.")
    log_appends_refused: int = counter("Appends that were refused: full, failed, or too many.")
    log_reads_refused: int = counter("Reads that were refused, as too many waited.")
    log_events_read: int = counter("Events read from the log.")
    log_frames_damaged: int = counter("Frames that were not what had been written; quarantined.")
    log_bytes_cut: int = counter("Bytes of torn ends, never acknowledged, cut after a crash.")
    log_ranges_given_up: int = counter("Ranges that a unit with too many holes had to give up.")
    log_indexes_dropped: int = counter("Indexes of segments that had to leave memory for others.")
    log_indexes_rebuilt: int = counter("Indexes made anew, as their file was damaged or missing.")
    log_segments_dropped: int = counter("Segments dropped, as nothing in them is retained.")
    log_segments_rewritten: int = counter("Segments written anew without what is not retained.")
    log_events_expired: int = counter("Events dropped by age, size or number.")
    log_events_compacted: int = counter("Events dropped, as there is a later one of their key.")
    log_keys_skipped: int = counter("Events kept, as a compaction had more keys than it may.")
    log_notices_dropped: int = counter("Notices that nobody took in time.")
