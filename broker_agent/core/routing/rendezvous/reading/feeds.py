"""Where this broker's readers stand, and what they have to ask for.

A topic that anyone here wants has one reader that follows it live. A session that comes from
elsewhere, with a cursor of its own, is first read up to there by a reader of its own (shared by all
that stand at the same place), and joins the others when both stand at one position.

    live:        tree --> reader --> members
    catching up: rendezvous point --> reader --> members --same position--> live

A reader that is behind asks the rendezvous point; a live one that is ahead of it tells it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.session import Session
from dynatops.v1.overlay_pb2 import Run, TermSeq
from overlay.history.reader import Cursor, TopicReader

# Empty stands for the topic's beginning.
CursorKey = Cursor


@dataclass(slots=True, eq=False)
class Feed:
    """One reader, and the sessions that get what it reads."""

    topic: str
    # What answers to its requests are known by: no other has ever had it, so that none takes what
    # was meant for one that is gone.
    number: int
    reader: TopicReader
    # The reader's clock when each session joined: what is older does not concern it.
    members: dict[Session, int] = field(default_factory=dict)
    # Whether it follows the topic live; if not, it catches up.
    is_live: bool = False
    # Whether the rendezvous point has been asked for what comes after its start.
    asked: bool = False
    # What was said last about where it begins: many sessions come while the topic is quiet.
    told_beginning: tuple[tuple[int, int], Content] | None = None

    def beginning(self) -> Content:
        """Where a session that joins now begins."""
        position = self.reader.position
        if self.told_beginning is None or self.told_beginning[0] != position:
            beat = Run(topic=self.topic, term=position[0], first_seq=position[1] + 1)
            self.told_beginning = (position, Content(beat))
        return self.told_beginning[1]


@dataclass(frozen=True, slots=True)
class Repair:
    """A request to the rendezvous point that is due now."""

    topic: str
    reader: int
    seen: list[TermSeq]
    wants_holes: bool


class FeedProgress:
    """Which readers are behind or ahead, and when something has to be said about it."""

    def __init__(self, settings: CoreSettings, counters: BrokerCounters) -> None:
        self._settings = settings
        self._counters = counters
        # When to ask for what is missed, and when to tell of the newer term.
        self._behind: dict[Feed, float] = {}
        self._ahead: dict[Feed, float] = {}

    def note_input(self, feed: Feed, now_s: float) -> None:
        """Something has come in."""
        reader = feed.reader
        # Where a client says it stood is no reason to make a rendezvous point open newer terms.
        if not reader.is_ahead or not feed.is_live:
            self._ahead.pop(feed, None)
        else:
            self._ahead.setdefault(feed, now_s)
        if not reader.is_behind:
            # One that catches up asks until it stands where the live one stands.
            if feed.is_live:
                self._behind.pop(feed, None)
        elif feed not in self._behind:
            self._behind[feed] = now_s + self._settings.repair_delay_s

    def answered(self, feed: Feed, now_s: float) -> None:
        """An answer has come; if it is not all, the next request goes at once."""
        self._behind.pop(feed, None)
        if feed.reader.is_behind:
            self._behind[feed] = now_s
        self.note_input(feed, now_s)

    def is_asking(self, feed: Feed) -> bool:
        return feed in self._behind

    def ask(self, feed: Feed, at_s: float) -> None:
        """Ask the rendezvous point then, whether anything is known to be missing or not."""
        self._behind[feed] = at_s

    def forget_feeds(self, feeds: Iterable[Feed]) -> None:
        for feed in feeds:
            self._behind.pop(feed, None)
            self._ahead.pop(feed, None)

    def due_repairs(self, now_s: float) -> list[Repair]:
        repairs: list[Repair] = []
        for feed, due_s in self._behind.items():
            if due_s <= now_s:
                self._behind[feed] = now_s + self._settings.repair_retry_s
                repairs.append(
                    Repair(feed.topic, feed.number, feed.reader.seen(), feed.reader.wants_holes)
                )
        self._counters.repairs_asked += len(repairs)
        return repairs

    def due_corrections(self, now_s: float) -> list[tuple[str, int]]:
        """Topics whose rendezvous point must be told now of a newer term, and that term."""
        due = [feed for feed, due_s in self._ahead.items() if due_s <= now_s]
        for feed in due:
            self._ahead[feed] = now_s + self._settings.repair_retry_s
        return [(feed.topic, feed.reader.newest_term) for feed in due]
