"""Every way for events to travel between brokers, for the suite that all of them must pass.

Another one is a line of `ROUTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from broker_agent.core.routing.rendezvous.rendezvous import on_ring
from broker_agent.core.routing.routing import RoutingFactory
from overlay.base.overlay_settings import OverlaySettings

# For brokers of these names, each of which is its address, too.
MakeRouting = Callable[[Sequence[str]], RoutingFactory]

ROUTINGS: Mapping[str, MakeRouting] = MappingProxyType(
    {
        "rendezvous": lambda names: on_ring(OverlaySettings()),
    }
)
