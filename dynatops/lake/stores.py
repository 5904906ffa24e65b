"""Where a lake may be, and what is to be known of each kind of store: how it is opened, how a file
gets there whole, how long it may keep anybody waiting.

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
from urllib.parse import SplitResult, parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

# Of a call that fails for a passing reason: a connection that was closed while nobody used it.
_TRIES = 2
# pyarrow sends what is larger in parts, and if a part fails, what came before may be made a file.
_S3_UPLOAD_BYTES_MAX = 8 << 20
_S3_REGION = "us-east-1"
_S3_OPTIONS = ("endpoint_override", "region", "scheme")
TIMEOUT_S = 5.0


# curl looks at an upload's pace over the last seconds: of one that has begun it notices so much
# later that nothing moves any more.
_UPLOAD_NOTICED_S = 6.0
_BETWEEN_TRIES_S = 4.0


def call_max_s(timeout_s: float) -> float:
    """How long a call of a store takes at most, if the store's client keeps to what it is told."""
    return _TRIES * (timeout_s + _UPLOAD_NOTICED_S) + _BETWEEN_TRIES_S


class LakeError(ValueError):
    """There can be no lake there; the message says why."""


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
    if not url:
        raise LakeError("no URL of a lake is given")
    if "://" not in url and not url.startswith("file:"):
        return Location(_local(), str(Path(url).expanduser().absolute()))
    try:
        parts = urlsplit(url)
        find = _SCHEMES[parts.scheme]
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except (KeyError, ValueError):
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise LakeError(
            f"{url} cannot be opened: a lake is a folder, or a URL that begins with {known}"
        ) from None
    if parts.password:
        # It is not repeated: somebody may have typed a real one.
        raise LakeError(
            f"{parts.scheme}://…@{parts.hostname}: no keys in a URL, where every user of the "
            "machine could read them; they are taken from the environment (docs/lake.md)"
        )
    return find(parts, options, timeout_s)


def _local() -> LakeStore:
    return LakeStore("file", pafs.LocalFileSystem)


def _file(parts: SplitResult, _: Mapping[str, str], __: float) -> Location:
    try:
        return Location(_local(), pafs.FileSystem.from_uri(parts.geturl())[1].rstrip("/"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LakeError(f"{parts.geturl()} cannot be opened: {error}") from None


# ---- S3 ------------------------------------------------------------------------------------------


def _s3(parts: SplitResult, options: Mapping[str, str], timeout_s: float) -> Location:
    path = _in_bucket(parts)
    if unknown := sorted(options.keys() - set(_S3_OPTIONS)):
        known = ", ".join(_S3_OPTIONS)
        raise LakeError(f"{parts.geturl()}: there is no {unknown[0]} to be set there, but {known}")
    profile = _aws_profile()
    endpoint = options.get("endpoint_override") or s3_endpoint(profile)
    region = options.get("region") or s3_region(profile)
    more: dict[str, object] = {}
    if "scheme" in options:
        more["scheme"] = options["scheme"]
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
    return Location(LakeStore("s3", make, where=where, upload_bytes_max=_S3_UPLOAD_BYTES_MAX), path)


def s3_endpoint(profile: Mapping[str, str]) -> str:
    """Of a store that is not AWS; empty if none is named."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if url := os.environ.get(name):
            return url
    return profile.get("endpoint_url", "")


def s3_region(profile: Mapping[str, str]) -> str:
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


def _gcs(parts: SplitResult, options: Mapping[str, str], timeout_s: float) -> Location:
    path = _in_bucket(parts)
    if unknown := sorted(options.keys() - {"endpoint_override", "scheme"}):
        raise LakeError(
            f"{parts.geturl()}: there is no {unknown[0]} to be set there, but endpoint_override, "
            "scheme"
        )
    more = dict(options)
    is_anonymous = parts.username == "anonymous"

    def make() -> pafs.FileSystem:
        limit = timedelta(seconds=max(1.0, timeout_s))
        return pafs.GcsFileSystem(anonymous=is_anonymous, retry_time_limit=limit, **more)

    where = options.get("endpoint_override", "Google Cloud Storage")
    # An upload that is not finished is no object; its size does not matter to that.
    return Location(LakeStore("gcs", make, where=where, upload_bytes_max=1 << 30), path)


def _hdfs(parts: SplitResult, _: Mapping[str, str], __: float) -> Location:
    if not parts.path.strip("/"):
        raise LakeError(f"{parts.geturl()}: name a folder, as in hdfs://namenode:8020/lake")
    url = parts.geturl()

    def make() -> pafs.FileSystem:
        return pafs.FileSystem.from_uri(url)[0]

    return Location(LakeStore("hdfs", make, where=parts.netloc), parts.path.rstrip("/"))


def _in_bucket(parts: SplitResult) -> str:
    bucket = parts.netloc.rpartition("@")[2]
    if not bucket:
        raise LakeError(f"{parts.geturl()}: name a bucket, as in {parts.scheme}://bucket/lake")
    return f"{bucket}{parts.path}".rstrip("/")


_SCHEMES: Mapping[str, Callable[[SplitResult, Mapping[str, str], float], Location]] = {
    "file": _file,
    "s3": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "hdfs": _hdfs,
    "viewfs": _hdfs,
}
