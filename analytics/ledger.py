"""Which files of the lake were taken in: remembered beside commits, a little of each.

A file is known by a digest of its name below the table, so that nothing depends on how the lake is
reached. Names are kept for 30 days: a file that turns up with a time more than that before the
newest one's is passed over, whether it was taken in or not. All times are the store's own; files
are taken in by their time, so that after a crash nothing that waits is too old.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.storage.storage import FoundFile, Storage

REMEMBERED_US = 30 * 86_400 * 1_000_000
# So many files of names are put together into one.
SEGMENTS_MAX = 16
_DIGEST_BYTES = 16
_SCHEMA = pa.schema([("name", pa.binary(_DIGEST_BYTES)), ("modified_us", pa.int64())])


class FileLedger:
    """Names that were taken in, 24 bytes each."""

    def __init__(self, names: pa.Table | None = None) -> None:
        self._names = names if names is not None else _SCHEMA.empty_table()

    @classmethod
    def read(cls, storage: Storage, paths: Sequence[str]) -> FileLedger:
        segments = [pq.read_table(pa.BufferReader(_content(storage, path))) for path in paths]
        return cls(pa.concat_tables(segments)) if segments else cls()

    def new_files(self, found: Iterable[FoundFile], newest_us: int | None) -> list[FoundFile]:
        """Those that were never taken in, oldest first; `newest_us` is that of those that were."""
        horizon_us = -1 if newest_us is None else newest_us - REMEMBERED_US
        recent = [file for file in found if file.modified_us >= horizon_us]
        names = _table_of(recent)["name"]
        known = pc.is_in(names, value_set=self._names["name"]).to_pylist()
        fresh = [file for file, is_known in zip(recent, known, strict=True) if not is_known]
        return sorted(fresh, key=lambda file: (file.modified_us, file.name))

    def with_files(self, files: Iterable[FoundFile]) -> FileLedger:
        return FileLedger(pa.concat_tables([self._names, _table_of(files)]))

    def without_forgotten(self, newest_us: int) -> FileLedger:
        return FileLedger(
            self._names.filter(pc.field("modified_us") >= pa.scalar(newest_us - REMEMBERED_US))
        )

    def content(self) -> bytes:
        stream = io.BytesIO()
        pq.write_table(self._names, stream, compression="zstd")
        return stream.getvalue()


def _content(storage: Storage, path: str) -> bytes:
    return b"".join(storage.blocks(path))


def _table_of(files: Iterable[FoundFile]) -> pa.Table:
    rows = [(_digest(file.name), file.modified_us) for file in files]
    names, times = zip(*rows, strict=True) if rows else ((), ())
    return pa.table([pa.array(names, _SCHEMA[0].type), pa.array(times, pa.int64())], schema=_SCHEMA)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
