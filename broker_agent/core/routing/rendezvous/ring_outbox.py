"""What is to be done with the node because of the present input, beside the broker's own outbox.

    node_effects   what the hosted node wants done, in order, until that is done
    wishes         topics that the node is to join or to leave; they wait while a plan freezes it
    publications   for the node to send to their rendezvous points
    announcements  that are due again: publications, behind what else a tick has caused

`Rendezvous` empties it after every input, in an order that is documented there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from dynatops.v1.overlay_pb2 import Publication
from overlay.base.effects import Effect


class RingOutbox:
    def __init__(self) -> None:
        self.node_effects: deque[Effect] = deque()
        # (topic, whether it is wanted now), in order.
        self.wishes: list[tuple[str, bool]] = []
        self.publications: list[Publication] = []
        self.announcements: list[Publication] = []

    def from_node(self, effects: Iterable[Effect]) -> None:
        self.node_effects.extend(effects)

    def wish(self, topic: str, *, wanted: bool) -> None:
        self.wishes.append((topic, wanted))

    def publish(self, publications: Iterable[Publication]) -> None:
        self.publications += publications

    def take_publications(self) -> list[Publication]:
        publications, self.publications = self.publications, []
        return publications

    def publish_announcements(self) -> None:
        self.publications += self.announcements
        self.announcements = []

    def take_wishes(self) -> list[tuple[str, bool]]:
        wishes, self.wishes = self.wishes, []
        return wishes

    def left_over(self, *, is_frozen: bool) -> Iterator[str]:
        """What nobody has taken, once an input has been dealt with."""
        counts = {
            "effects of the node": len(self.node_effects),
            "publications": len(self.publications),
            "announcements": len(self.announcements),
            "wishes": 0 if is_frozen else len(self.wishes),
        }
        return (f"{count} {what}" for what, count in counts.items() if count)
