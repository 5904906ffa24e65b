"""What clients publish: believed, allowed, in order, and on its way; or refused."""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.publication_checks import problem_with, void
from broker_agent.core.clients.reception import Reception
from broker_agent.core.rights.access import Grant
from broker_agent.core.rights.publisher_ids import is_of
from broker_agent.core.routing.routing import RoutedPublishing
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.topics import TopicError, check_topic
from dynatops.v1 import overlay_pb2
from dynatops.v1.overlay_pb2 import Publication
from overlay.soundness import is_sound_bundle

_NOT_SOUND = "the columns of a bundle are not equally long, or have numbers that cannot be"
_NOT_ITS_OWN = "the publisher of a publication is the one that Welcome names"


class PublicationRequests:
    def __init__(
        self,
        context: BrokerContext,
        reception: Reception,
        gate: Gate,
        publishing: RoutedPublishing,
        flow: Flow,
    ) -> None:
        self._reception = reception
        self._gate = gate
        self._publishing = publishing
        self._flow = flow
        self._counters = context.counters

    def on_publication(self, session: Session, publication: Publication, now_s: float) -> None:
        if not is_of(session.publisher, publication.publisher):
            self._counters.publishers_not_believed += 1
            self._reception.fail_session(session, _NOT_ITS_OWN)
            return
        problem = (
            self._gate.forbids(session.grant, publication.topic, now_s)
            or problem_with(publication, session.grant.settings)
            or self._gate.overtaxed(session.grant, publication, now_s)
        )
        if problem is not None:
            self._counters.client_errors += 1
            self._publishing.refuse(session, publication, problem.code, problem.message)
            if not problem.uses_up_numbers:
                return
            publication = void(publication)
        self._publishing.accept(session, publication, now_s)
        self._flow.published(session, now_s)

    def on_bundle(self, session: Session, message: overlay_pb2.Bundle, now_s: float) -> None:
        if message.terms or not is_sound_bundle(message):
            self._reception.fail_session(session, _NOT_SOUND)
            return
        if not is_of(session.publisher, message.publisher):
            self._counters.publishers_not_believed += 1
            self._reception.fail_session(session, _NOT_ITS_OWN)
            return
        bundle = Bundle.from_wire(message)
        pasts = self._publishing.pasts_of(bundle)
        if self._is_all_right(session.grant, bundle, pasts, now_s):
            self._publishing.accept_bundle(session, bundle, pasts, now_s)
            self._flow.published(session, now_s)
            return
        # Each by itself: some are.
        for place in range(len(bundle)):
            self.on_publication(session, bundle.publication_at(place), now_s)

    def _is_all_right(
        self, grant: Grant, bundle: Bundle, pasts: Sequence[StreamPast | None], now_s: float
    ) -> bool:
        """Whether all of it may be published, and nobody counts how fast."""
        settings = grant.settings
        if max(bundle.sizes) > settings.payload_bytes_max or self._gate.has_pace(grant):
            return False
        try:
            for topic, past in zip(bundle.topics, pasts, strict=True):
                # One that has been published on was looked at then.
                if past is None:
                    check_topic(topic, settings.topic_bytes_max)
        except TopicError:
            return False
        return self._gate.allows_all(grant, bundle.topics, now_s)
