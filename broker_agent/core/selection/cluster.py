"""Broker selection at work: summaries out and in, and sessions that are sent elsewhere.

Summaries travel like events, on a topic of the system's own that every broker of the cluster reads.
Nobody acknowledges them: the next one makes good for a lost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from google.protobuf.message import DecodeError

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.routing import Routing
from broker_agent.core.selection.cluster_names import cluster_of
from broker_agent.core.selection.selection import Choice, Selection, User
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter
from dynatops.kit.run_events import events_of
from dynatops.v1.client_pb2 import Redirect
from dynatops.v1.overlay_pb2 import AckLevel, Event, Events, Publication, Run
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.base.identifiers import key_of


class Cluster:
    def __init__(
        self, context: BrokerContext, name: str, selection: Selection, routing: Routing
    ) -> None:
        self.topic = f"$cluster/{name}"
        self.selection = selection
        self._brokers = routing.brokers
        self._publishing = routing.publishing
        life = f"{context.identity.broker_id}/{context.identity.incarnation}"
        digest = blake2b(life.encode(), digest_size=8).digest()
        self._publisher = int.from_bytes(digest, "big") | 1
        self._published = 0

    # ---- summaries ------------------------------------------------------------------------------

    def tick(self, sessions: int, now_s: float) -> None:
        """Publish a summary if one is due."""
        self.selection.local.sessions = sessions
        summary = self.selection.summary(now_s)
        if summary is not None:
            self._publishing.publish_own(self._publication_of(summary))

    def farewell(self, now_s: float) -> None:
        """The last summary: this broker leaves."""
        if self.selection.settings.enabled:
            farewell = self._publication_of(self.selection.farewell(now_s))
            self._publishing.publish_own(farewell)

    def _publication_of(self, summary: BrokerSummary) -> Publication:
        self._published += 1
        event = Event(payload=summary.SerializeToString())
        return Publication(
            topic=self.topic,
            publisher=self._publisher,
            first_number=self._published,
            count=1,
            settled=self._published - 1,
            ack=AckLevel.ACK_LEVEL_NONE,
            events=Events(events=[event]).SerializeToString(),
        )

    def learn_summaries(self, run: Run, now_s: float) -> None:
        events = events_of(run)
        if events is None:
            self.selection.counters.summaries_ignored += 1
            return
        for event in events:
            try:
                summary = BrokerSummary.FromString(event.payload)
            except DecodeError:
                self.selection.counters.summaries_ignored += 1
                continue
            self.selection.on_summary(summary, now_s)

    # ---- sessions -------------------------------------------------------------------------------

    def redirect(
        self, session: Session, added: Iterable[Filter], now_s: float, *, follows_less: bool
    ) -> bool:
        """Whether a session that is about to add filters, or has just given some up, is sent to
        another broker."""
        held = {key_of(pattern) for pattern in session.filters}
        interests = held | {key_of(wanted.pattern) for wanted in added}
        if not session.movable or (interests == held and not follows_less):
            return False
        # Routing knows of a death seconds before the dead broker's last summary is stale.
        self.selection.lose(self._brokers.condemned_addresses())
        avoided = frozenset(a for a, until_s in session.avoided.items() if now_s < until_s)
        user = User(session.client_id, interests, held, avoided, session.door)
        choice = self.selection.choose(user, now_s)
        session.redirected = choice.moves
        if choice.moves:
            session.say(_redirect(choice))
        return choice.moves


def _redirect(choice: Choice) -> Redirect:
    reason = f"{choice.reason}: utility {choice.utility:.2f} there, {choice.own_utility:.2f} here"
    return Redirect(broker_id=choice.broker_id, address=choice.address, reason=reason)


def cluster_for(
    context: BrokerContext,
    settings: SelectionSettings,
    labels: Mapping[str, str],
    doors: Mapping[str, str],
    routing: Routing,
) -> Cluster:
    identity = context.identity
    name = cluster_of(settings, identity.broker_id, labels)
    selection = Selection(
        identity.broker_id,
        identity.address,
        identity.incarnation,
        settings,
        context.rng,
        doors,
        context.local,
    )
    return Cluster(context, name, selection, routing)
