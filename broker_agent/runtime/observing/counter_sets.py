"""Everything that counts at a broker: a line here registers a dataclass of counters.

What `dynatops brokers` shows, the metrics and the reference are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker_agent.core.counters import BrokerCounters
from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.runtime.manager.uplink import UplinkCounters
from broker_agent.runtime.peers.links import LinkCounters
from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.observing.metrics import Metric, counters_of
from dynatops.lake.counters import LakeCounters
from overlay.counters import OverlayCounters

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

_BROKER = "dynatops_broker_"


@dataclass(frozen=True, slots=True)
class CounterSet:
    """A dataclass whose fields say what they count."""

    title: str
    kind: type[Any]
    # Where they are; None where a broker has no such part.
    find: Callable[[Agent], Any]
    prefix: str = _BROKER
    # Counters that are metrics of another unit.
    but: tuple[str, ...] = ()

    def metrics(self) -> list[Metric[Agent]]:
        kind, find = self.kind, self.find
        return counters_of(kind, self.prefix, lambda agent: find(agent) or kind(), but=self.but)


# As they are documented.
COUNTER_SETS = (
    CounterSet("Clients", BrokerCounters, lambda a: a.core.counters, but=("frozen_ms",)),
    CounterSet(
        "Broker selection",
        SelectionCounters,
        lambda a: a.core.cluster.selection.counters,
        f"{_BROKER}selection_",
    ),
    CounterSet("Advice", AdviceCounters, lambda a: a.advice_counters),
    CounterSet("Lake", LakeCounters, lambda a: a.lake_counters),
    CounterSet(
        "Overlay node",
        OverlayCounters,
        lambda a: a.core.node.counters,
        "dynatops_node_",
        ("tree_delivered_way_us",),
    ),
    CounterSet("Links", LinkCounters, lambda a: a.links.counters),
    CounterSet("Managers", UplinkCounters, lambda a: a.uplink.counters if a.uplink else None),
)


def metrics_of(kind: type[Any]) -> list[Metric[Agent]]:
    """Those of one of these."""
    (found,) = (counted for counted in COUNTER_SETS if counted.kind is kind)
    return found.metrics()


def present_counters(agent: Agent) -> Iterator[tuple[str, int]]:
    """By name, of all parts that the broker has."""
    for counted in COUNTER_SETS:
        counters = counted.find(agent)
        if counters is not None:
            yield from counters.as_dict().items()
