"""Everything that counts at a broker: a line here registers a dataclass of counters.

What `dynatops brokers` shows, the metrics and the reference are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.runtime.manager.uplink import UplinkCounters
from broker_agent.runtime.observing.readings import BrokerReadings
from broker_agent.runtime.peers.links import LinkCounters
from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.observing.metrics import Metric, counters_of
from dynatops.lake.counters import LakeCounters
from overlay.base.counters import OverlayCounters
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.stores.past_counters import PastCounters

_BROKER = "dynatops_broker_"


@dataclass(frozen=True, slots=True)
class CounterSet:
    """A dataclass whose fields say what they count."""

    title: str
    kind: type[Any]
    # Where they are; None where a broker has no such part.
    find: Callable[[BrokerReadings], Any]
    prefix: str = _BROKER
    # Counters that are metrics of another unit.
    but: tuple[str, ...] = ()

    def metrics(self) -> list[Metric[BrokerReadings]]:
        kind, find = self.kind, self.find
        return counters_of(
            kind, self.prefix, lambda readings: find(readings) or kind(), but=self.but
        )


# As they are documented.
COUNTER_SETS = (
    CounterSet("Clients", BrokerCounters, lambda r: r.status.counters, but=("frozen_ms",)),
    CounterSet(
        "Broker selection",
        SelectionCounters,
        lambda r: r.status.selection_counters,
        f"{_BROKER}selection_",
    ),
    CounterSet("Advice", AdviceCounters, lambda r: r.agent.advice_counters),
    CounterSet("Lake", LakeCounters, lambda r: r.agent.lake_counters),
    CounterSet(
        "Overlay node",
        OverlayCounters,
        lambda r: r.status.node.counters if r.status.node is not None else None,
        "dynatops_node_",
        ("tree_delivered_way_us",),
    ),
    CounterSet(
        "Brokers in a tree",
        ForwardingCounters,
        lambda r: r.status.tree.counters if r.status.tree is not None else None,
        "dynatops_forwarding_",
    ),
    CounterSet(
        "Finding the past", PastCounters, lambda r: r.status.past_counters, "dynatops_past_"
    ),
    CounterSet("Links", LinkCounters, lambda r: r.agent.links.counters),
    CounterSet(
        "Managers",
        UplinkCounters,
        lambda r: r.agent.uplink.counters if r.agent.uplink else None,
    ),
)


def metrics_of(kind: type[Any]) -> list[Metric[BrokerReadings]]:
    """Those of one of these."""
    (found,) = (counted for counted in COUNTER_SETS if counted.kind is kind)
    return found.metrics()


def present_counters(readings: BrokerReadings) -> Iterator[tuple[str, int]]:
    """By name, of all parts that the broker has."""
    for counted in COUNTER_SETS:
        counters = counted.find(readings)
        if counters is not None:
            yield from counters.as_dict().items()
