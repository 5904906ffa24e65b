"""What is to be done because of the present input: the one place where a broker's parts say it.

    effects        for the driver, in order
    touched, ...   sessions that are seen to once all else has settled
    crowds         publishers whose audiences are behind

`Broker` empties it after every input, in an order that is documented there. What is to go out to
other brokers, routing keeps by itself until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from broker_agent.core.base.effects import BrokerEffect, SendFrame
from dynatops.v1.overlay_pb2 import PeerFrame

if TYPE_CHECKING:
    from broker_agent.core.sessions.session import Session


class BrokerOutbox:
    def __init__(self) -> None:
        self.effects: list[BrokerEffect] = []
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

    def left_over(self) -> Iterator[str]:
        """What nobody has taken, once an input has been dealt with."""
        counts = {
            "effects": len(self.effects),
            "touched sessions": len(self.touched),
            "sessions that are too slow": len(self.too_slow),
            "sessions with something settled": len(self.settled),
            "audiences of publishers": len(self.crowds),
        }
        return (f"{count} {what}" for what, count in counts.items() if count)
