"""Stores of objects without any jar: pyarrow's file systems on driver and executors.

Small files are objects that are there whole or not. `create` is a write with the condition that
there is no such object (S3: `If-None-Match: *`), which the store itself decides; that it does is
tried out before anything is written that counts. Frames: `parquet_source`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyarrow import fs as pafs
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from analytics.errors import AnalyticsError
from analytics.storage import parquet_source
from analytics.storage.parquet_source import ParquetSource, access_option
from analytics.storage.places import explained
from analytics.storage.storage import (
    BLOCK_BYTES,
    AlreadyThereError,
    BadFile,
    FoundFile,
    is_hidden,
    packed,
    read_text,
)
from analytics.storage.store_access import StoreAccess, StorePatience
from dynatops.lake.store_urls import S3, StoreUrl
from dynatops.lake.stores import s3_endpoint, s3_region

# A task reads about so much, and to open a file takes as long as to read so much.
_TASK_BYTES = 16 << 20
_OPEN_BYTES = 1 << 20
# There since the first run: whether a store refuses to replace it says whether commits hold.
_CONDITION_PROBE = "_conditional"
# How a machine came to its credentials by its role, as botocore calls it: those are its own.
_OWN_CREDENTIALS = ("iam-role", "container-role", "assume-role-with-web-identity")
_CONFLICT, _CONFLICTS_MAX = "ConditionalRequestConflict", 5


class ArrowStorage:
    """Paths are URLs."""

    def __init__(self, spark: SparkSession, url: StoreUrl, patience: StorePatience) -> None:
        self.root = str(url)
        self._spark = spark
        self._scheme = url.scheme
        self._bucket = S3Bucket(url, patience) if url.scheme == S3 else None
        self._access = self._bucket.access if self._bucket else _gcs_access(url, patience)
        self._filesystem = self._access.filesystem()
        # As they were listed: tasks get about as much as each other.
        self._sizes: dict[str, int] = {}
        spark.dataSource.register(ParquetSource)

    def check(self, *, for_results: bool) -> None:
        if self._bucket:
            self._bucket.check()
        if not for_results:
            return
        if not self._bucket:
            raise AnalyticsError(
                f"{self.root}: results there need the store's own connector for Hadoop (--packages "
                "or --jars): without it two runs at once could both count"
            )
        path = f"{self.root}/state/{_CONDITION_PROBE}"
        for _ in range(2):
            if not self._bucket.put_new(path, b"{}"):
                return
        raise AnalyticsError(
            f"{self.root}: this store replaces an object that is there although it is asked not to "
            "(If-None-Match), so that two runs at once could both count: use one that does not"
        )

    # ---- small files ----------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type != pafs.FileType.NotFound)

    def names(self, folder: str) -> list[str]:
        return sorted(info.base_name for info in self._listed(folder, recursive=False))

    def found(self, folder: str, suffix: str) -> list[FoundFile]:
        inside = f"{self._inside(folder)}/"
        files = [
            FoundFile(
                self._url(info.path),
                info.path.removeprefix(inside),
                info.size,
                (info.mtime_ns or 0) // 1_000,
            )
            for info in self._listed(folder, recursive=True)
            if info.is_file and info.size and info.path.endswith(suffix)
        ]
        files = [file for file in files if not is_hidden(file.name)]
        self._sizes.update((self._inside(file.path), file.size) for file in files)
        return files

    def blocks(self, path: str) -> Iterator[bytes]:
        with self._filesystem.open_input_stream(self._inside(path)) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def put(self, path: str, blocks: Iterable[bytes]) -> None:
        with self._filesystem.open_output_stream(self._inside(path)) as file:
            for block in blocks:
                file.write(block)

    def create(self, path: str, text: str) -> None:
        if not self._bucket:
            raise AnalyticsError(f"{path}: only S3 can create a file once, without a jar")
        # The answer to a write that was done may be lost, and the write be repeated.
        if not self._bucket.put_new(path, text.encode()) and read_text(self, path) != text:
            raise AlreadyThereError(path)

    def delete(self, path: str) -> None:
        inside = self._inside(path)
        kind = self._info(path).type
        if kind == pafs.FileType.Directory:
            self._filesystem.delete_dir(inside)
        elif kind == pafs.FileType.File:
            self._filesystem.delete_file(inside)

    def _info(self, path: str) -> pafs.FileInfo:
        return self._filesystem.get_file_info(self._inside(path))

    def _listed(self, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        inside = self._inside(folder)
        selector = pafs.FileSelector(inside, allow_not_found=True, recursive=recursive)
        return list(self._filesystem.get_file_info(selector))

    def _inside(self, path: str) -> str:
        return path.partition("://")[2]

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{path}"

    # ---- frames ---------------------------------------------------------------------------------

    def rows_of(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], schema)
        return self._reader(self._sized(paths)).schema(schema).load()

    def with_paths(self, paths: Sequence[str], schema: StructType, column: str) -> DataFrame:
        # Not `add`, which would give the column to the caller's schema as well.
        wider = StructType([*schema.fields, StructField(column, StringType())])
        reader = self._reader(self._sized(paths)).option(parquet_source.PATH_COLUMN, column)
        return reader.schema(wider).load()

    def saved(self, folders: Sequence[str], schema: StructType | None = None) -> DataFrame:
        sizes: dict[str, int] = {}
        for folder in folders:
            manifest = json.loads(read_text(self, f"{folder}/{parquet_source.MANIFEST}"))
            schema = schema or StructType.fromJson(manifest["schema"])
            inside = self._inside(folder)
            sizes |= {f"{inside}/{file['name']}": file["size"] for file in manifest["files"]}
        if schema is None:
            raise ValueError("neither a folder nor a schema")
        if not sizes:
            return self._spark.createDataFrame([], schema)
        return self._reader(sizes).schema(schema).load()

    def save(self, rows: DataFrame, folder: str) -> None:
        writer = rows.write.format(parquet_source.FORMAT).mode("append")
        writer.option(parquet_source.ACCESS, access_option(self._access)).option(
            parquet_source.FOLDER, self._inside(folder)
        ).save()

    def bad_files(self, paths: Sequence[str], schema: StructType) -> list[BadFile]:
        """Each file once, all at the same time."""
        reader = self._reader(self._sized(paths)).option(parquet_source.PROBE, schema.json())
        rows = reader.schema(parquet_source.BAD_FILE_SCHEMA).load().collect()
        return sorted((BadFile(self._url(row.path), row.reason) for row in rows), key=_path_of)

    def _sized(self, paths: Sequence[str]) -> Mapping[str, int]:
        inside = (self._inside(path) for path in paths)
        return {path: self._sizes.get(path, 0) for path in inside}

    def _reader(self, sizes: Mapping[str, int]) -> DataFrameReader:
        groups = packed(sizes, _TASK_BYTES, _OPEN_BYTES)
        reader = self._spark.read.format(parquet_source.FORMAT)
        return reader.option(parquet_source.ACCESS, access_option(self._access)).option(
            parquet_source.FILES, json.dumps(groups)
        )


def _gcs_access(url: StoreUrl, patience: StorePatience) -> StoreAccess:
    anonymous = {"anonymous": True} if url.is_anonymous else {}
    return StoreAccess(url.scheme, {**url.options, **anonymous}, patience)


def _path_of(file: BadFile) -> str:
    return file.path


class S3Bucket:
    """What pyarrow has no words for: a write with a condition, and the store's own reasons."""

    def __init__(self, url: StoreUrl, patience: StorePatience) -> None:
        import botocore.session  # noqa: PLC0415 - takes half a second, and only S3 needs it
        from botocore.config import Config  # noqa: PLC0415

        self._url = url
        self._name, _, self._prefix = url.path.partition("/")
        session = botocore.session.get_session()
        profile = session.get_scoped_config()
        endpoint, region = s3_endpoint(url, profile), s3_region(url, profile)
        settings = Config(
            connect_timeout=patience.connect_timeout_s,
            read_timeout=patience.timeout_s,
            retries={"total_max_attempts": patience.tries, "mode": "standard"},
            s3={"addressing_style": "path"} if endpoint else {},
        )
        self._client: Any = session.create_client(
            "s3", endpoint_url=endpoint or None, region_name=region, config=settings
        )
        options = {"region": region, **_credentials(session)}
        if endpoint:
            options["endpoint_override"] = endpoint
        if certificates := os.environ.get("AWS_CA_BUNDLE"):
            options["tls_ca_file_path"] = certificates
        self.access = StoreAccess(S3, options, patience)

    def check(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            self._client.list_objects_v2(Bucket=self._name, Prefix=self._prefix, MaxKeys=1)
        except (BotoCoreError, ClientError) as error:
            raise self._failed(error) from None

    def put_new(self, url: str, content: bytes) -> bool:
        """Whether it was not there, and is now."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        key = url.partition("://")[2].partition("/")[2]
        for _ in range(_CONFLICTS_MAX):
            try:
                self._client.put_object(Bucket=self._name, Key=key, Body=content, IfNoneMatch="*")
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code == "PreconditionFailed":
                    return False
                if code == _CONFLICT:
                    # Somebody else's write, or deletion, is under way: ask again.
                    continue
                raise self._failed(error) from None
            except BotoCoreError as error:
                raise self._failed(error) from None
            else:
                return True
        raise AnalyticsError(f"{url}: others write it all the time; run it again")

    def _failed(self, error: Exception) -> AnalyticsError:
        return AnalyticsError(f"{self._url}: {explained(str(error), self._url.full)}")


def _credentials(session: Any) -> dict[str, str]:
    """What executors are handed; nothing if machines have their own."""
    found = session.get_credentials()
    if found is None or found.method in _OWN_CREDENTIALS:
        return {}
    frozen = found.get_frozen_credentials()
    options = {"access_key": frozen.access_key, "secret_key": frozen.secret_key}
    return options | ({"session_token": frozen.token} if frozen.token else {})
