"""Which storage a URL is, by its scheme and by what Spark can open without us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError
from analytics.storage.arrow import ArrowStorage
from analytics.storage.hadoop import HadoopStorage
from analytics.storage.places import S3A, scheme_of
from analytics.storage.storage import Storage

# The scheme that Hadoop knows a store by, and the class that must be there for it.
_CONNECTORS: Mapping[str, tuple[str, str]] = {
    "s3": (S3A, "org.apache.hadoop.fs.s3a.S3AFileSystem"),
    S3A: (S3A, "org.apache.hadoop.fs.s3a.S3AFileSystem"),
    "gs": ("gs", "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"),
}


def open_storage(spark: SparkSession, url: str, *, for_results: bool) -> Storage:
    """Reached and tried out. Raises AnalyticsError."""
    url = url.rstrip("/")
    if "?" in url:
        raise AnalyticsError(
            f"{url}: say endpoint and region in AWS_ENDPOINT_URL and AWS_REGION, not in the URL"
        )
    storage = _chosen(spark, url)
    storage.check(for_results=for_results)
    return storage


def _chosen(spark: SparkSession, url: str) -> Storage:
    scheme = scheme_of(url)
    if scheme not in _CONNECTORS:
        return HadoopStorage(spark, url)
    hadoop_scheme, connector = _CONNECTORS[scheme]
    place = url.partition("://")[2]
    if _has_class(spark, connector):
        return HadoopStorage(spark, f"{hadoop_scheme}://{place}")
    return ArrowStorage(spark, f"{'s3' if hadoop_scheme == S3A else hadoop_scheme}://{place}")


def _has_class(spark: SparkSession, name: str) -> bool:
    configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    return configuration.getClassByNameOrNull(name) is not None
