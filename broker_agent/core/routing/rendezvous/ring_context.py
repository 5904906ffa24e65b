"""What all parts of routing along a ring share: what the broker's do, and an outbox to the node."""

from __future__ import annotations

from dataclasses import dataclass, fields

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.rendezvous.ring_outbox import RingOutbox


@dataclass(frozen=True, slots=True)
class RingContext(BrokerContext):
    ring: RingOutbox

    @classmethod
    def within(cls, context: BrokerContext) -> RingContext:
        shared = {f.name: getattr(context, f.name) for f in fields(BrokerContext)}
        return cls(**shared, ring=RingOutbox())
