"""Who heeds what in routing along a ring: the tables that `Rendezvous` works from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from broker_agent.core.routing.rendezvous.plans.reconfiguration import Reconfiguration
from broker_agent.core.routing.routing import PeerHandler
from overlay.base.effects import (
    Accepted,
    Announce,
    Deliver,
    DeliverBeats,
    DeliverBundle,
    Departed,
    ForStamper,
    InTree,
    Notice,
    Ready,
    Repaired,
    Send,
    Superseded,
)

if TYPE_CHECKING:
    from broker_agent.core.routing.rendezvous.rendezvous import Rendezvous

# Called with the effect and the time.
NodeEffectHandler = Callable[[Any, float], None]


def broker_handlers(
    plans: Reconfiguration, others: Mapping[str, PeerHandler]
) -> Mapping[str, PeerHandler]:
    """What brokers say to each other, by kind: about plans, and what is not routing's. All else is
    said to their nodes."""
    return {
        "node_state_part": plans.on_node_state_part,
        "node_state_seen": plans.on_node_state_seen,
        "ask_outcome": plans.on_ask_outcome,
        "outcome": plans.on_outcome,
        **others,
    }


def node_effect_handlers(ring: Rendezvous) -> Mapping[type, NodeEffectHandler]:
    """What the hosted node wants done, by kind."""
    return {
        Send: ring.on_send,
        Deliver: ring.on_deliver,
        DeliverBundle: ring.on_deliver_bundle,
        DeliverBeats: ring.on_deliver_beats,
        InTree: ring.on_in_tree,
        Accepted: ring.on_accepted,
        ForStamper: ring.stamping.on_for_stamper,
        Announce: ring.on_announce,
        Repaired: ring.on_repaired,
        Ready: ring.on_ready,
        Departed: ring.on_departed,
        Superseded: ring.on_superseded,
        **dict.fromkeys(get_args(Notice), ring.on_notice),
    }
