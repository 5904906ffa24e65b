"""What is to be done because of the present input: the one place where a broker's parts say it.

    effects        for the driver, in order
    node_effects   what the hosted node wants done, in order, until the broker has done it
    wishes         topics that the node is to join or to leave; they wait while the broker is frozen
    publications   for the node to send to their rendezvous points
    touched, ...   sessions that are seen to once all of that has settled
    crowds         publishers whose audiences are behind

`Broker` empties it after every input, in an order that is documented there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from broker_agent.core.base.effects import BrokerEffect, SendFrame
from dynatops.v1.overlay_pb2 import PeerFrame, Publication
from overlay.base.effects import Effect

if TYPE_CHECKING:
    from broker_agent.core.sessions.session import Session


class BrokerOutbox:
    def __init__(self) -> None:
        self.effects: list[BrokerEffect] = []
        self.node_effects: deque[Effect] = deque()
        # (topic, whether it is wanted now), in order.
        self.wishes: list[tuple[str, bool]] = []
        self.publications: list[Publication] = []
        # Sessions that have new output; that could not take it; of whose publications some are
        # settled.
        self.touched: dict[Session, None] = {}
        self.too_slow: dict[Session, None] = {}
        self.settled: dict[Session, None] = {}
        # By publisher (the number for its acknowledged events): the sessions that its events went
        # to, while all of them are crowded; None once one was not, or was elsewhere.
        self.crowds: dict[int, dict[Session, None] | None] = {}

    def do(self, effect: BrokerEffect) -> None:
        self.effects.append(effect)

    def send(self, address: str, frame: PeerFrame) -> None:
        self.effects.append(SendFrame(address, frame))

    def from_node(self, effects: Iterable[Effect]) -> None:
        self.node_effects.extend(effects)

    def wish(self, topic: str, *, wanted: bool) -> None:
        self.wishes.append((topic, wanted))

    def publish(self, publications: Iterable[Publication]) -> None:
        self.publications += publications

    def take_publications(self) -> list[Publication]:
        publications, self.publications = self.publications, []
        return publications

    def take_wishes(self) -> list[tuple[str, bool]]:
        wishes, self.wishes = self.wishes, []
        return wishes

    def take_touched(self) -> dict[Session, None]:
        touched, self.touched = self.touched, {}
        return touched

    def take_too_slow(self) -> dict[Session, None]:
        too_slow, self.too_slow = self.too_slow, {}
        return too_slow

    def take_settled(self) -> dict[Session, None]:
        settled, self.settled = self.settled, {}
        return settled

    def note_audience(
        self, publisher: int, sessions: Collection[Session], is_all: Callable[[], bool]
    ) -> None:
        """Events of this publisher have gone to these sessions; whether nobody else hears them."""
        key = publisher & ~1
        crowd = self.crowds.get(key, {})
        if crowd is None or not sessions:
            return
        if all(session.is_crowded for session in sessions) and is_all():
            crowd.update(dict.fromkeys(sessions))
            self.crowds[key] = crowd
        else:
            self.crowds[key] = None

    def take_crowds(self) -> dict[int, dict[Session, None] | None]:
        crowds, self.crowds = self.crowds, {}
        return crowds

    def take_effects(self) -> list[BrokerEffect]:
        effects, self.effects = self.effects, []
        return effects

    def left_over(self, *, is_frozen: bool) -> Iterator[str]:
        """What nobody has taken, once an input has been dealt with."""
        counts = {
            "effects": len(self.effects),
            "effects of the node": len(self.node_effects),
            "publications": len(self.publications),
            "wishes": 0 if is_frozen else len(self.wishes),
            "touched sessions": len(self.touched),
            "sessions that are too slow": len(self.too_slow),
            "sessions with something settled": len(self.settled),
            "audiences of publishers": len(self.crowds),
        }
        return (f"{count} {what}" for what, count in counts.items() if count)
