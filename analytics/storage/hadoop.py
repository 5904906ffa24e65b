"""What Spark opens itself: folders, hdfs://, and s3a:// or gs:// where their jars are.

Small files go through Hadoop's file systems, as Spark's own: one URL, one set of credentials, for
data and for what is known about them. Frames are written by Spark's Parquet, whose tasks commit
one by one with the driver's leave, and count only when the driver has committed the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from analytics.errors import AnalyticsError
from analytics.storage.places import explained
from analytics.storage.storage import (
    BLOCK_BYTES,
    AlreadyThereError,
    BadFile,
    FoundFile,
    SparkError,
    is_hidden,
)
from dynatops.lake.store_urls import GS, S3, StoreUrl
from dynatops.lake.stores import s3_endpoint, s3_region

# What Spark says of a file that cannot be read, as opposed to a machine that cannot go on.
_FILE_CONDITIONS = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "PATH_NOT_FOUND")
_REASON_CHARACTERS_MAX = 500
# Stores that write a file in one step and cannot rename one in one, but refuse to replace.
_CONDITIONAL = "fs.option.create.conditional.overwrite"
_S3A = "s3a"
_HDFS_SETTINGS = {"replication": "dfs.replication", "buffer_size": "io.file.buffer.size"}
_INSTEAD = (
    "write the URL without it; who it is on HDFS is said by HADOOP_USER_NAME or kinit, where "
    "Google's store is by --conf spark.hadoop.fs.gs.storage.root.url=…"
)


def s3a_settings() -> dict[str, str]:
    """What the usual variables say of S3, for Hadoop's s3a; credentials Spark looks for itself."""
    settings = _s3a_place(s3_endpoint(None, {}), s3_region(None, {}))
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}


def _s3a_place(endpoint: str, region: str) -> dict[str, str]:
    settings = {"endpoint.region": region}
    if endpoint:
        settings["endpoint"] = endpoint
        # Stores that are not Amazon's have no name of their own for each bucket, as a rule.
        settings["path.style.access"] = "true"
    return settings


def hadoop_settings(url: StoreUrl) -> dict[str, str]:
    """What the options of a URL are to Hadoop. Raises AnalyticsError of what it has no word for."""
    if not url.options:
        return {}
    if url.scheme == S3:
        place = _s3a_place(s3_endpoint(url, {}), s3_region(url, {}))
        return {f"fs.s3a.bucket.{url.bucket}.{name}": value for name, value in place.items()}
    for option in url.options.keys() - _HDFS_SETTINGS.keys():
        raise AnalyticsError(f"{url}: Spark opens it, and does not know {option}: {_INSTEAD}")
    return {_HDFS_SETTINGS[option]: value for option, value in url.options.items()}


class HadoopStorage:
    """Paths are URLs, or paths of this machine."""

    def __init__(self, spark: SparkSession, url: StoreUrl) -> None:
        self._url = url
        self._spark = spark
        for name, value in hadoop_settings(url).items():
            spark.conf.set(name, value)
        # The gateway is how PySpark itself reaches Hadoop; there is no public name for it.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        self.root = self._rooted(url)

    def _rooted(self, url: StoreUrl) -> str:
        """As Hadoop has it: S3 goes by the name of its connector."""
        if url.scheme == S3:
            return str(replace(url, scheme=_S3A))
        is_here = str(self._configuration.get("fs.defaultFS")).startswith("file:")
        return str(url) if is_here or not url.is_folder else f"file://{url}"

    def check(self, *, for_results: bool) -> None:
        try:
            self.exists(self.root)
        except Py4JJavaError as error:
            said = str(error.java_exception).partition("\n")[0]
            raise AnalyticsError(f"{self.root}: {explained(said, self._url.full)}") from None
        if for_results and self._url.scheme == S3 and not self._can_refuse_to_replace():
            raise AnalyticsError(
                f"{self.root}: this hadoop-aws cannot create a file only where there is none, so "
                "that two runs at once could both count: use that of Hadoop 3.4.2 or newer, with "
                "fs.s3a.create.conditional.enabled"
            )

    def _can_refuse_to_replace(self) -> bool:
        path = self._path(self.root)
        return bool(path.getFileSystem(self._configuration).hasPathCapability(path, _CONDITIONAL))

    # ---- small files ----------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return bool(self._system(path).exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        found = self._system(folder).listStatus(self._path(folder))
        return sorted(status.getPath().getName() for status in found)

    def found(self, folder: str, suffix: str) -> list[FoundFile]:
        if not self.exists(folder):
            return []
        local = _local_path(folder)
        listed = self._walk(folder) if local is None else _walk_folder(local)
        return [
            FoundFile(f"{folder}/{name}", name, size, modified_us)
            for name, size, modified_us in listed
            if size and name.endswith(suffix) and not is_hidden(name)
        ]

    def _walk(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """Names, sizes and times: listed by many at once, and handed over together."""
        rows = (
            self._spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .load(folder)
            .select("path", "length", fn.unix_micros("modificationTime"))
        )
        base = self._system(folder).makeQualified(self._path(folder)).toUri().getPath()
        for url, size, modified_us in rows.toLocalIterator():
            path = unquote(url.partition("://")[2].partition("/")[2])
            yield f"/{path}".removeprefix(base).lstrip("/"), size, modified_us

    def blocks(self, path: str) -> Iterator[bytes]:
        stream = self._system(path).open(self._path(path))
        try:
            while block := bytes(stream.readNBytes(BLOCK_BYTES)):
                yield block
        finally:
            stream.close()

    def put(self, path: str, blocks: Iterable[bytes]) -> None:
        stream = self._system(path).create(self._path(path), True)
        try:
            for block in blocks:
                stream.write(bytearray(block))
        finally:
            stream.close()

    def create(self, path: str, text: str) -> None:
        if self._url.scheme == S3:
            builder = self._system(path).createFile(self._path(path)).must(_CONDITIONAL, True)
            self._finish(path, builder.build(), text)
        elif self._url.scheme == GS:
            # Its connector asks for "no such generation" where it must not replace.
            self._finish(path, self._system(path).create(self._path(path), False), text)
        else:
            self._create_renamed(path, text)

    def _finish(self, path: str, stream: Any, text: str) -> None:
        try:
            stream.write(bytearray(text.encode()))
            stream.close()
        except Py4JJavaError as error:
            said = str(error.java_exception)
            if not any(name in said for name in ("AlreadyExists", "RemoteFileChanged", "412")):
                raise
            # The answer to a write that was done may be lost, and the write be repeated.
            if b"".join(self.blocks(path)).decode() != text:
                raise AlreadyThereError(path) from None

    def _create_renamed(self, path: str, text: str) -> None:
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.{uuid4().hex}"
        self.put(unfinished, [text.encode()])
        options = self._gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 1)
        options[0] = self._jvm.org.apache.hadoop.fs.Options.Rename.NONE
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(path).toUri(), self._configuration
        )
        try:
            context.rename(self._path(unfinished), self._path(path), options)
        except Py4JJavaError as error:
            self.delete(unfinished)
            if "FileAlreadyExists" in str(error.java_exception):
                raise AlreadyThereError(path) from None
            raise

    def delete(self, path: str) -> None:
        self._system(path).delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._configuration)

    # ---- frames ---------------------------------------------------------------------------------

    def rows_of(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], schema)
        # Names are names here, not patterns.
        return self._spark.read.schema(schema).option("__globPaths__", "false").parquet(*paths)

    def with_paths(self, paths: Sequence[str], schema: StructType, column: str) -> DataFrame:
        return self.rows_of(paths, schema).withColumn(column, fn.col("_metadata.file_path"))

    def saved(self, folders: Sequence[str], schema: StructType | None = None) -> DataFrame:
        if schema is not None:
            return self.rows_of(folders, schema)
        return self._spark.read.parquet(*folders)

    def save(self, rows: DataFrame, folder: str) -> None:
        rows.write.mode("overwrite").parquet(folder)

    def bad_files(self, paths: Sequence[str], schema: StructType) -> list[BadFile]:
        """Found by halving."""
        error = self._failure(paths, schema)
        if error is None:
            return []
        if len(paths) > 1:
            half = len(paths) // 2
            return self.bad_files(paths[:half], schema) + self.bad_files(paths[half:], schema)
        # Once more: what fails by chance does not fail twice.
        error = self._failure(paths, schema)
        return [BadFile(paths[0], _reason(error))] if error is not None else []

    def _failure(self, paths: Sequence[str], schema: StructType) -> Exception | None:
        """Read all that there is, and see."""
        try:
            self.rows_of(paths, schema).write.format("noop").mode("overwrite").save()
        except SparkError as error:
            if not any(f"[{condition}" in str(error) for condition in _FILE_CONDITIONS):
                raise
            return error
        return None


def _local_path(url: str) -> str | None:
    """Of this machine; None if it is elsewhere."""
    if url.startswith("file:"):
        return "/" + unquote(url.removeprefix("file:").lstrip("/"))
    return None if "://" in url else url


def _walk_folder(folder: str) -> Iterator[tuple[str, int, int]]:
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        below = here[len(folder) :].lstrip("/")
        for name in names:
            path = os.path.join(here, name)  # noqa: PTH118 - a million times
            try:
                status = os.stat(path)  # noqa: PTH116
            except FileNotFoundError:
                continue
            yield f"{below}/{name}".lstrip("/"), status.st_size, status.st_mtime_ns // 1_000


def _reason(error: Exception) -> str:
    if isinstance(error, AnalysisException):
        return str(error).partition("\n")[0][:_REASON_CHARACTERS_MAX]
    lines = str(error).splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = causes[-1] if causes else next((line for line in lines if "[FAILED" in line), lines[0])
    return said.strip()[:_REASON_CHARACTERS_MAX]
