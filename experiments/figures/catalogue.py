"""All figures and tables, in one table: what is run, what is claimed, what is drawn. A figure is
registered here; its runs and its claims are in the module of its workload."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from experiments.figures import location, mobility, placements, poisson, storing
from experiments.figures.figure import Claim, Figure, Parameter, Plot, RunSpec
from experiments.figures.judging import changed, less_than, refine_claim
from overlay.forwarding.tree.topology import TreeMode

_OF_50 = partial(
    Figure,
    scale_min=0.1,
    scale_min_reason="there would be fewer than two clusters of 50 brokers",
    notes=location.NOTES,
)
_OF_10 = partial(
    Figure,
    scale_min=0.02,
    scale_min_reason="there would be fewer than two clusters of 10 brokers",
    notes=location.NOTES,
)
_POISSON = partial(Figure, notes=poisson.NOTES)
_STORES = partial(
    Figure, scale_min=0.1, scale_min_reason="there would be fewer than two trees a seed"
)
_PLACEMENTS = partial(Figure, scale_min_reason="sizes up to 100 are the least there are")

_X_LABELS = {
    "c": "cluster size c",
    "rate": "changes of a user in an hour",
    "t_free": "T_free, hours",
    "users": "users",
    "brokers": "brokers",
    "capacity": "topics a store can keep (L, SC)",
    "replicas": "stores a topic (k)",
    "min_k": "least stores a topic (min_k)",
    "s_p": "exponent of popularity (s_p)",
    "s_l": "exponent of locality (s_l)",
    "failed": "stores that failed, of 20",
    "exponent": "exponent now; planned at -1",
}


def _plot(
    metric: str,
    title: str,
    label: str,
    x: str | None = None,
    *,
    lines: str = "system",
    only: tuple[str, Parameter] | None = None,
) -> Plot:
    return Plot(
        metric=metric,
        title=title,
        label=label,
        x=x,
        x_label=_X_LABELS.get(x, x) if x else "",
        lines=lines,
        only=(only,) if only else (),
    )


def _delay(label: str, x: str | None = None) -> Plot:
    return _plot("delay", "Notification delay", label, x)


def _overhead(x: str | None = None) -> Plot:
    return _plot("overhead", "Notification overhead", "messages an event", x)


def _ablation(metric: str, text: str, **varied: Parameter) -> Claim:
    """Of DYNATOPS at the usual cluster size: what we took, against this."""
    usual: dict[str, Parameter] = {"system": "dynatops", "c": location.CLUSTER_SIZE}
    return changed(f"{text} (ablation)", metric, 0.0, {**usual, **varied}, usual)


def _update_ablation() -> Claim:
    often: dict[str, Parameter] = {"system": "dynatops-bs", "update_h": location.UPDATES_H[0]}
    seldom: dict[str, Parameter] = {**often, "update_h": location.UPDATES_H[1]}
    text = f"T_update of {location.UPDATES_H[1]:g} h costs less than of {location.UPDATES_H[0]:g} h"
    return changed(f"{text} (ablation)", "management", 0.0, often, seldom)


def _against(metric: str, bayeux: float, geops: float) -> tuple[Claim, ...]:
    """Claims of figures 6d and 6e."""
    others = (("Bayeux", location.BAYEUX, bayeux), ("GeoPS", ("geops",), geops))
    return (
        *(
            less_than(f"at least {wanted:.0%} less than {title}", metric, wanted, names)
            for title, names, wanted in others
        ),
        refine_claim(metric),
        *(
            less_than(
                f"at least {wanted:.0%} less than {title}, if load does not matter (ablation)",
                metric,
                wanted,
                names,
                w_l=0.0,
            )
            for title, names, wanted in others
        ),
        less_than(
            f"at least {bayeux:.0%} less than Chord with users by place and nobody moved "
            "(ablation)",
            metric,
            bayeux,
            ("chord-loc",),
            is_ours=True,
        ),
        changed(
            "GeoPS has less with links among siblings than without (ablation)",
            metric,
            0.0,
            {"system": "geops-tree"},
            {"system": "geops"},
        ),
        _ablation(metric, "less with round trips in the cost (eq. 1) than with hops", rtt=0),
        _ablation(metric, "less if a user counts among those of its broker", itself=0),
    )


def _improves_without_load(metric: str) -> Claim:
    of_10: dict[str, Parameter] = {"system": "dynatops", "w_l": 0.0, "c": location.CLUSTER_SIZE}
    of_50 = {**of_10, "c": location.CLUSTER_SIZES[-1]}
    text = f"{metric} improves from c = 10 to 50, if load does not matter (ablation)"
    return changed(text, metric, 0.0, of_10, of_50)


def _saved(x: str, other: str) -> Plot:
    return _plot(
        "saved",
        f"SSBR cost saved by DYNATOPS-Greedy, {placements.FIXED} {other}",
        "share of the cost of consistent hashing",
        x,
        lines="pattern",
        only=(other, placements.FIXED),
    )


def _by_free_period(name: str, only: tuple[str, Parameter]) -> tuple[Plot, ...]:
    return tuple(
        _plot(metric, f"{title} ({name})", label, "t_free", only=only)
        for metric, title, label in (
            ("overhead", "Notification overhead", "messages an event"),
            ("reconfiguration", "Reconfiguration overhead", "messages an hour"),
        )
    )


def _hops(x: str, *, only: tuple[str, Parameter] | None = None, title: str = "") -> Plot:
    of = f" ({title})" if title else ""
    return _plot("hops", f"Mean distance of requests for the past{of}", "hops", x, only=only)


def _traffic(x: str) -> Plot:
    return _plot("traffic", "Overall network traffic", "requests x hops a second", x)


def _alike_plots(metric: str, title: str, label: str) -> tuple[Plot, ...]:
    """Of each parameter, where the other two are as usual."""
    return tuple(
        Plot(
            metric=metric,
            title=f"{title}, by {x}",
            label=label,
            x=x,
            x_label=_X_LABELS[x],
            only=tuple(fixed.items()),
        )
        for x, fixed in storing.ALIKE
    )


def _of_each_number(x: str) -> tuple[Plot, ...]:
    return tuple(
        _hops(x, only=("stores", stores), title=f"M = {stores}") for stores in storing.STORES
    )


_STORE_METRICS = ("hops", "traffic", "stores_used", "missing")

_FIGURES = (
    Figure(
        name="fig5",
        title="Statistics of the movement trace",
        paper="DYNATOPS fig. 5",
        runs=lambda scale: [RunSpec.of("visits")],
        claims=(
            Claim(
                "450 K visits, 160 K pairs of user and cell",
                "450,000 and 160,000",
                location.sizes_of_trace,
            ),
            location.near(
                "a third of all pairs of user and cell are visited once", "single", 1 / 3, 0.03
            ),
            location.near("half of all visits last less than a day", "below_day", 0.5, 0.03),
            location.near("a tenth of all visits last over a week", "above_week", 0.1, 0.02),
        ),
        metrics=("visits", "pairs", "single", "below_day", "above_week"),
        plots=(),
        notes=("The trace is made up: its generator was given these statistics.",),
    ),
    _OF_50(
        name="fig6a",
        title="Subscription management overhead and cluster size",
        paper="DYNATOPS fig. 6a",
        runs=location.management_runs,
        claims=(
            location.less_management(location.OTHERS),
            Claim(
                "falls with the cluster size, rises again near c = 50",
                "least in between",
                location.falls_and_rises,
            ),
            location.less_management(("chord-loc",)),
            location.less_management(location.OTHERS, friends=0),
            location.less_management(location.OTHERS, w_l=0.0),
            location.less_management(("chord-loc",), w_l=0.0),
            _ablation("management", "less if a user counts among those of its broker", itself=0),
            _update_ablation(),
        ),
        metrics=("management", "management_trees", "management_clusters", "broker_changes"),
        plots=(_plot("management", "Subscription management overhead", "messages an hour", "c"),),
    ),
    _OF_50(
        name="fig6b",
        title="Balance of load",
        paper="DYNATOPS fig. 6b",
        runs=location.load_runs,
        claims=(
            Claim(
                "w_l = 0 is worst, above all in large clusters; the weight of load repairs it",
                "w_l = 0 worst",
                location.weight_repairs,
            ),
        ),
        metrics=("load_std", "load_std_share"),
        plots=(
            _plot(
                "load_std_share",
                "Standard deviation of broker load",
                "share of the mean load",
                "c",
                lines="w_l",
            ),
        ),
        notes=("w_l is said times the number of brokers of a cluster, as in the product.",),
    ),
    _OF_50(
        name="fig6c",
        title="User handovers",
        paper="DYNATOPS fig. 6c",
        runs=location.handover_runs,
        claims=(
            location.fewer_handovers("dynatops"),
            location.fewer_handovers("dynatops", "if load does not matter", w_l=0.0),
            location.fewer_handovers(
                "cluster-loc", "if no user moves but on journeys from cluster to cluster"
            ),
            _ablation("handovers", "fewer if a user counts among those of its broker", itself=0),
        ),
        metrics=("handovers",),
        plots=(_plot("handovers", "Users handed over", "handovers an hour", "c"),),
    ),
    _OF_10(
        name="fig6d",
        title="Notification delay",
        paper="DYNATOPS fig. 6d",
        runs=location.delivery_runs,
        claims=_against("delay", 0.6, 0.3),
        metrics=("delay", "delay_overlay"),
        plots=(_delay("ms of round trips"),),
    ),
    _OF_10(
        name="fig6e",
        title="Notification overhead",
        paper="DYNATOPS fig. 6e",
        runs=location.delivery_runs,
        claims=_against("overhead", 0.4, 0.2),
        metrics=("overhead", "overhead_spread", "subscriptions_held", "greatest_degree"),
        plots=(_overhead(),),
    ),
    _OF_50(
        name="fig6f",
        title="Delay and overhead, and cluster size",
        paper="DYNATOPS fig. 6f",
        runs=location.size_runs,
        claims=(
            location.improves("delay"),
            location.improves("overhead"),
            _improves_without_load("delay"),
            _improves_without_load("overhead"),
        ),
        metrics=("delay", "overhead"),
        plots=(_delay("ms of round trips", "c"), _overhead("c")),
    ),
    _POISSON(
        name="fig7a",
        title="Brokers' subscription changes and the rate of change",
        paper="DYNATOPS fig. 7a",
        runs=poisson.change_runs,
        claims=(
            poisson.less_at_rates(
                "80% fewer subscription changes of brokers", "broker_changes", 0.8
            ),
            poisson.less_at_rates(
                "the same if a user does not count among those of its broker (ablation)",
                "broker_changes",
                0.8,
                itself=0,
            ),
            poisson.less_at_rates(
                "the same if load does not matter (ablation)", "broker_changes", 0.8, w_l=0.0
            ),
            Claim(
                "the same if users take up other modes (ablation)",
                ">= 80%",
                poisson.when_modes_change,
                is_ours=True,
            ),
        ),
        metrics=("broker_changes", "user_changes", "management", "handovers", "load_std_share"),
        plots=(
            _plot("broker_changes", "Subscription changes of brokers", "changes an hour", "rate"),
        ),
    ),
    _POISSON(
        name="fig7b",
        title="Notification delay and the rate of change",
        paper="DYNATOPS fig. 7b",
        runs=poisson.rate_runs,
        claims=(
            poisson.less_at_rates("10% less delay", "delay", 0.1),
            poisson.less_than_chord("delay"),
            refine_claim("delay", rate=poisson.RATE),
        ),
        metrics=("delay",),
        plots=(_delay("hops", "rate"),),
    ),
    _POISSON(
        name="fig7c",
        title="Notification overhead and the rate of change",
        paper="DYNATOPS fig. 7c",
        runs=poisson.overhead_runs,
        claims=(
            poisson.less_at_rates("over 50% less overhead", "overhead", 0.5),
            poisson.less_than_chord("overhead"),
            refine_claim("overhead", rate=poisson.RATE),
            changed(
                "TCO has less along first arrivals than by flooding (ablation)",
                "overhead",
                0.0,
                {"system": "tco-flooding"},
                {"system": "tco", "rate": poisson.RATE},
            ),
        ),
        metrics=("overhead", "overhead_spread", "subscriptions_held"),
        plots=(_overhead("rate"),),
    ),
    _POISSON(
        name="fig7d",
        title="Reconfiguration overhead and the rate of change",
        paper="DYNATOPS fig. 7d",
        runs=poisson.reconfiguration_runs,
        claims=(
            Claim(
                "over 90% less than TCO when users change fast",
                "> 90%",
                poisson.less_reconfiguration,
            ),
            Claim(
                "the same if TCO is mended in other ways (ablation)",
                "> 90%",
                poisson.less_than_any_tco,
                is_ours=True,
            ),
        ),
        metrics=("reconfiguration", "reconfigurations", "greatest_degree"),
        plots=(_plot("reconfiguration", "Reconfiguration overhead", "messages an hour", "rate"),),
        notes=(*poisson.NOTES, "Of TCO, links changed; of DYNATOPS, the bound of eq. 11."),
    ),
    _POISSON(
        name="fig8",
        title="Delay and overhead under three patterns",
        paper="DYNATOPS fig. 8",
        runs=poisson.pattern_runs,
        claims=(
            poisson.best_under_all("delay"),
            poisson.best_under_all("overhead"),
            refine_claim("delay", pattern="multimodal"),
            refine_claim("overhead", pattern="multimodal"),
        ),
        metrics=("delay", "overhead", "broker_changes", "greatest_degree"),
        plots=(
            _delay("hops", "pattern"),
            _overhead("pattern"),
        ),
    ),
    _OF_10(
        name="fig9",
        title="The reconfiguration free period",
        paper="DYNATOPS fig. 9",
        runs=poisson.free_period_runs,
        claims=(
            Claim(
                "notifications degrade slightly with T_free",
                "<= 10% more",
                poisson.slightly_worse,
            ),
            Claim("far fewer messages of reconfigurations", ">= 50% fewer", poisson.far_fewer),
            Claim(
                "far fewer reconfigurations (ablation)",
                ">= 50% fewer",
                poisson.fewer_of_them,
                is_ours=True,
            ),
        ),
        metrics=("delay", "overhead", "reconfiguration", "reconfigurations"),
        plots=(
            *_by_free_period("Poisson", ("rate", poisson.SLOW)),
            *_by_free_period("location", ("c", location.CLUSTER_SIZE)),
        ),
        notes=(*poisson.NOTES, *location.NOTES),
    ),
    _PLACEMENTS(
        name="fig10",
        title="Savings over consistent hashing",
        paper="DYNATOPS fig. 10",
        runs=placements.saving_runs,
        claims=(
            Claim("always positive", "> 0 everywhere", placements.always_positive),
            Claim(
                "larger for multimodal subscriptions",
                "M > U everywhere",
                placements.larger_for_modes,
            ),
            Claim(
                "larger for multimodal subscriptions with `refine` (ablation)",
                "M > U everywhere",
                placements.larger_for_modes_with_refine,
                is_ours=True,
            ),
            Claim(
                "`refine` gains over DYNATOPS-Greedy", "> 0", placements.refine_saves, is_ours=True
            ),
            Claim(
                "moving the broker of the highest cost saves more than of the highest external "
                "overhead (ablation)",
                "as much or more",
                placements.cost_chooses_better,
                is_ours=True,
            ),
        ),
        metrics=("overhead_saved", "delay_saved", "saved", "graded_saved", "refine_saved"),
        plots=(_saved("brokers", "topics"), _saved("topics", "brokers")),
        notes=(
            "From a bootstrap by hashes moving costs nothing: DYNATOPS-Greedy is its first step.",
            "A broker has a tenth of the topics on average, 100 at most: the paper is silent.",
        ),
    ),
    _PLACEMENTS(
        name="table2",
        title="Computation time of DYNATOPS-Greedy",
        paper="DYNATOPS table II",
        runs=placements.time_runs,
        claims=(
            Claim(
                "28 ms, 184 ms, 96 s for 10, 100, 1000 brokers; 98 ms, 502 ms, 1.9 s for 50, 500, "
                "5000 topics",
                "no more",
                placements.as_quick,
            ),
        ),
        metrics=("seconds", "iterations"),
        plots=(),
    ),
    Figure(
        name="protocol-cost",
        title="Messages of the real protocol, and equation 11",
        paper="DYNATOPS eq. 11",
        runs=placements.protocol_runs,
        claims=(
            Claim(
                "the protocol sends no more than eq. 11 says", "<= 100%", placements.within_bound
            ),
            Claim(
                "constants that a manager learns from one reconfiguration say what the next one "
                "sends",
                "50% to 100%",
                placements.constants,
                is_ours=True,
            ),
        ),
        metrics=("messages", "bound", "messages_again", "learnt", "a", "b", "c"),
        plots=(),
        notes=("A manager's core and brokers' cores in the simulator; eight topics a broker.",),
    ),
    Figure(
        name="mobility-covering",
        title="Covering and advertisements where users come and go",
        paper="Mobility section 5.2.5",
        runs=mobility.covering_runs,
        claims=mobility.claims(),
        metrics=("subscriptions", "advertisements", "told", "events", "messages", "deliveries"),
        plots=tuple(
            _plot(
                "told",
                f"What tables tell ({mode.value})",
                "messages an hour",
                "users",
                lines="tables",
                only=("mode", mode.value),
            )
            for mode in TreeMode
        ),
        scale_min=0.05,
        scale_min_reason="there would be fewer than ten users",
        notes=mobility.NOTES,
    ),
    Figure(
        name="worked-example",
        title="The example of six brokers and three topics",
        paper="Storing section IV, Planning sections 5.3 and 5.5",
        runs=storing.example_runs,
        claims=storing.example_claims(),
        metrics=storing.EXAMPLE_METRICS,
        plots=(),
        notes=(storing.EXAMPLE_NOTE,),
    ),
    _STORES(
        name="storing-fig4",
        title="Distance of requests where all topics are alike",
        paper="Storing fig. 4",
        runs=storing.alike_runs,
        claims=storing.alike_claims(),
        metrics=_STORE_METRICS,
        plots=_alike_plots("hops", "Mean distance of requests for the past", "hops"),
        notes=storing.STORING_NOTES,
    ),
    _STORES(
        name="storing-fig5",
        title="Stores used where all topics are alike",
        paper="Storing fig. 5",
        runs=storing.alike_runs,
        claims=storing.used_claims(),
        metrics=("stores_used",),
        plots=_alike_plots("stores_used", "Stores used", "stores"),
        notes=storing.STORING_NOTES,
    ),
    _STORES(
        name="planning-fig4",
        title="Distance and traffic of requests, and the number of brokers",
        paper="Planning fig. 4",
        runs=storing.by_brokers_runs,
        claims=storing.by_brokers_claims(),
        metrics=_STORE_METRICS,
        plots=(_hops("brokers"), _traffic("brokers")),
        notes=storing.MINIMUM_NOTES,
    ),
    _STORES(
        name="planning-fig5",
        title="Distance and traffic of requests, and the capacity of stores",
        paper="Planning fig. 5",
        runs=storing.by_capacity_runs,
        claims=storing.falling_claims("capacity", "hops fall with the capacity of stores"),
        metrics=_STORE_METRICS,
        plots=(_hops("capacity"), _traffic("capacity")),
        notes=storing.MINIMUM_NOTES,
    ),
    _STORES(
        name="planning-fig6",
        title="Distance and traffic of requests, and the least number of replicas",
        paper="Planning fig. 6",
        runs=storing.by_minimum_runs,
        claims=storing.falling_claims("min_k", "hops fall with the number of replicas"),
        metrics=_STORE_METRICS,
        plots=(_hops("min_k"), _traffic("min_k")),
        notes=storing.MINIMUM_NOTES,
    ),
    _STORES(
        name="planning-fig7",
        title="Distance of requests, and popularity",
        paper="Planning fig. 7",
        runs=storing.popularity_runs,
        claims=storing.places_claims("s_p"),
        metrics=_STORE_METRICS,
        plots=_of_each_number("s_p"),
        notes=storing.PLACES_NOTES,
    ),
    _STORES(
        name="planning-fig8",
        title="Distance of requests, and locality",
        paper="Planning fig. 8",
        runs=storing.locality_runs,
        claims=storing.places_claims("s_l"),
        metrics=_STORE_METRICS,
        plots=_of_each_number("s_l"),
        notes=(*storing.PLACES_NOTES, storing.LOCALITY_NOTE),
    ),
    _STORES(
        name="planning-fig9",
        title="Distance of requests while stores have failed",
        paper="Planning fig. 9",
        runs=storing.failure_runs,
        claims=storing.failure_claims(),
        metrics=("hops", "unserved"),
        plots=(_hops("failed"),),
        notes=(*storing.PLACES_NOTES, storing.FAILURE_NOTE),
    ),
    _STORES(
        name="planning-fig10",
        title="Assigning topics anew as popularity drifts",
        paper="Planning fig. 10",
        runs=lambda scale: storing.drift_runs("popularity"),
        claims=storing.drift_claims("popularity"),
        metrics=("hops",),
        plots=(_hops("exponent"),),
        notes=storing.PLACES_NOTES,
    ),
    _STORES(
        name="planning-fig11",
        title="Assigning topics anew as locality drifts",
        paper="Planning fig. 11",
        runs=lambda scale: storing.drift_runs("locality"),
        claims=storing.drift_claims("locality"),
        metrics=("hops",),
        plots=(_hops("exponent"),),
        notes=(*storing.PLACES_NOTES, storing.LOCALITY_NOTE),
    ),
)
FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in _FIGURES})
