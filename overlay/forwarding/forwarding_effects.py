"""What a broker in a tree wants done, beside what nodes of the ring want done, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynatops.kit.filters import Filter
from overlay.base.effects import Accepted, Deliver, DeliverBundle, Ready, Send
from overlay.forwarding.portions import Portion
from overlay.forwarding.topology import Topology


@dataclass(frozen=True, slots=True)
class LossRange:
    """Events of a stream after `after` and up to `upto` may be missing; without `upto` it has
    ended, and nobody knows how far it went."""

    stream: int
    after: int
    upto: int | None


@dataclass(frozen=True, slots=True)
class StreamLost:
    """Whoever subscribes here misses something, perhaps."""

    loss: LossRange


@dataclass(frozen=True, slots=True)
class FilterInPlace:
    """Events that meet the filter come here, wherever they are published that can be reached: of
    each stream all after this place."""

    wanted: Filter
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """A part of the answer to a `fetch`: events, what is lost, up to where streams were read."""

    fetch_id: int
    portions: Sequence[Portion]
    losses: Sequence[LossRange]
    ends: Mapping[int, int]
    done: bool


@dataclass(frozen=True, slots=True)
class TopologyLearned:
    """A newer topology is in use from now on: keep it."""

    topology: Topology
    # The neighbour that had it; empty if somebody here was told.
    source: str = ""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """A newer topology has no place for this broker, or has it elsewhere. It is not used: whoever
    is in it does not listen here any more."""

    topology: Topology


# Notices: what those who watch should hear of. They ask for nothing.


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    broker_id: str


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    broker_id: str


@dataclass(frozen=True, slots=True)
class TopologyConflict:
    """A neighbour has another topology of the same version: no link is up until one is newer."""

    broker_id: str
    version: int


ForwardingNotice = NeighbourUp | NeighbourDown | TopologyConflict
ForwardingEffect = (
    Send
    | Deliver
    | DeliverBundle
    | Accepted
    | Ready
    | StreamLost
    | FilterInPlace
    | FetchedPart
    | TopologyLearned
    | TakenOut
    | ForwardingNotice
)
