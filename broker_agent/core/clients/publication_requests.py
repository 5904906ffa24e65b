"""What clients publish: believed, allowed, in order, and on its way; or refused."""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.publication_checks import problem_with, void
from broker_agent.core.clients.reception import Reception
from broker_agent.core.publishing.publishing import Publishing
from broker_agent.core.rights.publisher_ids import is_of
from broker_agent.core.sessions.session import Session
from dynatops.v1.overlay_pb2 import Publication

_NOT_ITS_OWN = "the publisher of a publication is the one that Welcome names"


class PublicationRequests:
    def __init__(
        self,
        context: BrokerContext,
        reception: Reception,
        gate: Gate,
        publishing: Publishing,
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
            self._gate.forbids(session.grant, publication, now_s)
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
