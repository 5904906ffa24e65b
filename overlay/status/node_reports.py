"""What operators are told of a node: what it is, its topics in pages, its part of one topic's tree.

Topics of the system's own are in no list; whoever names one is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.v1.inspection_pb2 import NodeReport, TopicReport, TopicsReport, TreeReport
from overlay.base.catalogue import is_system
from overlay.base.context import Context
from overlay.base.identifiers import key_of
from overlay.chord.ring import Ring
from overlay.history.reigns import Reigns
from overlay.history.replication import Replication
from overlay.status.node_status import NodeStatus
from overlay.tree.trees import Trees

TOPICS_PER_PAGE = 1_000


class NodeReports:
    def __init__(
        self, context: Context, ring: Ring, trees: Trees, reigns: Reigns, replication: Replication
    ) -> None:
        self._me = context.me
        self._ring = ring
        self._trees = trees
        self._reigns = reigns
        self._replication = replication

    def describe(self, status: NodeStatus) -> NodeReport:
        """The node, which says this of itself, with how many topics it has."""
        return NodeReport(
            node=status.me.ref,
            status=status.ring.value,
            ready=status.is_ready,
            predecessor=status.predecessor.ref if status.predecessor is not None else None,
            successors=[peer.ref for peer in status.successors],
            fingers=[peer.ref for peer in status.fingers],
            topics=len(_ordinary(self._reigns.by_topic)),
            replicas=len(_ordinary(self._replication.copies)),
        )

    def page(self, after: str, limit: int) -> TopicsReport:
        """The topics whose rendezvous point it is, in their order; `limit` 0: as many as usual."""
        limit = limit or TOPICS_PER_PAGE
        names = sorted(topic for topic in _ordinary(self._reigns.by_topic) if topic > after)
        return TopicsReport(
            topics=[self._report_on(topic) for topic in names[:limit]],
            more=len(names) > limit,
        )

    def tree(self, topic: str) -> TreeReport:
        """The topic's tree as it passes through here; whether anybody here subscribes is not known
        to the node."""
        tree = self._trees.topics.get(topic)
        children = tree.delegates.values() if tree is not None else ()
        distinct = {child.node_id: child for child in children if child is not None}
        hop = self._ring.next_hop(key_of(topic)) or self._me
        return TreeReport(
            node=self._me.ref,
            is_rendezvous_point=topic in self._reigns.by_topic,
            children=[distinct[node_id].ref for node_id in sorted(distinct)],
            position=tree.position_message() if tree is not None else None,
            towards_rendezvous_point=hop.ref,
        )

    def _report_on(self, topic: str) -> TopicReport:
        reign = self._reigns.by_topic[topic]
        return TopicReport(
            topic=topic,
            position=reign.log.position_message(),
            members=len(self._trees.members(topic)),
            published=reign.published,
            retained_events=reign.log.events,
        )


def _ordinary(topics: Iterable[str]) -> list[str]:
    return [topic for topic in topics if not is_system(topic)]
