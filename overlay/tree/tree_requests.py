"""What a tree node asks the rendezvous point for, when what it sees cannot be right.

Asked again after a pause for as long as it lasts: nothing here needs an answer.
"""

from __future__ import annotations

from collections.abc import Callable

from dynatops.v1.overlay_pb2 import LeaveTree, Outdated, PeerFrame
from overlay.base.context import Context
from overlay.base.identifiers import Key, NodeId, key_of
from overlay.tree.tree_state import TopicTree


class TreeRequests:
    def __init__(self, context: Context, towards_root: Callable[[Key], PeerFrame]) -> None:
        self._settings = context.settings
        self._towards_root = towards_root
        # (topic, member) -> since when no route leads to it.
        self._orphans: dict[tuple[str, NodeId], float] = {}
        self._complaint_due_s: dict[str, float] = {}

    def no_route(self, topic: str, member: NodeId, now_s: float) -> None:
        """If the ring does not know the member for long, it is no member any more."""
        self._orphans.setdefault((topic, member), now_s)

    def withdrawn(self, topic: str, member: NodeId) -> None:
        self._orphans.pop((topic, member), None)

    def tick(self, now_s: float) -> None:
        for (topic, member), since_s in self._orphans.items():
            if now_s - since_s >= self._settings.orphan_grace_s:
                self._orphans[topic, member] = now_s
                leave = LeaveTree(topic=topic, member=member)
                self._towards_root(key_of(topic)).messages.add(leave_tree=leave)

    def root_is_outdated(self, tree: TopicTree, now_s: float) -> None:
        """It uses an older term than has been seen: events of it would be ignored here."""
        if now_s >= self._complaint_due_s.get(tree.topic, 0.0):
            self._complaint_due_s[tree.topic] = now_s + self._settings.interest_retry_s
            self.tell_term(tree, tree.position[0])

    def tell_term(self, tree: TopicTree, term: int) -> None:
        outdated = Outdated(topic=tree.topic, known_term=term)
        self._towards_root(tree.key).messages.add(outdated=outdated)

    def forget_topic(self, topic: str) -> None:
        self._complaint_due_s.pop(topic, None)
