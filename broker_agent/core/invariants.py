"""What must hold of one broker after every input, said without the code that is to make it hold.

    for violation in check_invariants(broker): ...

It reads, and changes nothing; what it finds are sentences. It takes time in proportion to sessions
and topics: replays call it, the simulator and tests do, brokers never.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_agent.core.broker import Broker
from broker_agent.core.sessions.session import Session


def check_invariants(broker: Broker) -> list[str]:
    """What does not hold. Not to be asked before the broker has started, nor after an input that
    raised: that is half done."""
    return [
        *(f"{what} left over" for what in broker.left_over()),
        *_check_connections(broker),
        *_check_queues(broker),
        *_check_publications(broker),
        *broker.routing.violations(broker.registry.clients.values()),
    ]


def _check_connections(broker: Broker) -> Iterator[str]:
    registry = broker.registry
    for connection, session in registry.connections.items():
        if session.connection != connection:
            yield f"connection {connection} leads to a session that has {session.connection}"
    for client_id, session in registry.clients.items():
        if session.client_id != client_id:
            yield f"{session.shown} is found as that of client {client_id!r}"
        attached = session.connection
        if attached is not None and registry.connections.get(attached) is not session:
            yield f"{session.shown} has connection {attached}, which is not here"
    detached = sum(session.connection is None for session in registry.clients.values())
    if detached != registry.absent:
        yield f"{detached} sessions have no connection, and {registry.absent} are waited for"
    if len(registry) > broker.settings.sessions_max:
        yield f"there are {len(registry)} sessions; the bound is {broker.settings.sessions_max}"


def _check_queues(broker: Broker) -> Iterator[str]:
    for session in _sessions(broker):
        for miscount in session.miscounts():
            yield f"{session.shown}: {miscount}"


def _check_publications(broker: Broker) -> Iterator[str]:
    for session in _sessions(broker):
        if session.unsettled_bytes < 0:
            yield f"{session.shown} has {session.unsettled_bytes} bytes of publications open"


def _sessions(broker: Broker) -> Iterator[Session]:
    yield from dict.fromkeys(
        (*broker.registry.clients.values(), *broker.registry.connections.values())
    )
    if broker.storing.store is not None:
        yield broker.storing.store.session
