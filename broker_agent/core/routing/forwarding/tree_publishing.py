"""Publications of a broker's clients in a tree: numbered here, and acknowledged by this broker
itself or, with its keeper, by both.

What the forwarder cannot take yet it does not answer, and is given again (`open_publications`).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.core.routing.forwarding.forwarding_context import ForwardingContext
from broker_agent.core.routing.forwarding.tree_measures import TreeMeasures
from broker_agent.core.routing.open_publications import OpenPublication, OpenPublications
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import EVENT_BYTES, Bundle
from overlay.base.effects import Accepted


class TreePublishing(OpenPublications):
    def __init__(self, context: ForwardingContext, measures: TreeMeasures) -> None:
        super().__init__(context, context.tree.publications, "neither this broker nor its keeper")
        self._forwarder = context.forwarder
        self._tree = context.tree
        self._measures = measures

    def _not_answered(self, topic: str) -> None:
        """There is nobody else to ask."""

    def accept_bundle(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None:
        """Behind a publication that is open an event goes as one, too."""
        self._counters.published_events += len(bundle)
        self._counters.published_bytes += bundle.nbytes + EVENT_BYTES * len(bundle)
        places: list[int] = []
        for place, topic in enumerate(bundle.topics):
            stream = self._busy.get((bundle.publisher, topic)) if self._busy else None
            if stream is not None and isinstance(stream.open[-1], OpenPublication):
                self._open_singly(session, bundle, place, now_s)
            else:
                places.append(place)
        if places:
            together = bundle.pick(places)
            self._open_events(session, together, now_s)
            self._measures.published_bundle(together)
            self._tree.from_forwarder(self._forwarder.publish_bundle(together, now_s))

    def send_out(self, now_s: float) -> None:
        publications = self._tree.publications.take()
        self._measures.published(publications)
        self._tree.from_forwarder(self._forwarder.publish(publications, now_s))

    def on_accepted(self, effect: Accepted, now_s: float) -> None:
        for acknowledged in effect.ack.acknowledged:
            self.acknowledged(acknowledged, now_s)
        for columns in effect.ack.columns:
            self.settle_columns(columns, now_s)
        for returned in effect.ack.returned:
            for topic in returned.topics:
                self.open_alone(returned.publisher, topic, now_s)
