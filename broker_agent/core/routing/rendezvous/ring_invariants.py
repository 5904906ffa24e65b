"""What must hold of routing along a ring after every input (INV-16), said without the code that is
to make it hold. See `broker_agent.core.invariants`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker_agent.core.sessions.session import Session

if TYPE_CHECKING:
    from broker_agent.core.routing.rendezvous.rendezvous import Rendezvous


def check_ring_state(ring: Rendezvous, clients: Iterable[Session]) -> Iterator[str]:
    """What sessions want is read, what is read somebody wants, and the node is in those trees."""
    readers = ring.subscriptions.readers
    for session in clients:
        if session.closing or ring.subscriptions.waits_for_catalogue(session):
            continue
        for topic in (*session.filters, *(session.followed or ())):
            if any(f.is_wildcard for f in session.filters.get(topic, ())):
                continue
            entry = readers.get(topic)
            if entry is None or entry.feed_of(session) is None:
                yield f"{session.shown} wants {topic!r}, which is not read for it"
    for topic in readers.names():
        entry = readers.get(topic)
        if entry is not None and entry.consumer is None and not any(f.members for f in entry.feeds):
            yield f"{topic!r} is read for nobody"
    yield from ring.publishing.miscounts()
    if ring.plans.is_frozen:
        # What was wished meanwhile waits.
        return
    read, wanted = dict.fromkeys(readers.names()), dict.fromkeys(ring.node.interests.wanted)
    yield from (f"{topic!r} is read, and no tree of the node's" for topic in read.keys() - wanted)
    yield from (f"{topic!r} is wanted by the node, and not read" for topic in wanted.keys() - read)
