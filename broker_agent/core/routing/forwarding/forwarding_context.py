"""What all parts of routing in a tree share: what the broker's do, the forwarder, and what it wants
done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.open_publications import OutgoingPublications
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import ForwardingEffect


@dataclass(slots=True)
class TreeOutbox:
    effects: deque[ForwardingEffect] = field(default_factory=deque)
    publications: OutgoingPublications = field(default_factory=OutgoingPublications)

    def from_forwarder(self, effects: Iterable[ForwardingEffect]) -> None:
        self.effects.extend(effects)

    def left_over(self) -> Iterator[str]:
        """What nobody has taken, once an input has been dealt with."""
        counts = {
            "effects of the forwarder": len(self.effects),
            "publications": len(self.publications),
        }
        return (f"{count} {what}" for what, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class ForwardingContext(BrokerContext):
    forwarder: Forwarder
    tree: TreeOutbox

    @classmethod
    def within(cls, context: BrokerContext, forwarder: Forwarder) -> ForwardingContext:
        shared = {f.name: getattr(context, f.name) for f in fields(BrokerContext)}
        return cls(**shared, forwarder=forwarder, tree=TreeOutbox())
