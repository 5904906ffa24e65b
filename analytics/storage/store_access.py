"""How a store of objects is opened on any machine of a cluster.

The driver finds out where a store is and who may use it, and hands that on: other machines know
nothing of its environment. Imported by executors, which have pyarrow and nothing of brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyarrow import fs as pafs

# Generous: what fails is tried again by the library, then by Spark, then by the next run.
_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What a machine needs to open a store: pickled, it goes where it is needed."""

    scheme: str
    # As pyarrow's S3FileSystem has them.
    options: Mapping[str, str]

    def filesystem(self) -> pafs.FileSystem:
        if self.scheme == "s3":
            return pafs.S3FileSystem(
                **self.options,
                connect_timeout=_CONNECT_TIMEOUT_S,
                request_timeout=_REQUEST_TIMEOUT_S,
                retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
                # A file of one block is one request, not three.
                allow_delayed_open=True,
            )
        if self.scheme == "gs":
            return pafs.GcsFileSystem()
        filesystem, _ = pafs.FileSystem.from_uri(f"{self.scheme}:///")
        return filesystem
