"""What a node holds of a topic: a reign where it is the rendezvous point, a copy where it stands
by.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from dynatops.v1.overlay_pb2 import Acknowledged, Adopted
from overlay.base.identifiers import Key, NodeId
from overlay.base.peers import Peer
from overlay.history.topic_log import TopicLog
from overlay.tree.tree_state import TopicTree


class LoneAck(NamedTuple):
    """The acknowledgement of an event that came in a bundle; it goes out in columns."""

    publisher: int
    number: int


@dataclass(slots=True)
class Reign:
    """A topic that this node is the rendezvous point of."""

    log: TopicLog
    key: Key
    tree: TopicTree
    # When a publication or a change of members last happened.
    active_s: float
    published: int = 0
    # Whether the present successor has been sent the state, and how far it has confirmed.
    state_sent: bool = False
    confirmed: tuple[int, int] = (0, 0)
    sent_s: float = 0.0
    # Acknowledgements that wait for that: position, whom to tell, what. None while none does.
    waiting: deque[tuple[tuple[int, int], Peer, Acknowledged | LoneAck]] | None = None
    # Answers to those that handed the topic over, who rely on two nodes having it, by which history
    # of whose: the position that must be confirmed first, whom to tell, what. None while there is
    # none.
    adopted: dict[tuple[NodeId, int, int], tuple[tuple[int, int], Peer, Adopted]] | None = None
    # Whether the host was asked to announce the topic.
    announcing: bool = False
    # Acknowledgements that wait for that, by whom to tell and publisher: the position that must be
    # confirmed too, whom to tell, what. None while none does.
    held: dict[tuple[NodeId, int], tuple[tuple[int, int], Peer, Acknowledged]] | None = None
    # Repeats of the position since the last event.
    beat: int = 0
    beat_pause_s: float = 0.0
    beat_due_s: float = 0.0


@dataclass(slots=True)
class Copy:
    """A topic that another node is the rendezvous point of."""

    log: TopicLog
    key: Key
    owner: NodeId
    members: dict[NodeId, None]
    # When the owner last sent something of it, and when the owner was last a neighbour.
    heard_s: float
    needed_s: float
    # Whether the owner has not kept it up to date since: it may lack what was acknowledged.
    is_outdated: bool = False
    # Whether it was handed to the owner, and nothing has come from there since: perhaps nobody else
    # has it yet.
    is_handed: bool = False
    pulled_s: float = 0.0
