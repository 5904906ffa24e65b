"""Who heeds what in a broker: the tables that `broker` and `serving` work from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.publication_requests import PublicationRequests
from broker_agent.core.clients.serving import ClientHandler
from broker_agent.core.clients.subscription_requests import SubscriptionRequests
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.effects import (
    Accepted,
    Announce,
    Deliver,
    DeliverBeats,
    DeliverBundle,
    Departed,
    InTree,
    Notice,
    Ready,
    Repaired,
    Send,
    Superseded,
)

if TYPE_CHECKING:
    from broker_agent.core.broker import Broker

# Called with the sender, the message and the time.
BrokerHandler = Callable[[NodeRef, Any, float], None]
# Called with the effect and the time.
NodeEffectHandler = Callable[[Any, float], None]


def client_handlers(
    flow: Flow, publications: PublicationRequests, subscriptions: SubscriptionRequests
) -> Mapping[str, ClientHandler]:
    """What clients say, by kind."""
    return {
        "publication": publications.on_publication,
        "bundle": publications.on_bundle,
        "received": flow.on_received,
        "subscribe": subscriptions.on_subscribe,
        "unsubscribe": subscriptions.on_unsubscribe,
        "echo": flow.on_echo,
    }


def broker_handlers(broker: Broker) -> Mapping[str, BrokerHandler]:
    """What brokers say to each other, by kind; all else is said to their nodes."""
    reconfiguration, reception = broker.reconfiguration, broker.reception
    return {
        "node_state_part": reconfiguration.on_node_state_part,
        "node_state_seen": reconfiguration.on_node_state_seen,
        "ask_outcome": reconfiguration.on_ask_outcome,
        "outcome": reconfiguration.on_outcome,
        "session_moved": reception.on_session_moved,
    }


def node_effect_handlers(broker: Broker) -> Mapping[type, NodeEffectHandler]:
    """What the hosted node wants done, by kind."""
    return {
        Send: broker.on_send,
        Deliver: broker.on_deliver,
        DeliverBundle: broker.on_deliver_bundle,
        DeliverBeats: broker.on_deliver_beats,
        InTree: broker.on_in_tree,
        Accepted: broker.on_accepted,
        Announce: broker.on_announce,
        Repaired: broker.on_repaired,
        Ready: broker.on_ready,
        Departed: broker.on_departed,
        Superseded: broker.on_superseded,
        **dict.fromkeys(get_args(Notice), broker.on_notice),
    }
