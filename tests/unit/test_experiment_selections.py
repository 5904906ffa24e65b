"""How users come to brokers, and what of it brokers' subscriptions are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_agent.core.selection.selection_settings import SelectionSettings
from experiments.metrics.run import Measuring, batches, netted, run
from experiments.systems.catalogue import SYSTEMS, Options
from experiments.systems.selections import (
    PUBLISHED,
    BrokerChange,
    BrokerChanges,
    SimilaritySelection,
    chance_clusters,
    place_clusters,
)
from experiments.workloads.grid import Grid
from experiments.workloads.location import LocationWorkload
from experiments.workloads.made_up_visits import made_up_visits
from experiments.workloads.patterns import Pattern
from experiments.workloads.poisson import PoissonWorkload
from experiments.workloads.workload import UserChange, UserChanges, Workload

GRID = Grid(3, 9)


def location() -> Workload:
    visits = made_up_visits(GRID, 120, 1, days=20)
    return LocationWorkload.of(GRID, visits, 1, settled_h=48.0)


def poisson() -> Workload:
    return PoissonWorkload(
        Pattern.MULTIMODAL, 0.1, seed=1, users=200, brokers=9, topic_count=100, hours=15
    )


@pytest.mark.parametrize("workload", [location(), poisson()], ids=["location", "poisson"])
@pytest.mark.parametrize(
    "system", ["bayeux-static", "bayeux-loc", "geops", "dynatops-bs", "dynatops-shipped"]
)
def test_brokers_subscribe_to_what_their_users_do(workload: Workload, system: str) -> None:
    kind = SYSTEMS[system]
    if kind.adapt is not None:
        if workload.topics.places is None:
            pytest.skip("it is for topics that have places")
        workload = kind.adapt(workload)
    selection = kind.selection(workload, Options(cluster_size=4), 1)
    held: set[tuple[int, int]] = set()
    for step in workload.steps():
        selection.advance(step.at_h)
        for found in selection.apply(step.changes).rows():
            pair = (found.broker, found.topic)
            assert (pair in held) != found.joins
            held.symmetric_difference_update({pair})
    users, topics = selection.interests()
    brokers = selection.broker_of[users]
    assert held == set(zip(brokers.tolist(), topics.tolist(), strict=True))
    loads = np.bincount(brokers, minlength=len(workload.sites))
    assert loads.tolist() == selection.loads().tolist()


def changes_of(*rows: UserChange) -> UserChanges:
    return UserChanges.of(rows)


def test_in_a_cluster_of_one_nothing_is_said_and_nobody_is_sent_away() -> None:
    workload = poisson()
    selection = SimilaritySelection(workload, chance_clusters(9, 1, 1), PUBLISHED, 1)
    for hour in range(50):
        selection.advance(float(hour))
        gone = (hour - 1,) if hour else ()
        selection.apply(changes_of(UserChange(0, 0, gone, (hour,))))
    assert (selection.messages, selection.handovers) == (0, 0)


def test_messages_within_a_cluster_are_all_to_all_every_period() -> None:
    settings = replace(PUBLISHED, update_period_s=6 * 3600.0)
    selection = SimilaritySelection(poisson(), chance_clusters(9, 4, 1), settings, 1)
    for hour in range(24):
        selection.advance(float(hour))
    # Two clusters of four; the ninth broker is alone.
    assert selection.messages == 4 * 8 * 3


@pytest.mark.parametrize(
    "limited",
    [
        replace(PUBLISHED, min_stay_s=5.0),
        replace(PUBLISHED, moves_per_s=50.0),
        replace(PUBLISHED, summary_keys_max=99),
        replace(PUBLISHED, interests_max=4),
    ],
)
def test_settings_with_limits_are_refused(limited: SelectionSettings) -> None:
    with pytest.raises(ValueError, match="limits that are not computed here"):
        SimilaritySelection(poisson(), chance_clusters(9, 3, 1), limited, 1)


def test_no_selection_hands_over_fewer_users_than_leave_a_cluster() -> None:
    workload, options = location(), Options(cluster_size=5)

    def handovers(system: str) -> int:
        selection = SYSTEMS[system].selection(workload, options, 1)
        for step in workload.steps():
            selection.advance(step.at_h)
            selection.apply(step.changes)
        return selection.handovers

    clusters = place_clusters(workload.sites.places, 5)
    cluster_of = {broker: i for i, cluster in enumerate(clusters) for broker in cluster.tolist()}
    at: dict[int, int] = {}
    journeys = 0
    for step in workload.steps():
        for change in step.changes.rows():
            home = cluster_of[int(workload.broker_of_cell[change.cell])]
            journeys += at.get(change.user, home) != home
            at[change.user] = home
    assert handovers("cluster-loc") == journeys > 50
    assert handovers("dynatops-bs") >= journeys
    assert handovers("dynatops-shipped") >= journeys


def test_clusters_by_place_are_of_one_size_and_lie_together() -> None:
    clusters = place_clusters(Grid(4, 12).places(), 6)
    assert sorted(np.concatenate(clusters).tolist()) == list(range(48))
    for cluster in clusters:
        assert len(cluster) == 6
        assert np.ptp(Grid(4, 12).places()[cluster], axis=0).max() <= 3


def test_changes_are_told_in_order_and_a_pair_once_at_a_time() -> None:
    on, off, other = BrokerChange(1, 2, True), BrokerChange(1, 2, False), BrokerChange(1, 3, True)

    def batched(*rows: BrokerChange) -> list[list[BrokerChange]]:
        return [list(batch.rows()) for batch in batches(BrokerChanges.of(rows))]

    def left(*rows: BrokerChange) -> list[BrokerChange]:
        return list(netted(BrokerChanges.of(rows)).rows())

    assert batched(on, other, off, on) == [[on, other], [off], [on]]
    assert batched() == []
    assert left(on, other, off) == [other]
    assert left(other, on) == [other, on]
    assert left(off, on) == []
    assert left(on, off, on) == [on]


def test_a_run_is_the_same_again() -> None:
    kind, workload = SYSTEMS["dynatops"], poisson()

    def measured() -> dict[str, float]:
        options = Options(cluster_size=3)
        return dict(
            run(
                workload,
                kind.selection(workload, options, 1),
                kind.network(workload, options, 1),
                Measuring(free_h=5.0, publications=20),
                1,
            )
        )

    found = measured()
    assert found == measured()
    assert found["delay"] > 0
    assert found["reconfigurations"] >= 1
