"""Names of topics on their way into the catalogue.

The node asks for it (`Announce`) when it is the rendezvous point of a topic that the catalogue may
not have, or not any more. An announcement is published like any event, again and again until the
catalogue's rendezvous point acknowledges it, and then the node is told.

    waiting  --room-->  open  --acknowledged-->  announced
                        |  ^
                        `--' published again, after growing pauses

This is not `publishing`: there, events of one publisher keep their order, a client's window bounds
them, and past a deadline they are refused. An announcement is the only event of its publisher and
has no client to be refused to; and whoever published the topic's first event waits for it, so it is
never given up. What bounds announcements is that each topic has one, and that few are open at once:
whoever takes many topics over does not flood the catalogue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from dynatops.v1.overlay_pb2 import Acknowledged, Publication
from overlay.base.catalogue import Entered, announcement_of
from overlay.base.effects import Announce

_RETRY_PAUSE_FACTOR_MAX = 5.0


@dataclass(slots=True)
class _OpenAnnouncement:
    wanted: Announce
    publication: Publication
    due_s: float
    pause_s: float


class Announcing:
    def __init__(self, settings: CoreSettings, counters: BrokerCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._topics: set[str] = set()
        # Not published yet, in order.
        self.waiting: deque[tuple[Announce, int]] = deque()
        # By publisher and catalogue topic, which is what acknowledgements name.
        self._open: dict[tuple[int, str], _OpenAnnouncement] = {}

    def __len__(self) -> int:
        """Topics not yet announced."""
        return len(self._topics)

    def announce(self, wanted: Announce, began: int = 0) -> None:
        """Take in a topic that began in this term."""
        if wanted.topic not in self._topics:
            self._topics.add(wanted.topic)
            self.waiting.append((wanted, began))

    def acknowledged(self, acks: Iterable[Acknowledged]) -> list[Entered]:
        """Which topics these say are announced."""
        done: list[Entered] = []
        for ack in acks:
            entry = self._open.pop((ack.publisher, ack.topic), None)
            if entry is not None:
                self._topics.remove(entry.wanted.topic)
                self._counters.topics_announced += not entry.wanted.again
                done.append(Entered(entry.wanted.topic, entry.wanted.known, ack))
        return done

    def due(self, now_s: float) -> list[Publication]:
        """What to publish again."""
        again: list[Publication] = []
        for entry in self._open.values():
            if entry.due_s <= now_s:
                entry.pause_s = min(
                    2 * entry.pause_s, _RETRY_PAUSE_FACTOR_MAX * self._settings.publish_retry_s
                )
                entry.due_s = now_s + entry.pause_s
                again.append(entry.publication)
        self._counters.announcement_retries += len(again)
        return again

    def fresh(self, now_s: float) -> list[Publication]:
        """What to publish for the first time, as far as there is room."""
        announcements: list[Publication] = []
        while self.waiting and len(self._open) < self._settings.announcements_open_max:
            wanted, began = self.waiting.popleft()
            publication = announcement_of(wanted.topic, wanted.known, began)
            pause_s = self._settings.publish_retry_s
            key = (publication.publisher, publication.topic)
            self._open[key] = _OpenAnnouncement(wanted, publication, now_s + pause_s, pause_s)
            announcements.append(publication)
        return announcements
