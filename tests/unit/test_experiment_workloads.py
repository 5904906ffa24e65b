"""Workloads of experiments are what the papers say of them, and files are read as they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.workloads.checkins import (
    UNITED_STATES,
    BadRows,
    CheckinError,
    read_checkins,
    visits_of_file,
)
from experiments.workloads.grid import Grid, sites_at
from experiments.workloads.location import FRIENDS, LocationWorkload
from experiments.workloads.made_up_visits import made_up_visits
from experiments.workloads.modes import MODE_TOPICS
from experiments.workloads.patterns import Pattern, pattern_weights
from experiments.workloads.poisson import TOPICS_PER_USER, PoissonWorkload
from experiments.workloads.visits import Visits
from experiments.workloads.workload import Workload

REAL_FILE = Path(__file__).resolve().parents[2] / "data" / "checkins_nyc.csv.gz"


def small_location(seed: int = 1) -> LocationWorkload:
    grid = Grid(3, 9)
    return LocationWorkload.of(grid, made_up_visits(grid, 80, seed, days=20), seed, settled_h=48.0)


def small_poisson(pattern: Pattern = Pattern.MULTIMODAL, **more: float) -> PoissonWorkload:
    return PoissonWorkload(
        pattern, 0.1, seed=1, users=300, brokers=5, topic_count=100, hours=20, **more
    )


class TestTrace:
    def test_it_has_the_statistics_of_figure_5(self) -> None:
        found = made_up_visits(Grid(), 8_000, seed=1).statistics()
        assert found.visits / 8_000 == pytest.approx(11.25, rel=0.05)
        assert found.pairs / 8_000 == pytest.approx(4.0, rel=0.1)
        assert found.single == pytest.approx(1 / 3, abs=0.03)
        assert found.below_day == pytest.approx(0.5, abs=0.02)
        assert found.above_week == pytest.approx(0.1, abs=0.02)

    def test_one_seed_one_trace(self) -> None:
        one, same, other = (made_up_visits(Grid(3, 9), 50, seed) for seed in (1, 1, 2))
        assert one.cell.tolist() == same.cell.tolist()
        assert one.at_h.tolist() == same.at_h.tolist()
        assert one.cell.tolist() != other.cell.tolist()

    def test_visits_are_in_order_within_the_months_and_never_stay_where_they_are(self) -> None:
        visits = made_up_visits(Grid(4, 12), 300, seed=3)
        assert (np.diff(visits.at_h) >= 0).all()
        assert 0 <= visits.at_h[0] <= visits.at_h[-1] <= 92 * 24
        for user in range(300):
            cells = visits.cell[visits.user == user]
            assert (cells[1:] != cells[:-1]).all()

    def test_checkins_in_one_cell_are_one_visit(self) -> None:
        user = np.array([0, 0, 1, 0], dtype=np.int32)
        cell = np.array([5, 5, 5, 6], dtype=np.int32)
        visits = Visits.of(user, cell, np.array([0.0, 1.0, 2.0, 30.0]), users=2)
        assert len(visits) == 3
        found = visits.statistics()
        assert (found.pairs, found.single) == (3, 1.0)
        # The one visit that ends lasted thirty hours.
        assert (found.below_day, found.above_week) == (0.0, 0.0)


@pytest.mark.parametrize(
    "workload",
    [
        small_location(),
        small_poisson(),
        small_poisson(Pattern.UNIFORM),
        small_poisson(Pattern.ZIPF),
        small_poisson(mode_changes=0.5),
    ],
    ids=["location", "multimodal", "uniform", "zipf", "modes change"],
)
def test_users_drop_what_they_have_and_add_what_they_have_not(workload: Workload) -> None:
    follows: dict[int, set[int]] = {}
    first = [(step.at_h, list(step.changes.rows())) for step in workload.steps()]
    for _, changes in first:
        for change in changes:
            theirs = follows.setdefault(change.user, set())
            assert theirs >= set(change.dropped)
            assert not theirs & set(change.added)
            theirs.difference_update(change.dropped)
            theirs.update(change.added)
    assert first[-1][0] == workload.end_h
    assert [(step.at_h, list(step.changes.rows())) for step in workload.steps()] == first


class TestLocation:
    def test_users_follow_their_own_cell_and_those_of_their_friends(self) -> None:
        workload = small_location()
        follows: dict[int, set[int]] = {}
        for step in workload.steps():
            for change in step.changes.rows():
                theirs = follows.setdefault(change.user, set())
                theirs.difference_update(change.dropped)
                theirs.update(change.added)
        cells = workload.cell_of
        for user, theirs in follows.items():
            known = [int(cells[f]) for f in workload.friends[user] if cells[f] >= 0]
            assert theirs == {int(cells[user]), *known}

    def test_friends_are_four_others(self) -> None:
        friends = small_location().friends
        assert friends.shape[1] == FRIENDS
        for user, theirs in enumerate(friends.tolist()):
            assert len({*theirs, user}) == FRIENDS + 1

    def test_round_trips_grow_with_distance(self) -> None:
        sites = sites_at(Grid(2, 40).places(), seed=1)
        assert sites.rtt_ms[0, 1] < sites.rtt_ms[0, 39]
        assert (sites.rtt_ms == sites.rtt_ms.T).all()
        assert (np.diag(sites.rtt_ms) == 0).all()

    def test_at_full_scale_a_broker_is_in_each_cell(self) -> None:
        blocks = Grid().blocks(1200)
        assert blocks.broker_of_cell.tolist() == list(range(1200))
        assert blocks.places.tolist() == Grid().places().tolist()

    @pytest.mark.parametrize("count", [1, 24, 60, 120, 600])
    def test_below_it_blocks_of_cells_are_alike(self, count: int) -> None:
        blocks = Grid().blocks(count)
        assert len(blocks.places) == pytest.approx(count, rel=0.05)
        cells = np.bincount(blocks.broker_of_cell)
        assert len(cells) == len(blocks.places)
        assert cells.max() <= 4 * cells.min()


class TestPoisson:
    def test_changes_are_as_frequent_as_said(self) -> None:
        steps = list(small_poisson(Pattern.UNIFORM).steps())
        changes = sum(step.changes.size for step in steps[1:])
        assert changes == pytest.approx(300 * 20 * 0.1, rel=0.15)

    def test_interests_stay_within_a_mode(self) -> None:
        for step in small_poisson().steps():
            for change in step.changes.rows():
                modes = {topic // MODE_TOPICS for topic in (*change.dropped, *change.added)}
                assert len(modes) == 1
                assert len(change.added) == (TOPICS_PER_USER if step.at_h == 0 else 1)

    def test_zipf_is_as_printed(self) -> None:
        """In proportion to (i + 1) ** -sigma, i from 1."""
        weights = pattern_weights(Pattern.ZIPF, 1000, 1.0)
        assert weights.sum() == pytest.approx(1.0)
        assert weights[0] / weights[1] == pytest.approx(3 / 2)
        assert weights[0] / weights[998] == pytest.approx(1000 / 2)


HEAD = "user,time,lat,lon\n"


class TestCheckinFiles:
    def test_both_layouts_say_the_same(self, tmp_path: Path) -> None:
        plain, snap = tmp_path / "plain.csv", tmp_path / "snap.txt.gz"
        plain.write_text(HEAD + "7,2010-10-19T23:55:27Z,30.2,-97.8\n")
        with gzip.open(snap, "wt") as out:
            out.write("7\t2010-10-19T23:55:27Z\t30.2\t-97.8\t22847\n")
        for path in (plain, snap):
            (checkin,) = read_checkins(path, BadRows())
            assert (checkin.user, checkin.latitude, checkin.longitude) == ("7", 30.2, -97.8)
            assert checkin.at_s == 1_287_532_527.0

    def test_rows_that_cannot_be_used_are_counted_and_named(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(
            HEAD
            + "1,2010-10-19T23:55:27Z,30.2,-97.8\n"
            + "1,yesterday,30.2,-97.8\n"
            + "1,2010-10-19T23:55:27,30.2,-97.8\n"
            + ",2010-10-19T23:55:27Z,30.2,-97.8\n"
            + "1,2010-10-19T23:55:27Z,91,-97.8\n"
            + "1,2010-10-19T23:55:27Z,nan,-97.8\n"
            + "1,2010-10-19T23:55:27Z,x,-97.8\n"
            + "1,2010-10-19T23:55:27Z,0.0,0.0\n"
            + "1,2010\n"
            + "1,2010-10-20T23:55:27Z,60.0,-97.8\n"
        )
        found = visits_of_file(path, Grid(), UNITED_STATES)
        assert len(found.visits) == 1
        assert found.bad.rows == 10
        assert dict(found.bad.reasons) == {
            "with a time that is none": 1,
            "with a time without a zone": 1,
            "without a user": 1,
            "with a place that is nowhere on earth": 2,
            "with a place that is no number": 1,
            "with an unknown place (0, 0)": 1,
            "with too few columns": 1,
            "outside the area": 1,
        }
        assert found.bad.examples["with a place that is nowhere on earth"] == [6, 7]
        assert str(found.bad).startswith("9 of 10 rows are left out: 2 with a place that is now")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "no column 'user'"),
            ("user,time,lat\n", "no column 'longitude'"),
            (HEAD, "no row can be used"),
            (HEAD + "1,2010-10-20T23:55:27Z,60.0,-97.8\n", "no check-in is inside the area"),
        ],
    )
    def test_files_of_no_use_say_why(self, tmp_path: Path, text: str, why: str) -> None:
        path = tmp_path / "of-no-use.csv"
        path.write_text(text)
        with pytest.raises(CheckinError, match=why):
            visits_of_file(path, Grid(), UNITED_STATES)

    def test_what_is_no_file_or_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "half.csv.gz").write_bytes(gzip.compress(b"user,time,lat,lon\n" * 999)[:-9])
        (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe" * 9)
        for name in ("nothing.csv", "half.csv.gz", "picture.csv"):
            with pytest.raises(CheckinError, match=name):
                visits_of_file(tmp_path / name, Grid())

    @pytest.mark.skipif(not REAL_FILE.exists(), reason="data/checkins_nyc.csv.gz is not here")
    def test_a_real_file(self) -> None:
        found = visits_of_file(REAL_FILE, Grid(20, 20))
        assert (found.bad.rows, found.bad.count, found.visits.users) == (12_340, 0, 684)
        workload = LocationWorkload.of(Grid(20, 20), found.visits, 1, settled_h=24.0)
        assert sum(step.changes.size for step in workload.steps()) > len(found.visits)
