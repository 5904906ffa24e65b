"""Every way for events to travel between brokers, for the suite that all of them must pass.

Another one is a line of `ROUTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from broker_agent.core.routing.forwarding.forwarding import in_tree
from broker_agent.core.routing.rendezvous.rendezvous import on_ring
from broker_agent.core.routing.routing import RoutingFactory
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.tree.topology import Topology

# For brokers of these names, each of which is its address, too.
MakeRouting = Callable[[Sequence[str]], RoutingFactory]


def chain(names: Sequence[str]) -> Topology:
    """Each next to the one before."""
    return Topology.from_mapping(
        {
            "version": 1,
            "brokers": {name: name for name in names},
            "links": [list(pair) for pair in pairwise(names)],
        }
    )


ROUTINGS: Mapping[str, MakeRouting] = MappingProxyType(
    {
        "rendezvous": lambda names: on_ring(OverlaySettings()),
        "forwarding": lambda names: in_tree(chain(names)),
    }
)
