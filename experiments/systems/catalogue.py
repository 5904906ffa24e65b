"""The compared systems by name: which selection, which network. A line registers one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from experiments.systems.bayeux import Bayeux
from experiments.systems.chord_trees import ChordTrees, Reconfiguring, Way
from experiments.systems.geops import GeoPS, cell_at, cell_centres
from experiments.systems.selections import (
    PUBLISHED,
    SHIPPED,
    PlaceSelection,
    SimilaritySelection,
    StaticSelection,
    UserSelection,
    chance_clusters,
    place_clusters,
)
from experiments.systems.system import BrokerNetwork
from experiments.systems.topic_connected import Division, TopicConnected
from experiments.workloads.location import LocationWorkload
from experiments.workloads.workload import Workload

# `refine` ends by steps, not by time: a run can be repeated on any machine.
REFINE_ITERATIONS_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What figures vary of a system."""

    # c; of selections by similarity.
    cluster_size: int = 10
    # w_l, times the number of brokers of a cluster.
    load_weight: float = 1.2
    # w_d.
    delay_weight: float = 1.0
    update_h: float = 6.0
    # Whether delays in the cost are sums of round trips, as eq. 1 says, or hops; None: as eq. 1
    # says, unless all round trips are the same anyway.
    by_rtt: bool | None = None
    # Whether users count among those of their brokers; None: as published, or as shipped.
    counts_itself: bool | None = None


MakeSelection = Callable[[Workload, Options, int], UserSelection]
MakeNetwork = Callable[[Workload, Options, int], BrokerNetwork]


@dataclass(frozen=True, slots=True)
class SystemKind:
    name: str
    title: str
    selection: MakeSelection
    network: MakeNetwork
    # It is rearranged every T_free.
    rearranges: bool = False
    # It is mended once a step, and sees only what that changed.
    by_step: bool = False
    # Where its brokers are, if not in the cells of the workload.
    adapt: Callable[[Workload], Workload] | None = None


def _static(workload: Workload, options: Options, seed: int) -> UserSelection:
    return StaticSelection(workload, seed)


def _by_place(workload: Workload, options: Options, seed: int) -> UserSelection:
    return PlaceSelection(workload, workload.broker_of_cell)


def _by_place_of_cluster(workload: Workload, options: Options, seed: int) -> UserSelection:
    """Whoever stays in a cluster stays at one broker: no selection has fewer handovers."""
    first = np.arange(len(workload.sites), dtype=np.int32)
    for cluster in place_clusters(workload.sites.places, options.cluster_size):
        first[cluster] = cluster[0]
    return PlaceSelection(workload, first[workload.broker_of_cell])


def _similar(*, shipped: bool) -> MakeSelection:
    def make(workload: Workload, options: Options, seed: int) -> UserSelection:
        settings = replace(
            SHIPPED if shipped else PUBLISHED,
            load_weight=options.load_weight,
            update_period_s=3600.0 * options.update_h,
            stale_after_s=3600.0 * (2 * options.update_h + 1),
        )
        size = options.cluster_size
        if workload.topics.places is None:
            clusters = chance_clusters(len(workload.sites), size, seed)
        else:
            clusters = place_clusters(workload.sites.places, size)
        itself = options.counts_itself
        return SimilaritySelection(
            workload,
            clusters,
            settings,
            seed,
            counts_itself=not shipped if itself is None else itself,
        )

    return make


def _chord(solver: str | None = None, way: Way = Way.ROUTED) -> MakeNetwork:
    def make(workload: Workload, options: Options, seed: int) -> BrokerNetwork:
        by_rtt = workload.topics.places is not None if options.by_rtt is None else options.by_rtt
        most = REFINE_ITERATIONS_MAX if solver == "refine" else float("inf")
        reconfiguring = Reconfiguring(
            solver=solver,
            delay_weight=options.delay_weight,
            iterations_max=most,
            by_rtt=by_rtt,
        )
        return ChordTrees(workload.sites, workload.topics, seed, reconfiguring, way)

    return make


_DYNATOPS = (
    SystemKind("dynatops-bs", "DYNATOPS (BS)", _similar(shipped=False), _chord()),
    SystemKind(
        "dynatops-bnr", "DYNATOPS (BNR)", _by_place, _chord("dynatops-greedy"), rearranges=True
    ),
    SystemKind(
        "dynatops",
        "DYNATOPS (BS+BNR)",
        _similar(shipped=False),
        _chord("dynatops-greedy"),
        rearranges=True,
    ),
    SystemKind(
        "dynatops-refine",
        "DYNATOPS, refine",
        _similar(shipped=False),
        _chord("refine"),
        rearranges=True,
    ),
    SystemKind(
        "dynatops-shipped",
        "DYNATOPS as shipped",
        _similar(shipped=True),
        _chord("refine", Way.DIRECT),
        rearranges=True,
    ),
    SystemKind("chord-static", "Chord (static)", _static, _chord()),
    SystemKind("chord-loc", "Chord (loc)", _by_place, _chord()),
    SystemKind("cluster-loc", "Chord (a broker a cluster)", _by_place_of_cluster, _chord()),
)


def _bayeux(*, proximity: bool = False) -> MakeNetwork:
    def make(workload: Workload, options: Options, seed: int) -> BrokerNetwork:
        return Bayeux(workload.sites, workload.topics, seed, proximity=proximity)

    return make


def _geops(*, siblings: bool = True) -> MakeNetwork:
    def make(workload: Workload, options: Options, seed: int) -> BrokerNetwork:
        return GeoPS(workload.sites, workload.topics, seed, siblings=siblings)

    return make


def _on_geops_cells(workload: Workload) -> Workload:
    """As many brokers as come nearest, on a square whose edges are a power of two."""
    if not isinstance(workload, LocationWorkload):
        raise TypeError("GeoPS is for topics that have places")
    grid = workload.grid
    side = max(2, 1 << round(math.log2(len(workload.sites)) / 2))
    centres = cell_centres(grid.rows, grid.columns, side)
    return workload.with_brokers(centres, cell_at(grid.places(), grid.rows, grid.columns, side))


def _connected(
    division: Division | None = None, *, each_alone: bool = False, flooding: bool = False
) -> MakeNetwork:
    def make(workload: Workload, options: Options, seed: int) -> BrokerNetwork:
        taken = Division(parts=len(workload.sites)) if each_alone else division or Division()
        return TopicConnected(
            workload.sites, workload.topics, seed, division=taken, flooding=flooding
        )

    return make


_COMPARED = (
    SystemKind("bayeux-static", "Bayeux (static)", _static, _bayeux()),
    SystemKind("bayeux-loc", "Bayeux (loc)", _by_place, _bayeux()),
    SystemKind("bayeux-pns", "Bayeux (loc+PNS)", _by_place, _bayeux(proximity=True)),
    SystemKind("geops", "GeoPS", _by_place, _geops(), adapt=_on_geops_cells),
    SystemKind(
        "geops-tree",
        "GeoPS (no siblings)",
        _by_place,
        _geops(siblings=False),
        adapt=_on_geops_cells,
    ),
    SystemKind("tco", "TCO (DCB-M)", _static, _connected(), by_step=True),
    SystemKind(
        "tco-no-bulk",
        "TCO (nobody is bulk)",
        _static,
        _connected(Division(bulk_share=1.0)),
        by_step=True,
    ),
    SystemKind(
        "tco-represented",
        "TCO (nobody is bulk, representatives)",
        _static,
        _connected(Division(bulk_share=1.0, representatives=True)),
        by_step=True,
    ),
    SystemKind("tco-often", "TCO (several times an hour)", _static, _connected()),
    SystemKind("tco-flooding", "TCO (flooding)", _static, _connected(flooding=True), by_step=True),
    SystemKind(
        "tco-least", "TCO (changed only)", _static, _connected(each_alone=True), by_step=True
    ),
)
SYSTEMS: Mapping[str, SystemKind] = MappingProxyType(
    {kind.name: kind for kind in (*_COMPARED, *_DYNATOPS)}
)
