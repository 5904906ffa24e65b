"""Which storage a URL is, by its scheme and by what Spark can open without us."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError
from analytics.storage.arrow import ArrowStorage
from analytics.storage.hadoop import HadoopStorage
from analytics.storage.storage import Storage
from analytics.storage.store_access import StorePatience
from dynatops.lake.store_urls import GS, S3, LakeError, StoreUrl, parse_store_url

# Stores that Spark opens if there is this class.
_CONNECTORS = {
    S3: "org.apache.hadoop.fs.s3a.S3AFileSystem",
    GS: "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
}


def open_lake_and_output(
    spark: SparkSession, lake: str, output: str, patience: StorePatience
) -> tuple[Storage, Storage]:
    """Both reached and tried out. Raises AnalyticsError."""
    _check_together(spark, _parsed(lake), _parsed(output))
    return (
        open_storage(spark, lake, for_results=False, patience=patience),
        open_storage(spark, output, for_results=True, patience=patience),
    )


def open_storage(
    spark: SparkSession,
    url: str,
    *,
    for_results: bool,
    patience: StorePatience = StorePatience(),  # noqa: B008  # it never changes
) -> Storage:
    """Reached and tried out. Raises AnalyticsError."""
    parsed = _parsed(url)
    storage: Storage = (
        HadoopStorage(spark, parsed)
        if _is_opened_by_spark(spark, parsed)
        else ArrowStorage(spark, parsed, patience)
    )
    storage.check(for_results=for_results)
    return storage


def _parsed(url: str) -> StoreUrl:
    try:
        return parse_store_url(url)
    except LakeError as error:
        raise AnalyticsError(str(error)) from None


def _check_together(spark: SparkSession, lake: StoreUrl, output: StoreUrl) -> None:
    """To Hadoop a bucket's name is one store: options of one URL would be the other's, too."""
    is_one = (lake.scheme, lake.bucket) == (S3, output.bucket) and output.scheme == S3
    if is_one and lake.options != output.options and _is_opened_by_spark(spark, lake):
        raise AnalyticsError(
            f"{lake} and {output} are in one bucket and have different options: with Hadoop's s3a "
            "give both the same"
        )


def _is_opened_by_spark(spark: SparkSession, url: StoreUrl) -> bool:
    connector = _CONNECTORS.get(url.scheme)
    return connector is None or _has_class(spark, connector)


def _has_class(spark: SparkSession, name: str) -> bool:
    configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    return configuration.getClassByNameOrNull(name) is not None
