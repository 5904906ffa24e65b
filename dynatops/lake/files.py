"""Whole files in a lake: the schemas of its tables for pyarrow, and how a file gets there.

A file is written below `_tmp`, made sure to be on disk where that can be said, and renamed: under
its own name it is whole or not there. Object stores have no rename; there the copy appears whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from dynatops.lake.fields import UNFINISHED, FieldType, Table, file_owner, partition_path

_TYPES = {
    FieldType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    FieldType.DOUBLE: pa.float64(),
    FieldType.INT64: pa.int64(),
    FieldType.STRING: pa.string(),
}


class LakeError(ValueError):
    """There can be no lake there; the message says why."""


def arrow_schema(table: Table) -> pa.Schema:
    """Without the partition columns, which files do not have."""
    return pa.schema([pa.field(f.name, _TYPES[f.type], f.nullable) for f in table.fields])


@dataclass(frozen=True, slots=True)
class Lake:
    filesystem: pafs.FileSystem
    root: str

    @classmethod
    def open(cls, url: str) -> Lake:
        """Touches nothing yet. Raises LakeError."""
        if not url:
            raise LakeError("no URL of a lake is given")
        if "://" not in url and not url.startswith("file:"):
            return cls(pafs.LocalFileSystem(), str(Path(url).expanduser().absolute()))
        try:
            filesystem, root = pafs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise LakeError(f"{url} cannot be opened: {error}") from None
        return cls(filesystem, root.rstrip("/"))

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def has(self, name: str) -> bool:
        """Whether there is a folder of this name with something in it."""
        selector = pafs.FileSelector(self.path(name), allow_not_found=True)
        return bool(self.filesystem.get_file_info(selector))

    def write(self, table: Table, hour_s: float, name: str, content: pa.Table) -> int:
        """Add a file with rows of one hour; its size in bytes. Raises OSError.

        Columns may be encoded as dictionaries; in the file they have the schema's types.
        """
        unfinished = self.path(UNFINISHED, f"{table.name}.{name}")
        folder = self.path(table.name, partition_path(hour_s))
        self.filesystem.create_dir(self.path(UNFINISHED))
        try:
            # Types come from the file alone: dictionaries are how it is encoded, no type.
            pq.write_table(
                content,
                unfinished,
                filesystem=self.filesystem,
                compression="zstd",
                store_schema=False,
            )
            size = int(self.filesystem.get_file_info(unfinished).size or 0)
            self._make_sure(unfinished)
            self.filesystem.create_dir(folder)
            self.filesystem.move(unfinished, f"{folder}/{name}")
        except OSError:
            self._remove([unfinished])
            raise
        return size

    def _make_sure(self, path: str) -> None:
        """A renamed file of which nothing is on disk yet would be a half one after a crash."""
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def unfinished(self) -> list[str]:
        """Files that somebody is writing, or was when it crashed."""
        selector = pafs.FileSelector(self.path(UNFINISHED), allow_not_found=True)
        return sorted(info.path for info in self.filesystem.get_file_info(selector))

    def remove_unfinished(self, owner: str) -> None:
        """What former lives of this broker left behind. Raises OSError."""
        mine = [
            path
            for path in self.unfinished()
            if file_owner(path.rpartition("/")[2].partition(".")[2]) == owner
        ]
        self._remove(mine)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self.filesystem.delete_file(path)
            except OSError:
                # It is not there, or will be removed at the next start.
                continue
