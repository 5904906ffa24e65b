"""The brokers next to this one: a link to each, and how far each has been served.

    CLOSED --link up--> OPENED --its positions--> RESUMING --all it missed--> LIVE
       ^                                                                       |
       '----------------------- the session ends ------------------------------'

At the beginning of a session both ends say their tables, then how far they are. A neighbour that
was live before, and wants nothing that it did not want then, goes on from the log; others are
served by a fetch first. What comes meanwhile waits in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import LinkPositions
from overlay.base.peers import Peer
from overlay.forwarding.links.link import Link
from overlay.forwarding.tables.standing import StandingFilters


class ServingState(Enum):
    CLOSED = "closed"
    OPENED = "opened"
    RESUMING = "resuming"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class OwedConfirmation:
    """A version of the neighbour's table that is in place; said once its events up to a place of
    the log have been sent."""

    version: int
    place: int
    positions: dict[int, int]


@dataclass(slots=True)
class TreeNeighbour:
    peer: Peer
    link: Link
    state: ServingState = ServingState.CLOSED
    # The session of the link that this is about; 0 before there was one.
    session: int = 0
    # Whether the log has had, since it was live, all that it wants; and the batch that it must have
    # confirmed first: what it was sent from elsewhere is in no log.
    is_kept: bool = False
    # It wants more since its resuming began: that begins anew.
    is_outdated: bool = False
    resumed_number: int = 0
    # Subscriptions were confirmed without it, before it was heard of: what streams on its side had
    # by then is told as lost.
    is_late: bool = False
    # Whether what it had before this life is of no concern.
    is_new_here: bool = False
    # Where in the log it is, and of each stream what it has been sent or said to have.
    cursor: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    # Streams that have moved on since it was last told.
    moved: set[int] = field(default_factory=set)
    # Entries for it that the log has dropped: the last of each stream.
    dropped: dict[int, int] = field(default_factory=dict)
    positions: LinkPositions | None = None
    # Whether it has been told this broker's.
    has_positions: bool = False
    # This broker's table at the neighbour: versions told and confirmed in this session.
    told_version: int = 0
    confirmed_version: int = 0
    heard_version: int = 0
    # The version of it that takes into account what the neighbour said first in this session.
    answer_version: int = 0
    standing: StandingFilters = field(default_factory=StandingFilters)
    # The neighbour's table here, while it comes in pieces.
    incoming: list[Filter] = field(default_factory=list)
    incoming_ads: list[Filter] = field(default_factory=list)
    # Of that table the newest version, the newest in place, the one that is being said to be so,
    # and the last that was.
    table_version: int = 0
    ready_version: int = 0
    owed: OwedConfirmation | None = None
    said_version: int = 0

    @property
    def broker_id(self) -> str:
        return self.peer.broker_id

    @property
    def is_open(self) -> bool:
        return self.state is not ServingState.CLOSED

    def close(self) -> None:
        # What it wants is in the log only if it was in place beyond this broker, too.
        if self.state is ServingState.RESUMING or self.table_version > self.ready_version:
            self.is_kept = False
        self.state = ServingState.CLOSED
        self.positions = None
        self.owed = None
        self.told_version = self.confirmed_version = self.heard_version = 0
        self.has_positions = False
        self.table_version = self.ready_version = self.said_version = self.answer_version = 0
        self.incoming, self.incoming_ads = [], []
        self.moved.clear()
