"""Whole files in a lake: the schemas of its tables for pyarrow, and how a file gets there.

Where files are renamed, one is written below `_tmp`, made sure to be on disk, and renamed; where
they are uploaded, one goes up under its own name, in one request. Either way it is whole under its
own name, or not there; and the same file may be added again, if it is not known whether it arrived.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from dynatops.lake.fields import (
    UNFINISHED,
    FieldType,
    Table,
    file_owner,
    part_name,
    partition_path,
)
from dynatops.lake.store_errors import explained
from dynatops.lake.store_urls import LakeError
from dynatops.lake.stores import TIMEOUT_S, LakeStore, Location, locate

__all__ = ["Lake", "LakeError", "WholeFile", "arrow_schema"]

_TYPES = {
    FieldType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    FieldType.DOUBLE: pa.float64(),
    FieldType.INT64: pa.int64(),
    FieldType.STRING: pa.string(),
}
# Below `_tmp`: what a broker writes when it starts, to see whether it can.
_TRIAL = "trial."


def arrow_schema(table: Table) -> pa.Schema:
    """Without the partition columns, which files do not have."""
    return pa.schema([pa.field(f.name, _TYPES[f.type], f.nullable) for f in table.fields])


@dataclass(frozen=True, slots=True)
class WholeFile:
    """What is to be in a lake under a name of its own: once it was tried, the same for ever."""

    table: str
    # Below the lake.
    folder: str
    name: str
    rows: int
    content: pa.Buffer

    @property
    def nbytes(self) -> int:
        return int(self.content.size)


@dataclass(frozen=True, slots=True)
class Lake:
    location: Location

    @classmethod
    def open(cls, url: str, *, timeout_s: float = TIMEOUT_S) -> Lake:
        """Touches nothing yet. Raises LakeError."""
        return cls(locate(url, timeout_s))

    @property
    def root(self) -> str:
        return self.location.path

    @property
    def store(self) -> LakeStore:
        return self.location.store

    @property
    def filesystem(self) -> pafs.FileSystem:
        """Raises OSError."""
        return self.store.filesystem

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def has(self, name: str) -> bool:
        """Whether there is a folder of this name with something in it. Raises OSError."""
        selector = pafs.FileSelector(self.path(name), allow_not_found=True)
        with explained(self.location):
            return bool(self.filesystem.get_file_info(selector))

    def must_be(self) -> None:
        """Whether what is to hold the lake is there, if nothing was found in it. Raises OSError."""
        if not self.store.renames:
            with explained(self.location):
                # Of a bucket that is not there, lists are empty.
                bucket = self.root.partition("/")[0]
                self.filesystem.get_file_info(pafs.FileSelector(bucket))

    # ---- files ----------------------------------------------------------------------------------

    def whole_files(
        self, table: Table, hour_s: float, name: str, content: pa.Table
    ) -> Iterator[WholeFile]:
        """What is to be added for rows of one hour: one file, or as many as the store wants.

        Columns may be encoded as dictionaries; in the file they have the schema's types.
        """
        folder = f"{table.name}/{partition_path(hour_s)}"
        parquet = _parquet(content)
        most = self.store.upload_bytes_max
        if most is None or parquet.size <= most or len(content) < 2:
            yield WholeFile(table.name, folder, name, len(content), parquet)
            return
        half = len(content) // 2
        for number, rows in enumerate((content[:half], content[half:])):
            yield from self.whole_files(table, hour_s, part_name(name, number), rows)

    def add(self, file: WholeFile) -> None:
        """Raises OSError; then it may be there all the same, and is to be added again."""
        with explained(self.location):
            if self.store.renames:
                self._write_and_rename(file)
            else:
                self._upload(self.path(file.folder, file.name), file.content)

    def write(self, table: Table, hour_s: float, name: str, content: pa.Table) -> int:
        """Add rows of one hour; their size in bytes. Raises OSError."""
        size = 0
        for file in self.whole_files(table, hour_s, name, content):
            self.add(file)
            size += file.nbytes
        return size

    def _write_and_rename(self, file: WholeFile) -> None:
        unfinished = self.path(UNFINISHED, f"{file.table}.{file.name}")
        folder = self.path(file.folder)
        self.filesystem.create_dir(self.path(UNFINISHED))
        try:
            self._upload(unfinished, file.content)
            self._make_sure(unfinished)
            self.filesystem.create_dir(folder)
            self.filesystem.move(unfinished, f"{folder}/{file.name}")
        except OSError:
            self._remove([unfinished])
            raise

    def _upload(self, path: str, content: pa.Buffer) -> None:
        # Closed by hand, whatever happens: a stream that is merely forgotten sends what it has
        # while it holds the interpreter's lock, and with it everybody in this process.
        stream = self.filesystem.open_output_stream(path)
        try:
            stream.write(content)
        finally:
            stream.close()

    def _make_sure(self, path: str) -> None:
        """A renamed file of which nothing is on disk yet would be a half one after a crash."""
        if self.store.is_local:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # ---- what is unfinished ---------------------------------------------------------------------

    def try_out(self, owner: str) -> None:
        """See whether this owner can write, and remove what its former lives left. Raises
        OSError."""
        trial = self.path(UNFINISHED, f"{_TRIAL}{owner}")
        with explained(self.location):
            if self.store.renames:
                self.filesystem.create_dir(self.path(UNFINISHED))
                self._remove_unfinished(owner)
            else:
                self._upload(trial, pa.py_buffer(owner.encode()))
                # Whoever may not delete leaves the same small object each time.
                self._remove([trial])

    def unfinished(self) -> list[str]:
        """Files that somebody is writing, or was when it crashed. Raises OSError."""
        selector = pafs.FileSelector(self.path(UNFINISHED), allow_not_found=True)
        with explained(self.location):
            found = self.filesystem.get_file_info(selector)
        return sorted(info.path for info in found if not info.base_name.startswith(_TRIAL))

    def _remove_unfinished(self, owner: str) -> None:
        self._remove(
            path
            for path in self.unfinished()
            if file_owner(path.rpartition("/")[2].partition(".")[2]) == owner
        )

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            # It is not there, or will be removed at the next start.
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(path)


def _parquet(content: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    # Types come from the file alone: dictionaries are how it is encoded, no type.
    pq.write_table(content, sink, compression="zstd", store_schema=False)
    return sink.getvalue()
