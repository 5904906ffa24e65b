"""Publications on their way from this broker's clients to the rendezvous points.

They are open until the rendezvous point acknowledges them (`open_publications`). One that does not
answer is looked for anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.core.routing.open_publications import OpenPublication, OpenPublications
from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import EVENT_BYTES, Bundle
from dynatops.v1.overlay_pb2 import Acknowledgements, Returned
from overlay.base.peers import Peer


class Publishing(OpenPublications):
    def __init__(self, context: RingContext, hosting: NodeHosting) -> None:
        super().__init__(context, context.ring.publications, "no rendezvous point")
        self._hosting = hosting
        self._rendezvous = hosting.rendezvous

    def _not_answered(self, topic: str) -> None:
        self._rendezvous.forget_topic(topic)

    def accept_bundle(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None:
        """The same of a bundle: what can go together to its rendezvous point does, and goes now.
        Behind a publication that is open an event goes as one, too."""
        self._counters.published_events += len(bundle)
        self._counters.published_bytes += bundle.nbytes + EVENT_BYTES * len(bundle)
        publisher, busy, rendezvous = bundle.publisher, self._busy, self._rendezvous
        by_destination: dict[Peer, list[int]] = {}
        # The last one, and its places: to look it up costs more than to see that it is the same.
        last: Peer | None = None
        places: list[int] = []
        for place, topic in enumerate(bundle.topics):
            via = rendezvous.get(topic)
            stream = busy.get((publisher, topic)) if busy else None
            behind = stream is not None and isinstance(stream.open[-1], OpenPublication)
            if via is None or behind:
                # From here on whatever comes on its topic goes singly.
                self._open_singly(session, bundle, place, now_s)
            elif via is last:
                places.append(place)
            else:
                last, places = via, by_destination.setdefault(via, [])
                places.append(place)
        for via, places in by_destination.items():
            together = bundle.pick(places)
            stamping = self._hosting.publish_bundle(together, via, now_s)
            if stamping.waiting is not None:
                self._open_events(session, stamping.waiting, now_s)
            if stamping.done is together is bundle:
                self._done_at_once(session, bundle, pasts, now_s)
            elif stamping.done is not None:
                self._done_at_once(session, stamping.done, self.pasts_of(stamping.done), now_s)
            for place in stamping.rest:
                self._open_singly(session, together, place, now_s)

    def acknowledged_columns(self, columns: Acknowledgements, by: Peer, now_s: float) -> None:
        """By the rendezvous point of these topics."""
        for topic in columns.topics:
            self._rendezvous.found(topic, by)
        self.settle_columns(columns, now_s)

    def returned(self, returned: Returned, now_s: float) -> None:
        """The rendezvous point, if it is that, cannot take these from a bundle: as publications
        they say more, and travel along the overlay."""
        for topic in returned.topics:
            self._rendezvous.forget_topic(topic)
            self.open_alone(returned.publisher, topic, now_s)
