"""URLs of lakes and results, for the driver: what kind of place it is, and what its errors mean.

What stores are called, how variables name them and what they say when something is wrong is the
lake's own knowledge (`dynatops.lake.stores`, `store_errors`): brokers go by it as well.
"""

from __future__ import annotations

from dynatops.lake.store_errors import store_error
from dynatops.lake.stores import LakeError, locate

_LOCAL_SCHEMES = ("", "file")
# As Hadoop calls S3.
S3A = "s3a"


def scheme_of(url: str) -> str:
    return url.partition("://")[0] if "://" in url else url.partition(":")[0] if ":/" in url else ""


def is_folder(url: str) -> bool:
    """Whether it is a folder of the machine that looks."""
    return scheme_of(url) in _LOCAL_SCHEMES


def explained(said: str, *urls: str) -> str:
    """What to do about it first, if that is known: of the URL that is spoken of, or the first."""
    url = next((url for url in urls if url.partition("://")[2] in said), urls[0])
    if scheme_of(url) == S3A:
        url = f"s3{url.removeprefix(S3A)}"
    try:
        return str(store_error(OSError(said), locate(url)))
    except LakeError:
        return said
