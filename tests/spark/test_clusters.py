"""Brokers grouped by where their sessions are."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analytics.jobs.clusters import BROKER_PLACES
from analytics.transforms.clusters import broker_places, cluster_sizes, clustered
from dynatops.lake.fields import SESSIONS
from tests.support.spark_frames import SLOW, at, frame, lake_frame

Place = tuple[float, float]


def place_rows(places: list[Place | None]) -> list[tuple[object, ...]]:
    """BROKER_PLACES of brokers with one session each, or some that said nothing."""
    rows: list[tuple[object, ...]] = []
    for i, place in enumerate(places):
        if place is None:
            rows.append((f"b{i:03}", 0, 0.0, 0.0, 0.0, 1))
            continue
        latitude, longitude = map(math.radians, place)
        flat = math.cos(latitude)
        x, y, z = flat * math.cos(longitude), flat * math.sin(longitude), math.sin(latitude)
        rows.append((f"b{i:03}", 1, x, y, z, 1))
    return rows


def halved(points: dict[str, tuple[float, ...]], wanted: int) -> list[list[str]]:
    """The same, by recursion."""
    if wanted <= 1:
        return [sorted(points)]
    spread = [
        max(p[a] for p in points.values()) - min(p[a] for p in points.values()) for a in range(3)
    ]
    axis = spread.index(max(spread))
    order = sorted(points, key=lambda name: (points[name][axis], name))
    first = wanted // 2
    cut = len(order) * first // wanted
    return [
        *halved({name: points[name] for name in order[:cut]}, first),
        *halved({name: points[name] for name in order[cut:]}, wanted - first),
    ]


def test_where_brokers_are(spark: SparkSession) -> None:
    rows = [
        (at(10.0), "ann", "b0", "open", 0.0, 179.0),
        (at(20.0), "bob", "b0", "open", 0.0, -179.0),
        (at(15.0), "cat", "b0", "close", None, -179.0),
        (at(5.0), "dan", "b1", "open", None, None),
    ]
    found = {
        row.broker_id: row for row in broker_places(lake_frame(spark, SESSIONS, rows)).collect()
    }
    assert (found["b0"].located, found["b0"].seen_us) == (2, 20_000_000)
    assert (found["b0"].x, found["b0"].y) == pytest.approx((2 * math.cos(math.radians(179)), 0.0))
    assert (found["b1"].located, found["b1"].x, found["b1"].seen_us) == (0, 0.0, 5_000_000)


def test_two_towns_and_brokers_of_nowhere(spark: SparkSession) -> None:
    places: list[Place | None] = [
        (52.5, 13.4), (52.6, 13.5), (48.1, 11.6), (48.2, 11.5), None, None, (52.4, 13.3),
        (48.0, 11.7),
    ]  # fmt: skip
    found = clustered(frame(spark, BROKER_PLACES, place_rows(places)), 3)
    by_cluster = defaultdict(list)
    for row in found.collect():
        by_cluster[row.cluster].append(row.broker_id)
    assert {name: sorted(of) for name, of in by_cluster.items()} == {
        "b000": ["b000", "b001", "b006"],
        "b002": ["b002", "b003", "b007"],
        "b004": ["b004", "b005"],
    }
    sizes = {row.cluster: row for row in cluster_sizes(found).collect()}
    assert sizes["b000"].brokers == 3
    assert (sizes["b000"].latitude, sizes["b000"].longitude) == pytest.approx(
        (52.5, 13.4), abs=0.01
    )
    assert 10 < sizes["b000"].radius_km < 20
    assert sizes["b004"].radius_km is None


def test_across_the_date_line(spark: SparkSession) -> None:
    places: list[Place | None] = [(0.0, 179.5), (0.0, -179.5), (0.0, 170.0), (0.0, 169.0)]
    found = clustered(frame(spark, BROKER_PLACES, place_rows(places)), 2)
    names = {row.broker_id: row.cluster for row in found.collect()}
    assert names["b000"] == names["b001"] != names["b002"] == names["b003"]


def test_nothing_and_a_single_broker(spark: SparkSession) -> None:
    nothing = clustered(frame(spark, BROKER_PLACES, []), 4)
    assert nothing.collect() == []
    assert cluster_sizes(nothing).collect() == []
    single = clustered(frame(spark, BROKER_PLACES, place_rows([(1.0, 2.0)])), 4)
    (row,) = single.collect()
    assert (row.cluster, row.latitude, row.longitude) == (
        "b000",
        pytest.approx(1.0),
        pytest.approx(2.0),
    )


# Most in one place.
PLACE = st.one_of(
    st.just((50.0, 10.0)),
    st.tuples(st.integers(-80, 80).map(float), st.integers(-179, 179).map(float)),
)


@settings(
    max_examples=4,
    suppress_health_check=SLOW,
)
@given(places=st.lists(PLACE, min_size=1, max_size=40), size=st.integers(1, 12))
def test_as_by_recursion_and_of_even_size(
    spark: SparkSession, places: list[Place | None], size: int
) -> None:
    rows = place_rows(places)
    found = clustered(frame(spark, BROKER_PLACES, rows), size)
    by_cluster = defaultdict(list)
    for row in found.collect():
        by_cluster[row.cluster].append(row.broker_id)
    sizes = [len(brokers) for brokers in by_cluster.values()]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == math.ceil(len(places) / size)
    points = {str(row[0]): tuple(round(float(str(v)), 9) for v in row[2:5]) for row in rows}
    expected = halved(points, math.ceil(len(places) / size))
    assert sorted(sorted(brokers) for brokers in by_cluster.values()) == sorted(expected)
