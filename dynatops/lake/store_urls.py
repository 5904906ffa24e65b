"""URLs of lakes and results: one grammar, for brokers and jobs, and the one place that reads it.

    FOLDER, file:///FOLDER
    s3://BUCKET[/PREFIX][?OPTIONS]             endpoint_override, region, scheme
    gs://[anonymous@]BUCKET[/PREFIX][?OPTIONS] endpoint_override, scheme
    hdfs://NAMENODE[:PORT]/FOLDER[?OPTIONS]    user, replication, buffer_size, kerb_ticket
    viewfs://CLUSTER/FOLDER[?OPTIONS]          the same

s3a:// is s3://, gcs:// is gs://. What a URL does not say, the environment does (`stores`). Keys are
in no URL: every user of a machine could read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

FILE, S3, GS, HDFS, VIEWFS = "file", "s3", "gs", "hdfs", "viewfs"
ENDPOINT, REGION, SCHEME = "endpoint_override", "region", "scheme"
ANONYMOUS = "anonymous"
# By scheme, in the order in which they are told to people.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    FILE: (),
    S3: (ENDPOINT, REGION, SCHEME),
    GS: (ENDPOINT, SCHEME),
    HDFS: ("user", "replication", "buffer_size", "kerb_ticket"),
    VIEWFS: ("user", "replication", "buffer_size", "kerb_ticket"),
}
# What others call them.
_ALIASES = {"s3a": S3, "gcs": GS}
_BUCKETS = (S3, GS)


class LakeError(ValueError):
    """There can be no lake there; the message says why."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    scheme: str
    # A folder; or BUCKET/PREFIX; or below the host. Without a slash at its end.
    path: str
    # The namenode or cluster, if there is one.
    host: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    is_anonymous: bool = False

    @property
    def is_folder(self) -> bool:
        """Of the machine that looks."""
        return self.scheme == FILE

    @property
    def bucket(self) -> str:
        return self.path.partition("/")[0]

    @property
    def full(self) -> str:
        """With options."""
        return f"{self}?{urlencode(self.options)}" if self.options else str(self)

    def __str__(self) -> str:
        """Without options."""
        return self.path if self.is_folder else f"{self.scheme}://{self.host}{self.path}"


def parse_store_url(url: str) -> StoreUrl:
    """What a URL names. Raises LakeError."""
    if not url:
        raise LakeError("no URL of a lake is given")
    if "://" not in url and not url.startswith("file:"):
        return StoreUrl(FILE, str(Path(url).expanduser().absolute()))
    try:
        parts = urlsplit(url)
        scheme = _ALIASES.get(parts.scheme, parts.scheme)
        known = _OPTIONS[scheme]
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except (KeyError, ValueError):
        begins = ", ".join(f"{scheme}://" for scheme in _OPTIONS)
        raise LakeError(
            f"{url} cannot be opened: a lake is a folder, or a URL that begins with {begins}"
        ) from None
    if parts.password:
        # It is not repeated: somebody may have typed a real one.
        raise LakeError(
            f"{parts.scheme}://…@{parts.hostname}: no keys in a URL, where every user of the "
            "machine could read them; they are taken from the environment (docs/lake.md)"
        )
    if unknown := sorted(options.keys() - set(known)):
        may = f"but {', '.join(known)}" if known else "nor anything else"
        raise LakeError(f"{url}: there is no {unknown[0]} to be set there, {may}")
    return _found(url, scheme, parts, options)


def _found(url: str, scheme: str, parts: SplitResult, options: Mapping[str, str]) -> StoreUrl:
    if scheme in _BUCKETS:
        user, _, bucket = parts.netloc.rpartition("@")
        if not bucket:
            raise LakeError(f"{url}: name a bucket, as in {scheme}://bucket/lake")
        path = f"{bucket}{parts.path}".rstrip("/")
        return StoreUrl(scheme, path, options=options, is_anonymous=user == ANONYMOUS)
    path = parts.path.rstrip("/")
    if scheme == FILE:
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise LakeError(f"{url} cannot be opened: write file:///folder, or the folder itself")
        return StoreUrl(FILE, unquote(path))
    if not path:
        raise LakeError(f"{url}: name a folder, as in {scheme}://namenode:8020/lake")
    return StoreUrl(scheme, path, parts.netloc, options)
