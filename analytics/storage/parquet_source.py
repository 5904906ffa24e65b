"""A data source of Spark's, in Python: Parquet in stores of objects, without any jar.

Runs on executors, which have `analytics` from the driver, and pyarrow of their own. What is read
are the files and columns that are asked for, and no more: the driver chooses files, by listings and
manifests, and a frame's schema names the columns.

Every task writes a file whose name nobody else has. The driver gets the names from tasks that came
to their end, one for each part of the frame, and writes them to a manifest: what was repeated, or
finished by a machine that was given up, is in no manifest, and does not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from analytics.storage.store_access import StoreAccess, StorePatience

FORMAT = "dynatops_parquet"
# Options. Spark blots out the value of one with such a name wherever it shows plans.
ACCESS, FILES, PATH_COLUMN, PROBE, FOLDER = (
    "secret_access",
    "files",
    "path_column",
    "probe",
    "folder",
)
MANIFEST = "_manifest.json"
BAD_FILE_SCHEMA = "path string, reason string"

_BATCH_ROWS = 10_000
_REASON_CHARACTERS_MAX = 500
# What every table of Spark's is made to be like in Arrow: times are UTC.
_ZONE = "UTC"


class UnreadableFileError(Exception):
    """It is no Parquet file, or none of this table."""


class ParquetSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return BAD_FILE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        groups = json.loads(self.options[FILES])
        probed = self.options.get(PROBE)
        if probed is not None:
            wanted = to_arrow_schema(StructType.fromJson(json.loads(probed)), timezone=_ZONE)
            return _Prober(self._access(), groups, wanted)
        column = self.options.get(PATH_COLUMN, "")
        arrow = to_arrow_schema(schema, timezone=_ZONE)
        return _Reader(self._access(), groups, arrow, column)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(self._access(), self.options[FOLDER], schema.json())

    def _access(self) -> StoreAccess:
        raw = json.loads(self.options[ACCESS])
        return StoreAccess(**{**raw, "patience": StorePatience(**raw["patience"])})


def access_option(access: StoreAccess) -> str:
    return json.dumps({**asdict(access), "options": dict(access.options)})


# ---- reading -------------------------------------------------------------------------------------


class _Reader(DataSourceReader):
    def __init__(
        self, access: StoreAccess, groups: list[list[str]], schema: pa.Schema, path_column: str
    ) -> None:
        self._access = access
        self._groups = groups
        self._schema = schema
        self._path_column = path_column

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(group) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        filesystem = self._access.filesystem()
        for path in partition.value:
            try:
                with filesystem.open_input_file(path) as file:
                    yield from batches_of(file, self._schema, {self._path_column: path})
            except (pa.ArrowException, UnreadableFileError) as error:
                raise UnreadableFileError(f"{path}: {error}") from error


class _Prober(DataSourceReader):
    """Reads files to the end; its rows are those that are wrong, and why."""

    def __init__(self, access: StoreAccess, groups: list[list[str]], schema: pa.Schema) -> None:
        self._access = access
        self._groups = groups
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(group) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        filesystem = self._access.filesystem()
        for path in partition.value:
            if reason := _what_is_wrong(filesystem, path, self._schema):
                yield path, reason[:_REASON_CHARACTERS_MAX]


def _what_is_wrong(filesystem: pafs.FileSystem, path: str, schema: pa.Schema) -> str:
    """First all bytes: a store that fails is not the file's fault."""
    try:
        with filesystem.open_input_file(path) as file:
            content = file.read_buffer()
    except FileNotFoundError:
        return "it is not there any more"
    try:
        for _ in batches_of(pa.BufferReader(content), schema, {}):
            pass
    except (pa.ArrowException, UnreadableFileError, OSError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def batches_of(
    file: Any, schema: pa.Schema, constants: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Rows of a Parquet file in batches of this schema: its columns alone are read."""
    parquet = pq.ParquetFile(file, pre_buffer=True)
    there = set(parquet.schema_arrow.names)
    columns = [name for name in schema.names if name in there]
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
        arrays = [_column(batch, field, constants) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, constants: Mapping[str, str]) -> pa.Array:
    if field.name in constants:
        return pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    values = batch.column(field.name)
    if pa.types.is_dictionary(values.type):
        values = pc.dictionary_decode(values)
    if values.type.equals(field.type):
        return values
    if not _may_become(values.type, field.type):
        raise UnreadableFileError(f"{field.name} is {values.type}, not {field.type}")
    return values.cast(field.type)


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Another width or unit of the same, and nothing that was another kind of value."""
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_floating,
        pa.types.is_timestamp,
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    )
    return pa.types.is_null(given) or any(kind(given) and kind(wanted) for kind in kinds)


# ---- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written(WriterCommitMessage):
    name: str
    rows: int
    size: int


class _Writer(DataSourceArrowWriter):
    def __init__(self, access: StoreAccess, folder: str, schema: str) -> None:
        self._access = access
        self._folder = folder
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One file; of a part without rows none."""
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return _Written("", 0, 0)
        name, rows = f"part-{uuid4().hex}.parquet", first.num_rows
        filesystem = self._access.filesystem()
        path = f"{self._folder}/{name}"
        # If it breaks off, half of it may be there all the same: no manifest names it.
        with (
            filesystem.open_output_stream(path) as file,
            pq.ParquetWriter(file, first.schema, compression="zstd", store_schema=False) as parquet,
        ):
            parquet.write_batch(first)
            for batch in iterator:
                parquet.write_batch(batch)
                rows += batch.num_rows
        return _Written(name, rows, filesystem.get_file_info(path).size or 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: what counts is what is named here."""
        written = [m for m in messages if isinstance(m, _Written) and m.name]
        files = [{"name": m.name, "rows": m.rows, "size": m.size} for m in written]
        manifest = {"schema": json.loads(self._schema), "files": files}
        filesystem = self._access.filesystem()
        self._forget(filesystem, {m.name for m in written})
        with filesystem.open_output_stream(f"{self._folder}/{MANIFEST}") as file:
            file.write(json.dumps(manifest).encode())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: a folder that no commit names is swept away."""

    def _forget(self, filesystem: pafs.FileSystem, names: set[str]) -> None:
        """What repeated tasks left: nobody who looks at the folder is to count it."""
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            if info.is_file and info.base_name not in names:
                filesystem.delete_file(info.path)
