"""What all parts of routing in a tree share: what the broker's do, the forwarder, and what it wants
done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.routing.open_publications import OutgoingPublications
from broker_agent.core.sessions.session import Session
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_effects import ForwardingEffect


@dataclass(frozen=True, slots=True)
class PlacesDue:
    """A session is to be told these places, which all that is before this in the outbox led to."""

    session: Session
    places: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GoesOnDue:
    """A client is to be told that what it has asked to go on with begins, after all that is before
    this in the outbox."""

    session: Session
    connection: ConnectionId
    request: int


@dataclass(slots=True)
class TreeOutbox:
    effects: deque[ForwardingEffect | PlacesDue | GoesOnDue] = field(default_factory=deque)
    publications: OutgoingPublications = field(default_factory=OutgoingPublications)

    def from_forwarder(self, effects: Iterable[ForwardingEffect]) -> None:
        self.effects.extend(effects)

    def tell_places(self, session: Session, places: Mapping[int, int]) -> None:
        self.effects.append(PlacesDue(session, places))

    def tell_it_goes_on(self, session: Session, connection: ConnectionId, request: int) -> None:
        self.effects.append(GoesOnDue(session, connection, request))

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
