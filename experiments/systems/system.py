"""What is compared: broker networks, behind one interface, and the rules of counting for all of
them.

A user is put on a broker by a *selection* (`selections.py`); what is left for a network to see is
which broker subscribes to which topic, and how that changes. Brokers and topics are numbers;
nothing here knows of users.

The rules of counting:

1. A message is what one broker sends to another, once for each broker that it passes (an overlay
   hop). What a broker says to itself costs nothing, and neither does what passes between broker
   and user: it is the same for all systems.
2. *Subscription management* is every message that a change of brokers' subscriptions causes: to
   find the tree or the neighbours, to be let in, to be told so, to leave. Requests of one instant
   for one topic are not merged: each change of a (broker, topic) pair is paid for as if it came
   alone, in the order leaves, then joins, each in the order given. A join of a pair that is
   joined, or a leave of one that is not, is a mistake (`ValueError`). Messages within clusters
   come on top of it; selections count them.
3. *Links changed* counts links of an overlay that is mended or built anew (topic-connected
   overlays): one for each link that is there after and was not before, or the other way round. It
   is such systems' reconfiguration overhead, as the paper assumes (DYNATOPS IV-B), and no part of
   rule 2.
4. *Reconfiguration* is every message of a reconfiguration protocol: of brokers with the manager,
   and among each other, until trees are as they should be.
5. *Notification overhead* of a publication is `way + spread`: messages from the publisher's
   broker to where the topic's tree begins, and those that spread it to all subscribing brokers,
   relays among them. (Eq. 2 leaves the way out of the cost; IV-B measures 'messages to deliver
   event publications'.)
6. *Notification delay* of a subscribing broker is the sum of the delays of the hops from the
   publisher's broker to it, over the way, too; that broker itself, if it subscribes, has what the
   system's own way back to it takes (0 where the system delivers at once to its own users). A hop
   costs `Sites.delays(a, b)`: a round trip, as the paper takes it. Figures of users add the round
   trips between user and broker on both ends.
7. Nothing is free because it is convenient: whatever a system must be told for its structures
   (states of neighbours, representatives) is counted where its paper sends a message for it, and
   where the paper is silent the module says what was assumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from experiments.sites import Floats, Ints, Sites, Topics

# All that a compared system needs to know is in this module.
__all__ = [
    "BrokerNetwork",
    "Dissemination",
    "Floats",
    "Ints",
    "Pairs",
    "Rearranging",
    "Sites",
    "Topics",
    "Upkeep",
    "pairs",
]

# (n, 2): a broker and a topic in each row.
Pairs = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What changed subscriptions cost."""

    messages: int = 0
    links_changed: int = 0

    def __add__(self, other: Upkeep) -> Upkeep:
        return Upkeep(self.messages + other.messages, self.links_changed + other.links_changed)


@dataclass(frozen=True, slots=True)
class Dissemination:
    """What one publication costs, and when it comes where."""

    # Messages from the publisher's broker to where the tree begins.
    way: int
    # Messages from there on.
    spread: int
    # Subscribing brokers, ascending, and the delay to each from the publisher's broker on.
    brokers: Ints
    delays: Floats

    @property
    def messages(self) -> int:
        return self.way + self.spread


class BrokerNetwork(Protocol):
    """Brokers, their overlay and its trees. Made with sites, topics and a seed; deterministic."""

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        """These brokers subscribe to these topics, those no longer do."""

    def publish(self, publisher: int, topic: int) -> Dissemination:
        """A user of this broker publishes. Changes nothing."""

    @property
    def greatest_degree(self) -> int:
        """Of the overlay: the most neighbours that a broker has."""


class Rearranging(BrokerNetwork, Protocol):
    """A network that is rearranged from time to time, by how much is published."""

    def rearrange(self, publications: Floats, period: float) -> int:
        """Once every period (T_free), with how much is expected of each topic until the next;
        returns the messages of the reconfiguration, 0 if there was none."""


def pairs(rows: Iterable[tuple[int, int]]) -> Pairs:
    """For tests and hand-made cases."""
    return np.array(list(rows), dtype=np.int32).reshape(-1, 2)
