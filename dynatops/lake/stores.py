"""What is to be known of each kind of store: how it is opened, how a file gets there whole, how
long it may keep anybody waiting. Which there are, and how they are named: `store_urls`.

    folder, file://   a file is written beside, forced to disk and renamed: renaming is atomic
    hdfs://           the same; renaming is one step of the namenode
    s3://, gs://      there is no renaming, only copying and deleting: a file is put together in
                      memory and goes up in one request under its own name; it is there when the
                      store has confirmed all of it, or not at all

Variables are those that other tools of a store take. pyarrow reads some of them, and not the same
ones however a store is opened: what it leaves out is read here. Opening a store asks it nothing;
the first call does.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyarrow import fs as pafs

from dynatops.lake.store_urls import (
    ENDPOINT,
    FILE,
    GS,
    HDFS,
    REGION,
    S3,
    SCHEME,
    VIEWFS,
    StoreUrl,
    parse_store_url,
)

# Of a call that fails for a passing reason: a connection that was closed while nobody used it.
_TRIES = 2
# pyarrow sends what is larger in parts, and if a part fails, what came before may be made a file.
_S3_UPLOAD_BYTES_MAX = 8 << 20
_S3_REGION = "us-east-1"
TIMEOUT_S = 5.0


# curl looks at an upload's pace over the last seconds: of one that has begun it notices so much
# later that nothing moves any more.
_UPLOAD_NOTICED_S = 6.0
_BETWEEN_TRIES_S = 4.0


def call_max_s(timeout_s: float, tries: int = _TRIES) -> float:
    """How long a call of a store takes at most, if the store's client keeps to what it is told."""
    return tries * (timeout_s + _UPLOAD_NOTICED_S) + _BETWEEN_TRIES_S


class LakeStore:
    """A kind of place for files, and how to get at it; nothing is asked before it is used."""

    def __init__(
        self,
        kind: str,
        make: Callable[[], pafs.FileSystem],
        *,
        where: str = "",
        upload_bytes_max: int | None = None,
    ) -> None:
        """With `upload_bytes_max` a file goes up in one request, of so many bytes at most; without,
        it is renamed."""
        self.kind = kind
        # For people: endpoint and region.
        self.where = where
        self.upload_bytes_max = upload_bytes_max
        self._make = make

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        """Raises OSError."""
        try:
            return self._make()
        except (pa.ArrowException, ValueError) as error:
            raise OSError(str(error)) from error

    @property
    def is_local(self) -> bool:
        return self.kind == "file"

    @property
    def renames(self) -> bool:
        return self.upload_bytes_max is None


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a store."""

    store: LakeStore
    # As its file system takes it: without the scheme.
    path: str


def locate(url: str, timeout_s: float = TIMEOUT_S) -> Location:
    """What a URL of a lake names. A call waits so long for a store that says nothing. Raises
    LakeError."""
    found = parse_store_url(url)
    return Location(_KINDS[found.scheme](found, timeout_s), found.path)


def _local(_: StoreUrl, __: float) -> LakeStore:
    return LakeStore("file", pafs.LocalFileSystem)


# ---- S3 ------------------------------------------------------------------------------------------


def _s3(url: StoreUrl, timeout_s: float) -> LakeStore:
    profile = _aws_profile()
    endpoint, region = s3_endpoint(url, profile), s3_region(url, profile)
    more: dict[str, object] = {}
    if SCHEME in url.options:
        more["scheme"] = url.options[SCHEME]
    if endpoint:
        more["endpoint_override"] = endpoint
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        more["tls_ca_file_path"] = bundle

    def make() -> pafs.FileSystem:
        return pafs.S3FileSystem(
            region=region,
            connect_timeout=timeout_s,
            # pyarrow says that Linux knows none; there it is how long nothing may come.
            request_timeout=timeout_s,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
            # One request with all of a file, rather than three of which the last makes it one.
            allow_delayed_open=True,
            **more,
        )

    where = f"{endpoint or 'AWS'}, region {region}"
    return LakeStore("s3", make, where=where, upload_bytes_max=_S3_UPLOAD_BYTES_MAX)


def s3_endpoint(url: StoreUrl | None, profile: Mapping[str, str]) -> str:
    """Of a store that is not AWS, as a URL of its own; empty if none is named."""
    if url and (named := url.options.get(ENDPOINT)):
        return named if "://" in named else f"{url.options.get(SCHEME, 'https')}://{named}"
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if value := os.environ.get(name):
            return value
    return profile.get("endpoint_url", "")


def s3_region(url: StoreUrl | None, profile: Mapping[str, str]) -> str:
    if url and (named := url.options.get(REGION)):
        return named
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if region := os.environ.get(name):
            return region
    return profile.get("region", _S3_REGION)


def _aws_profile() -> Mapping[str, str]:
    """What the configuration file says of $AWS_PROFILE; credentials in it are pyarrow's to read."""
    path = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(path)
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    for section in (f"profile {name}", name):
        if section in file:
            return dict(file[section])
    return {}


# ---- others --------------------------------------------------------------------------------------


def _gcs(url: StoreUrl, timeout_s: float) -> LakeStore:
    def make() -> pafs.FileSystem:
        limit = timedelta(seconds=max(1.0, timeout_s))
        return pafs.GcsFileSystem(anonymous=url.is_anonymous, retry_time_limit=limit, **url.options)

    where = url.options.get(ENDPOINT, "Google Cloud Storage")
    # An upload that is not finished is no object; its size does not matter to that.
    return LakeStore("gcs", make, where=where, upload_bytes_max=1 << 30)


def _hdfs(url: StoreUrl, _: float) -> LakeStore:
    def make() -> pafs.FileSystem:
        return pafs.FileSystem.from_uri(url.full)[0]

    return LakeStore("hdfs", make, where=url.host)


_KINDS: Mapping[str, Callable[[StoreUrl, float], LakeStore]] = {
    FILE: _local,
    S3: _s3,
    GS: _gcs,
    HDFS: _hdfs,
    VIEWFS: _hdfs,
}
