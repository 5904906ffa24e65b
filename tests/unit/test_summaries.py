"""What brokers of a cluster tell each other, and what they keep of it."""

from __future__ import annotations

from random import Random

import pytest

from broker_agent.core.selection.cluster_names import cluster_of
from broker_agent.core.selection.selection import Selection
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.selection.summaries import DOORS_MAX, NAME_CHARACTERS_MAX
from broker_agent.core.sessions.local_topics import LocalTopics
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.base.identifiers import RING_MASK, first_node_id
from tests.support.selecting import selection, told, without_keys


def summary_of(here: Selection, now_s: float) -> BrokerSummary:
    summary = here.summary(now_s)
    assert summary is not None
    return summary


# ---- telling -------------------------------------------------------------------------------------


def test_local_topics_count_what_begins_and_ends() -> None:
    local = LocalTopics()
    local.add([1, 2])
    local.add([2, 3])
    assert (local.subscriptions, local.changes, local.counts) == (4, 3, {1: 1, 2: 2, 3: 1})
    local.remove([1, 2])
    assert (local.subscriptions, local.changes, local.counts) == (2, 4, {2: 1, 3: 1})
    with pytest.raises(KeyError):
        local.remove([1])


def test_every_period_with_keys_only_if_they_changed() -> None:
    here = selection()
    here.local.add([5, 3])
    here.local.sessions = 1
    first = summary_of(here, 0.0)
    assert (first.broker_id, first.address, first.incarnation, first.number) == ("me", "me:1", 1, 1)
    assert (first.full, list(first.keys), first.truncated) == (True, [3, 5], False)
    assert (first.subscriptions, first.sessions) == (2, 1)
    assert here.summary(1.9) is None
    # Load changes, topics do not.
    here.local.add([5])
    short = summary_of(here, 2.0)
    assert (short.full, list(short.keys), short.number) == (False, [], 2)
    assert (short.digest, short.subscriptions) == (first.digest, 3)
    here.local.add([7])
    assert list(summary_of(here, 4.0).keys) == [3, 5, 7]
    assert (here.counters.summaries_sent, here.counters.summary_keys_sent) == (3, 5)


def test_before_its_time_if_much_has_changed() -> None:
    here = selection()
    summary_of(here, 0.0)
    here.local.add([1, 2])
    assert here.summary(1.0) is None
    here.local.add([3])
    assert here.summary(0.1) is None
    assert list(summary_of(here, 0.2).keys) == [1, 2, 3]
    here.local.add(range(10, 97))
    summary_of(here, 0.4)
    here.local.add([4, 5, 6])
    # Three of 93 are not much.
    assert here.summary(1.0) is None
    here.local.add([7, 8])
    assert here.summary(1.0) is not None


def test_doors_are_told_each_time_and_with_the_last_word() -> None:
    doors = {"outside": "me.example.org:7400"}
    here = Selection("me", "me:1", 1, SelectionSettings(), Random(0), doors)
    for now_s in (0.0, 2.0):
        assert summary_of(here, now_s).doors == doors
    assert here.farewell(3.0).doors == doors


def test_as_published_only_every_period() -> None:
    here = selection(SelectionSettings(early_share=0.0))
    summary_of(here, 0.0)
    here.local.add(range(100))
    assert here.summary(1.99) is None
    assert here.summary(2.0) is not None


def test_messages_are_counted_as_the_paper_counts_them() -> None:
    here = selection()
    summary_of(here, 0.0)
    for name in "abc":
        here.on_summary(told(name, {1}), 1.0)
    summary_of(here, 2.0)
    summary_of(here, 4.0)
    # Nobody has been heard for too long.
    summary_of(here, 10.0)
    assert here.counters.summary_messages == 0 + 3 + 3 + 0


def test_of_too_many_topics_the_lowest_are_told() -> None:
    here = selection(SelectionSettings(summary_keys_max=3))
    here.local.add([9, 4, 1, 7])
    summary = summary_of(here, 0.0)
    assert (list(summary.keys), summary.truncated, summary.subscriptions) == ([1, 4, 7], True, 4)


# ---- hearing -------------------------------------------------------------------------------------


def test_one_who_is_new_makes_the_keys_be_told_again() -> None:
    here = selection()
    here.local.add([1])
    assert summary_of(here, 0.0).full
    here.on_summary(told("b", {1}), 1.0)
    assert summary_of(here, 2.0).full
    here.on_summary(told("b", {1}, number=2), 3.0)
    assert not summary_of(here, 4.0).full


def test_keys_that_were_missed_are_asked_for_and_told() -> None:
    here, there = selection(), selection()
    there_summary = told("b", {1, 2}, number=4)
    here.on_summary(without_keys(there_summary), 0.0)
    assert here.neighbours.fresh(0.0) == []
    asking = summary_of(here, 0.0)
    assert list(asking.wants) == ["b"]
    there.on_summary(told("a", {1}), 0.0)
    summary_of(there, 0.0)
    there.on_summary(told("a", {1}, number=2, wants=["me"]), 1.0)
    assert summary_of(there, 2.0).full
    here.on_summary(told("b", {1, 2}, number=5), 3.0)
    assert [n.keys for n in here.neighbours.fresh(3.0)] == [{1, 2}]
    assert not summary_of(here, 4.0).wants


def test_unchanged_keys_are_kept_and_changed_ones_missed() -> None:
    here = selection()
    here.on_summary(told("b", {1, 2}, load=2), 0.0)
    here.on_summary(without_keys(told("b", {1, 2}, load=9, number=2)), 2.0)
    (known,) = here.neighbours.fresh(2.0)
    assert (known.keys, known.load, known.heard_s) == (frozenset({1, 2}), 9, 2.0)
    here.on_summary(without_keys(told("b", {1, 2, 3}, number=3)), 4.0)
    assert here.neighbours.fresh(4.0) == []
    assert here.neighbours.keyless == ["b"]
    # Nobody is asked for ever.
    assert here.neighbours.fresh(12.0) == []
    assert here.neighbours.keyless == []


@pytest.mark.parametrize(
    "summary",
    [
        told("b", {9}, number=5),
        told("b", {9}, number=4),
        told("", {9}),
        told("b" * 2_000, {9}),
        told("c", {9}, address=" " * 2_000),
        told("c", range(4)),
        told("c", {9}, doors={f"d{i}": "c:1" for i in range(DOORS_MAX + 1)}),
        told("c", {9}, doors={"outside": " " * (NAME_CHARACTERS_MAX + 1)}),
        BrokerSummary(broker_id="c", full=True),
    ],
    ids=[
        "repeated",
        "late",
        "nameless",
        "long name",
        "long address",
        "too many keys",
        "too many doors",
        "long address outside",
        "nowhere",
    ],
)
def test_what_is_ignored(summary: BrokerSummary) -> None:
    here = selection(SelectionSettings(summary_keys_max=3))
    here.on_summary(told("b", {1}, number=5), 0.0)
    here.on_summary(summary, 1.0)
    assert here.counters.summaries_ignored == 1
    assert [n.keys for n in here.neighbours.fresh(1.0)] == [{1}]


def test_a_new_life_begins_its_numbers_anew() -> None:
    here = selection()
    here.on_summary(told("b", {1}, number=5), 0.0)
    here.on_summary(told("b", {2}, number=1, incarnation=2), 1.0)
    here.on_summary(told("b", {1}, number=6), 2.0)
    assert [n.keys for n in here.neighbours.fresh(2.0)] == [{2}]


def test_a_cluster_has_a_bound() -> None:
    here = selection(SelectionSettings(cluster_size_max=2))
    here.on_summary(told("a", {1}), 0.0)
    here.on_summary(without_keys(told("b", {1})), 0.0)
    here.on_summary(told("c", {1}), 0.0)
    assert here.counters.summaries_ignored == 1
    here.on_summary(told("b", {1}, number=2), 0.0)
    assert {n.broker_id for n in here.neighbours.fresh(0.0)} == {"a", "b"}
    # Room comes when somebody falls silent.
    here.on_summary(told("b", {1}, number=3), 6.0)
    here.on_summary(told("c", {1}, number=2), 8.0)
    assert {n.broker_id for n in here.neighbours.fresh(8.0)} == {"b", "c"}


def test_ones_own_summary_is_no_news() -> None:
    here = selection()
    here.on_summary(told("me", {1}), 0.0)
    assert here.counters.summaries_received == here.counters.summaries_ignored == 0


def test_a_truncated_summary_is_compared_where_it_can_be() -> None:
    here = selection()
    here.on_summary(told("b", {1, 4, 7}, truncated=True), 0.0)
    (known,) = here.neighbours.fresh(0.0)
    assert known.share_of({1, 7, 8, 9}) == 1.0
    assert known.share_of({1, 2, 9}) == 0.5
    assert known.share_of({8, RING_MASK}) == 0.0


# ---- clusters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "labels", "name"),
    [
        ({}, {}, "all"),
        ({"cluster": "west"}, {"region": "eu"}, "west"),
        ({"cluster_label": "region"}, {"region": "eu"}, "region=eu"),
        ({"cluster_label": "region"}, {}, "all"),
        ({"cluster_cell_degrees": 5.0}, {"latitude": "52.5", "longitude": "-0.1"}, "cell=10,-1"),
        ({"cluster_cell_degrees": 5.0}, {"latitude": "52.5"}, "all"),
        ({"cluster": "west", "cluster_parts": 8}, {}, "west/2"),
    ],
)
def test_cluster(settings: dict[str, str], labels: dict[str, str], name: str) -> None:
    assert cluster_of(SelectionSettings(**settings), "b0", labels) == name  # type: ignore[arg-type]


def test_brokers_of_a_part_of_a_cluster_are_beside_each_other_on_the_ring() -> None:
    settings = SelectionSettings(cluster_parts=4)
    ring = sorted((f"broker-{i}" for i in range(100)), key=first_node_id)
    parts = [cluster_of(settings, name, {}) for name in ring]
    assert parts == sorted(parts)
    assert all(15 <= parts.count(f"all/{part}") <= 35 for part in range(4))


@pytest.mark.parametrize("latitude", ["north", "91", "nan", ""])
def test_a_place_that_is_none(latitude: str) -> None:
    settings = SelectionSettings(cluster_cell_degrees=1.0)
    with pytest.raises(ValueError, match="label latitude="):
        cluster_of(settings, "b0", {"latitude": latitude, "longitude": "0"})
