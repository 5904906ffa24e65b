"""Who heeds what in a broker: the tables that routing and `serving` work from."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.history_requests import HistoryRequests
from broker_agent.core.clients.publication_requests import PublicationRequests
from broker_agent.core.clients.reception import Reception
from broker_agent.core.clients.serving import ClientHandler
from broker_agent.core.clients.subscription_requests import SubscriptionRequests
from broker_agent.core.routing.routing import PeerHandler
from broker_agent.core.stores.storing import Storing


def client_handlers(
    flow: Flow,
    publications: PublicationRequests,
    subscriptions: SubscriptionRequests,
    histories: HistoryRequests,
) -> Mapping[str, ClientHandler]:
    """What clients say, by kind."""
    return {
        "publication": publications.on_publication,
        "bundle": publications.on_bundle,
        "received": flow.on_received,
        "subscribe": subscriptions.on_subscribe,
        "unsubscribe": subscriptions.on_unsubscribe,
        "echo": flow.on_echo,
        "history": histories.on_history,
        "history_credit": histories.on_credit,
    }


def peer_handlers(reception: Reception, storing: Storing) -> Mapping[str, PeerHandler]:
    """What brokers say to each other, by kind; all else is said to routing."""
    return {
        "session_moved": reception.on_session_moved,
        "from_stamper": storing.on_from_stamper,
        **storing.past.handlers(),
    }
