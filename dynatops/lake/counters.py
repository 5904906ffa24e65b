"""What a broker counts about writing to the lake."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class LakeCounters:
    """Each is changed by one thread only."""

    lake_rows: int = counter("Rows handed over to be written.")
    lake_rows_dropped: int = counter(
        "Rows dropped because too many waited: the lake is slow or cannot be written to."
    )
    lake_rows_written: int = counter("Rows in files that are whole.")
    lake_rows_lost: int = counter(
        "Rows that could not be written: when the broker stopped, or because no file can hold them."
    )
    lake_files: int = counter("Files written.")
    lake_file_bytes: int = counter("Their bytes.")
    lake_failures: int = counter("Times a file could not be written; the log says why, once.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
