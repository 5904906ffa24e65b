"""Which topics this node's broker subscribes to, and whether the trees agree.

Wanting a topic and being in its tree are compared whenever either changes; as long as they differ,
the node asks the rendezvous point to join or to leave, again and again with growing pauses. Nothing
else keeps a subscription alive, and nothing else is needed after any failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynatops.v1.overlay_pb2 import JoinTree, LeaveTree, PeerFrame
from overlay.base.context import Context
from overlay.base.identifiers import Key, key_of

_PAUSE_FACTOR_MAX = 4.0


@dataclass(slots=True)
class _Retry:
    due_s: float
    pause_s: float


class Interests:
    def __init__(
        self,
        context: Context,
        is_member: Callable[[str], bool],
        towards_root: Callable[[Key], PeerFrame],
    ) -> None:
        self._me = context.me.node_id
        self._settings = context.settings
        self._is_member = is_member
        self._towards_root = towards_root
        # topic -> the newest term that its reader has seen.
        self._wanted: dict[str, int] = {}
        self._unsettled: dict[str, _Retry] = {}
        # What is to be compared once others can hear of it; None while nothing holds that up.
        self._postponed: dict[str, None] | None = None

    def __contains__(self, topic: str) -> bool:
        return topic in self._wanted

    @property
    def wanted(self) -> list[str]:
        return list(self._wanted)

    @property
    def unsettled(self) -> int:
        return len(self._unsettled) + len(self._postponed or ())

    def want(self, topic: str, now_s: float, known_term: int = 0) -> None:
        self._wanted[topic] = max(known_term, self._wanted.get(topic, 0))
        self.review(topic, now_s)

    def unwant(self, topic: str, now_s: float) -> None:
        self._wanted.pop(topic, None)
        self.review(topic, now_s)

    def terms(self) -> dict[str, int]:
        """What is wanted, with the newest term seen of each."""
        return dict(self._wanted)

    def insist(self, topic: str, known_term: int, now_s: float) -> None:
        """Join again although in the tree: its root does not know of this term."""
        if topic in self._wanted:
            self._wanted[topic] = max(known_term, self._wanted[topic])
            self._ask(topic, now_s)

    def review(self, topic: str, now_s: float) -> None:
        """The wish or the tree may have changed: compare."""
        if self._postponed is not None:
            self._postponed[topic] = None
        elif (topic in self._wanted) == self._is_member(topic):
            self._unsettled.pop(topic, None)
        elif topic not in self._unsettled:
            self._unsettled[topic] = _Retry(now_s, self._settings.interest_retry_s)
            self._try(topic, now_s)

    def postpone(self) -> None:
        """Ask nobody for anything until `catch_up`: they could not hear it yet."""
        self._postponed = {}

    def catch_up(self, now_s: float) -> None:
        postponed, self._postponed = self._postponed, None
        for topic in postponed or ():
            self.review(topic, now_s)

    def tick(self, now_s: float) -> None:
        for topic, retry in list(self._unsettled.items()):
            if now_s >= retry.due_s:
                self._try(topic, now_s)

    def _try(self, topic: str, now_s: float) -> None:
        retry = self._unsettled[topic]
        retry.due_s = now_s + retry.pause_s
        retry.pause_s = min(2 * retry.pause_s, _PAUSE_FACTOR_MAX * self._settings.interest_retry_s)
        self._ask(topic, now_s)

    def _ask(self, topic: str, now_s: float) -> None:
        messages = self._towards_root(key_of(topic)).messages
        if topic in self._wanted:
            known_term = self._wanted[topic]
            messages.add(join_tree=JoinTree(topic=topic, member=self._me, known_term=known_term))
        else:
            messages.add(leave_tree=LeaveTree(topic=topic, member=self._me))
