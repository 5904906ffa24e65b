"""How a store of objects is opened on any machine of a cluster.

The driver finds out where a store is and who may use it, and hands that on: other machines know
nothing of its environment. Imported by executors, which have pyarrow and nothing of brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyarrow import fs as pafs

from analytics.analytics_settings import STORE_TIMEOUT_S, STORE_TRIES

_CONNECT_TIMEOUT_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class StorePatience:
    """With a store that says nothing, or refuses for a passing reason, in each call.

    What fails then is tried again by Spark, if it is a task's, and by the next run.
    """

    timeout_s: float = STORE_TIMEOUT_S
    tries: int = STORE_TRIES

    @property
    def connect_timeout_s(self) -> float:
        return min(self.timeout_s, _CONNECT_TIMEOUT_MAX_S)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What a machine needs to open a store: pickled, it goes where it is needed."""

    scheme: str
    # As pyarrow's S3FileSystem or GcsFileSystem has them.
    options: Mapping[str, str | bool]
    patience: StorePatience

    def filesystem(self) -> pafs.FileSystem:
        if self.scheme == "s3":
            return pafs.S3FileSystem(
                **self.options,
                connect_timeout=self.patience.connect_timeout_s,
                request_timeout=self.patience.timeout_s,
                retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=self.patience.tries),
                # A file of one block is one request, not three.
                allow_delayed_open=True,
            )
        if self.scheme == "gs":
            limit = timedelta(seconds=self.patience.tries * self.patience.timeout_s)
            return pafs.GcsFileSystem(**self.options, retry_time_limit=limit)
        filesystem, _ = pafs.FileSystem.from_uri(f"{self.scheme}:///")
        return filesystem
