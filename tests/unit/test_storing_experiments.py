"""What figures of Storing and Planning are measured on, and the choices where these are silent."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import networkx as nx
import numpy as np
import pytest

from experiments.figures.catalogue import FIGURES
from experiments.figures.figure import RunSpec
from experiments.figures.measurements import measure
from experiments.metrics.storing import (
    PlannedNetwork,
    alike_problem,
    measure_drift,
    measure_example,
    measure_failures,
    minimum_problem,
    places_problem,
)
from experiments.workloads.storing import (
    TREES,
    draw_centres,
    evenly_asked,
    network_of,
    unevenly_asked,
    zipf,
)

NETWORK = network_of(40, "grown", Random(1))


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("brokers", [1, 2, 3, 30])
def test_trees_are_trees(kind: str, brokers: int) -> None:
    graph = nx.Graph(TREES[kind](brokers, Random(brokers)))
    graph.add_nodes_from(range(brokers))
    assert nx.is_tree(graph)


def test_all_labelled_trees_are_alike_in_the_uniform_kind() -> None:
    """There are 16 of four brokers."""
    found: dict[frozenset[frozenset[int]], int] = {}
    for seed in range(1_600):
        links = TREES["uniform"](4, Random(seed))
        shape = frozenset(frozenset(link) for link in links)
        found[shape] = found.get(shape, 0) + 1
    assert len(found) == 16
    assert min(found.values()) > 60


class TestTraps:
    def test_uniform_locality_is_the_whole_network(self) -> None:
        """So l_t is a share of the largest, and no share of all: that would be a tenth."""
        workload = unevenly_asked(NETWORK, 1.0, 0.0, [0] * 10)
        assert (workload.requests > 0).all()

    def test_popularity_of_ten_alike_topics_is_two_and_a_half_requests(self) -> None:
        """From each broker: 25 p_t, with p_t = 0.1."""
        workload = unevenly_asked(NETWORK, 0.0, 0.0, [0] * 10)
        assert workload.requests == pytest.approx(np.full((10, 40), 2.5))

    @pytest.mark.parametrize("locality", [-1.0, 0.5, 1.0])
    @pytest.mark.parametrize("popularity", [-1.0, 0.0, 1.0])
    def test_neither_exponent_alters_the_traffic_generated(
        self, popularity: float, locality: float
    ) -> None:
        workload = unevenly_asked(NETWORK, popularity, locality, draw_centres(40, Random(2)))
        assert workload.requests.sum() == pytest.approx(25.0 * 40)

    def test_a_negative_exponent_favours_the_last_topic(self) -> None:
        assert zipf(-1.0).argmax() == 9
        workload = unevenly_asked(NETWORK, 0.0, -1.0, [0] * 10)
        asking = (workload.requests > 0).sum(axis=1)
        # Rounded up: a tenth of 40 is 4, two tenths are 8.
        assert asking.tolist() == list(range(4, 44, 4))

    def test_those_who_ask_are_nearest_to_a_centre(self) -> None:
        workload = unevenly_asked(NETWORK, 0.0, 1.0, [7] * 10)
        near = NETWORK.distances[7][workload.requests[9] > 0]
        far = NETWORK.distances[7][workload.requests[9] == 0]
        assert near.max() <= far.min()

    def test_twenty_stores_follow_from_min_k_of_two(self) -> None:
        """Popularities of 1 to 1/10 make k_t 20 to 2: M is the 20 that the paper goes on with."""
        problem = minimum_problem(unevenly_asked(NETWORK, 1.0, 0.0, [0] * 10), 5, 2)
        assert problem.replicas.tolist() == [20, 10, 6, 5, 4, 3, 2, 2, 2, 2]
        assert problem.stores == 20
        up = minimum_problem(unevenly_asked(NETWORK, 1.0, 0.0, [0] * 10), 5, 2, rounded_up=True)
        assert up.replicas.tolist() == [20, 10, 7, 5, 4, 4, 3, 3, 3, 2]

    def test_fewer_than_all_brokers_are_stores(self) -> None:
        small = network_of(12, "grown", Random(1))
        problem = minimum_problem(unevenly_asked(small, 1.0, 0.0, [0] * 10), 5, 2)
        assert problem.stores == 11
        assert problem.replicas.max() == 11

    def test_places_are_shared_by_weight(self) -> None:
        even = places_problem(unevenly_asked(NETWORK, 0.0, 0.0, [0] * 10), 20, 5)
        assert even.replicas.tolist() == [10] * 10
        steep = places_problem(unevenly_asked(NETWORK, 1.0, 0.0, [0] * 10), 20, 5)
        assert steep.replicas.tolist() == [20, 17, 11, 8, 6, 5, 4, 4, 3, 3]

    def test_stores_of_storing_have_just_the_places(self) -> None:
        workload = evenly_asked(20, Random(3))
        assert alike_problem(workload, 2, 2).stores == 10
        # SC = T: as many as replicas.
        assert alike_problem(workload, 10, 3).stores == 3
        nearby = evenly_asked(20, Random(3), asked_by=0.2)
        assert ((nearby.requests > 0).sum(axis=1) == 4).all()


class TestMeasures:
    OF = PlannedNetwork("wrr", 30, 6, 5)

    def test_nothing_fails_is_as_planned_and_failures_cost_hops(self) -> None:
        hops = [measure_failures(0.2, 1, self.OF, 0.8, failed)["hops"] for failed in (0, 2, 4)]
        assert hops == sorted(hops)
        planned = measure_drift(0.2, 1, self.OF, (0.8, 0.0), (0.8, 0.0), "unchanged")
        assert hops[0] == planned["hops"]

    def test_topics_without_a_store_are_counted(self) -> None:
        found = measure_failures(0.2, 1, self.OF, 0.8, 6 - 1)
        assert 0 < found["unserved"] < 1
        again = measure_failures(0.2, 1, self.OF, 0.8, 6 - 1, again=True)
        assert again["unserved"] < found["unserved"]

    def test_reassignment_keeps_the_stores_and_replanning_does_not_mind(self) -> None:
        def hops(mode: str) -> float:
            return measure_drift(0.2, 1, self.OF, (0.0, -1.0), (0.0, 1.0), mode)["hops"]

        assert hops("reassigned") < hops("unchanged")
        same = [
            measure_drift(0.2, 1, self.OF, (1.0, 0.0), (1.0, 0.0), mode)["hops"]
            for mode in ("unchanged", "reassigned", "replanned")
        ]
        assert same == [same[0]] * 3

    def test_the_example_is_that_of_the_papers(self) -> None:
        found = measure_example()
        assert (found["wrr_a"], found["round_2"]) == (23, 311)

    @pytest.mark.parametrize(
        "name", [name for name in FIGURES if name.startswith(("storing-", "planning-"))]
    )
    def test_a_run_of_each_figure(self, name: str) -> None:
        """The same seed measures the same, and another one something else."""
        spec = smallest(FIGURES[name].runs(0.1))
        found = measure(spec, 0.1, 1)
        assert found == measure(spec, 0.1, 1)
        assert found["hops"] != measure(spec, 0.1, 2)["hops"]
        assert set(FIGURES[name].metrics) <= set(found)


def smallest(specs: Sequence[RunSpec]) -> RunSpec:
    return min(specs, key=lambda spec: (int(spec["brokers"]), str(spec["system"]) != "wrr"))
