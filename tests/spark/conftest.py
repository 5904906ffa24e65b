"""One Spark session for all tests here: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.session import start

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one process, whoever runs tests side by side."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start("local[2]", driver_memory="1g")
    # Small frames: one task would be enough, and would hide what depends on there being more.
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_left_overs(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has cached is no other test's."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()
