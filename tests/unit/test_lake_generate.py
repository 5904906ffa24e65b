"""A made-up lake: users do what users can do, and the same specification makes the same rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from dynatops.lake.describe import describe
from dynatops.lake.fields import PUBLICATIONS, REQUESTS, SESSIONS, SUBSCRIPTIONS, TABLES
from dynatops.lake.files import Lake, LakeError
from dynatops.local.made_up_lake.generate import generate
from dynatops.local.made_up_lake.world import LakeSpec, LakeWorld
from overlay.base.identifiers import first_node_id, key_of
from tests.support.lakes import read_rows, unfinished_files, whole_files

START = datetime(2026, 3, 1, tzinfo=UTC)
SPEC = LakeSpec(
    users=300, brokers=12, topics=100, days=2, rows=20_000, changes_per_day=3.0, mode_changes=0.3,
    strays=0.2, moves_per_day=3.0, start=START, seed=7,
)  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    rows = generate(Lake.open(str(folder)), SPEC)
    assert rows == {t.name: len(read_rows(folder, t)) for t in TABLES.values()}
    return folder


def test_users_subscribe_to_what_they_have_not_and_give_up_what_they_have(lake: Path) -> None:
    held: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in read_rows(lake, SUBSCRIPTIONS):
        topics = held[row["user_id"], row["broker_id"]]
        if row["op"] == "subscribe":
            assert row["topic"] not in topics
            topics.add(row["topic"])
        else:
            topics.remove(row["topic"])
    left = {where: topics for where, topics in held.items() if topics}
    assert len(left) == SPEC.users
    assert {len(topics) for topics in left.values()} == {SPEC.topics_per_user}


def test_users_are_at_one_broker_or_two_for_a_moment(lake: Path) -> None:
    at: defaultdict[str, list[str]] = defaultdict(list)
    asleep: set[str] = set()
    moves = 0
    for row in read_rows(lake, SESSIONS):
        user, broker, op = row["user_id"], row["broker_id"], row["op"]
        assert -90 <= row["latitude"] <= 90
        if op == "open":
            moves += bool(at[user])
            at[user].append(broker)
        elif op == "leave":
            assert at[user].pop(0) == broker
        elif op == "close":
            assert at[user] == [broker]
            asleep.add(user)
        else:
            asleep.remove(user)
        assert len(at[user]) <= 2
    assert {len(brokers) for brokers in at.values()} == {1}
    assert not asleep
    # Trips that lead where the user is do not count.
    assert 1.5 < moves / SPEC.users / SPEC.days <= 3.2


def test_publications_are_about_as_many_as_asked_for(lake: Path) -> None:
    rows = read_rows(lake, PUBLICATIONS)
    assert len(rows) == pytest.approx(SPEC.rows, rel=0.03)
    seconds = rows[0]["window_s"]
    pairs = {(row["window_start"], row["topic"]) for row in rows}
    assert len(pairs) == len(rows)
    for row in rows:
        assert START <= row["window_start"] < START + timedelta(days=SPEC.days)
        assert (row["window_start"] - START).total_seconds() % seconds == 0
        assert row["events"] > 0
        assert row["bytes"] >= 8 * row["events"]


def test_topics_are_counted_at_their_rendezvous_points(lake: Path) -> None:
    ring = sorted((first_node_id(f"b{i}"), f"b{i}") for i in range(SPEC.brokers))
    for topic, broker in {(r["topic"], r["broker_id"]) for r in read_rows(lake, PUBLICATIONS)}:
        owner = next((name for node, name in ring if node >= key_of(topic)), ring[0][1])
        assert broker == owner


def test_requests_are_for_what_users_who_came_follow(lake: Path) -> None:
    came = Counter((row["broker_id"], row["topic"]) for row in read_rows(lake, SUBSCRIPTIONS))
    for row in read_rows(lake, REQUESTS):
        assert row["count"] >= 1
        assert (row["broker_id"], row["topic"]) in came


def test_days_are_busy_and_quiet(lake: Path) -> None:
    by_hour = Counter(row["time"].hour for row in read_rows(lake, SUBSCRIPTIONS)[1_500:])
    assert max(by_hour.values()) > 2 * min(by_hour.values())


def test_the_same_specification_makes_the_same_files(lake: Path, tmp_path: Path) -> None:
    generate(Lake.open(str(tmp_path)), SPEC)
    files = [path.relative_to(lake) for path in whole_files(lake)]
    assert [path.relative_to(tmp_path) for path in whole_files(tmp_path)] == files
    assert all((lake / f).read_bytes() == (tmp_path / f).read_bytes() for f in files)


def test_no_lake_is_written_over(lake: Path) -> None:
    with pytest.raises(LakeError, match="has publications already"):
        generate(Lake.open(str(lake)), SPEC)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"users": 0}, "users must be above 0"),
        ({"topics": 15}, "15 is no multiple"),
        ({"topics_per_user": 11}, "at most 10"),
        ({"skew": -1}, "skew must not be negative"),
    ],
)
def test_worlds_that_cannot_be(values: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LakeSpec(**values)  # type: ignore[arg-type]


def test_more_rows_than_topics_can_make(tmp_path: Path) -> None:
    spec = LakeSpec(users=10, brokers=1, topics=10, days=1, rows=1_000_000)
    with pytest.raises(ValueError, match="10 topics make at most 432,000 rows in 1 days"):
        generate(Lake.open(str(tmp_path)), spec)


@pytest.mark.parametrize("spec", [LakeSpec(users=1, brokers=1, topics=10, days=1, rows=10)])
def test_small_worlds(tmp_path: Path, spec: LakeSpec) -> None:
    rows = generate(Lake.open(str(tmp_path)), spec)
    assert rows["sessions"] >= 1
    assert rows["subscriptions"] >= 5


class TestDescribe:
    def test_says_what_is_there(self, lake: Path) -> None:
        for summary in describe(Lake.open(str(lake))):
            table = TABLES[summary.name]
            rows = read_rows(lake, table)
            files = list((lake / table.name).rglob("*.parquet"))
            assert (summary.files, summary.rows) == (len(files), len(rows))
            assert summary.nbytes == sum(path.stat().st_size for path in files)
            assert summary.first == rows[0][table.time_field]
            assert summary.last == rows[-1][table.time_field]
            assert summary.bad == []
        assert unfinished_files(lake) == []

    def test_names_what_cannot_be_read(self, tmp_path: Path) -> None:
        spec = LakeSpec(users=5, brokers=1, topics=10, days=1, rows=100)
        generate(Lake.open(str(tmp_path)), spec)
        good = describe(Lake.open(str(tmp_path)))
        first, second = whole_files(tmp_path)[:2]
        broken = first.with_name("x-1-1.parquet")
        broken.write_bytes(first.read_bytes()[:-10])
        # A file of another table.
        strange = first.with_name("y-1-1.parquet")
        strange.write_bytes(min((tmp_path / "sessions").rglob("*.parquet")).read_bytes())
        (first.parent / "_SUCCESS").touch()
        (first.parent / "_half.parquet").write_bytes(b"PAR1")
        summary = describe(Lake.open(str(tmp_path)))[0]
        assert (summary.files, summary.rows) == (good[0].files, good[0].rows)
        assert [path for path, _ in summary.bad] == [str(broken), str(strange)]
        assert "window_start" in summary.bad[1][1]
        assert second.exists()

    def test_no_lake_has_no_rows(self, tmp_path: Path) -> None:
        summaries = describe(Lake.open(str(tmp_path / "none")))
        assert [summary.files for summary in summaries] == [0, 0, 0, 0]


def test_a_fair_share_of_users_follows_strays() -> None:
    spec = LakeSpec(users=20_000, brokers=10, topics=1_000, strays=0.05)
    world = LakeWorld(spec, np.random.default_rng(1))
    strays = (world.follows // 10 != world.mode[:, None]).mean()
    assert strays == pytest.approx(0.05, rel=0.1)
    ordered = np.sort(world.follows, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all()
