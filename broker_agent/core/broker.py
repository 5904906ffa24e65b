"""The broker, as a pure state machine: clients on one side, an overlay node on the other.

    effects = broker.on_peer_frame(frame, now_s)
    effects = broker.on_client_frame(session_id, frame, now_s)
    effects = broker.tick(now_s)

It keeps sessions, local subscriptions and open publications, which stay with the broker, and hosts
a node, which is the part that a reconfiguration moves. Its driver performs the effects in order,
takes session output when woken, and ticks it every few tens of milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from broker_agent.core.access import Access, Refusal
from broker_agent.core.clock import SteadyClock
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.effects import (
    BrokerEffect,
    CloseSession,
    NodeReady,
    PauseReading,
    ResumeReading,
    SendFrame,
    SessionId,
    Stopped,
    Wake,
)
from broker_agent.core.gate import Gate
from broker_agent.core.publishing import Publishing
from broker_agent.core.sessions import Session
from broker_agent.core.settings import CoreSettings
from broker_agent.core.subscriptions import Subscriptions
from broker_agent.core.validation import problem_with, sort_topics, void
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Echoed,
    ErrorCode,
    ServerMessage,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, PeerMessage, Publication
from overlay.effects import (
    Accepted,
    Deliver,
    Departed,
    Effect,
    InTree,
    Ready,
    Repaired,
    Send,
)
from overlay.identifiers import first_node_id
from overlay.node import Node
from overlay.peers import Peer
from overlay.settings import OverlaySettings

CLIENT_PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is. A restart is a new incarnation."""

    broker_id: str
    address: str
    incarnation: int


class Broker:
    def __init__(
        self,
        identity: Identity,
        overlay: OverlaySettings,
        settings: CoreSettings,
        rng: Random,
        access: Access | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.counters = BrokerCounters()
        me = Peer(
            first_node_id(identity.broker_id),
            identity.broker_id,
            identity.address,
            incarnation=identity.incarnation,
        )
        self.node = Node(me, overlay, rng)
        self.sessions: dict[SessionId, Session] = {}
        self.subscriptions = Subscriptions(settings, self.counters)
        self.publishing = Publishing(settings, self.counters)
        self.gate = Gate(access or Access(settings), settings, self.counters)
        self._clock = SteadyClock(settings.clock_step_max_s, self.counters)
        self._effects: list[BrokerEffect] = []
        self._node_effects: deque[Effect] = deque()
        # Sessions announced by the driver that have not said hello, oldest first, and since when.
        self._unnamed: dict[SessionId, float] = {}
        self._to_publish: list[Publication] = []

    # ---- inputs ---------------------------------------------------------------------------------

    def start(self, seeds: Sequence[str], reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        return self._finish(self.node.start(seeds, now_s), now_s)

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        effects = self.node.tick(now_s)
        for repair in self.subscriptions.due_repairs(now_s):
            via = self.publishing.rendezvous_point(repair.topic)
            # Should there be no answer, the next request looks for it anew.
            self.publishing.forget_rendezvous_point(repair.topic)
            effects += self.node.fetch(repair.topic, repair.seen, via, now_s)
        for topic, newest_term in self.subscriptions.due_corrections(now_s):
            effects += self.node.insist(topic, newest_term, now_s)
        self._to_publish += self.publishing.due(now_s)
        self._end_silent_connections(now_s)
        for session_id in self.gate.due(now_s):
            session = self.sessions.get(session_id)
            if session is not None and not session.paused:
                self._effects.append(ResumeReading(session_id))
        return self._finish(effects, now_s)

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        if frame.HasField("to") and frame.to != self.node.me.node_id:
            self._refuse_frame(frame)
            return self._finish([], now_s)
        return self._finish(self.node.handle(frame, now_s), now_s)

    def _refuse_frame(self, frame: PeerFrame) -> None:
        """The node that this is meant for is not here; its sender should know, once."""
        self.counters.frames_not_here += 1
        if frame.sender.address and not any(m.HasField("not_here") for m in frame.messages):
            not_here = PeerMessage(not_here=NotHere(node_id=frame.to))
            refusal = PeerFrame(
                sender=self.node.me.ref, to=frame.sender.node_id, messages=[not_here]
            )
            self._effects.append(SendFrame(frame.sender.address, refusal))

    def unreachable(self, address: str, reading_s: float) -> list[BrokerEffect]:
        """Connections to this address are refused."""
        now_s = self._clock.at(reading_s)
        self.publishing.forget_address(address)
        return self._finish(self.node.unreachable(address, now_s), now_s)

    def leave(self, reading_s: float) -> list[BrokerEffect]:
        """Leave the ring and say goodbye to clients; done when `Stopped` comes out."""
        now_s = self._clock.at(reading_s)
        for session in list(self.sessions.values()):
            self._end_session(
                session, ErrorCode.ERROR_CODE_SHUTTING_DOWN, "the broker is shutting down"
            )
        return self._finish(self.node.leave(now_s), now_s)

    # ---- sessions -------------------------------------------------------------------------------

    def open_session(self, session_id: SessionId) -> None:
        """A client has connected; it must say hello before anything else."""
        if len(self._unnamed) < self.settings.unnamed_max:
            self._unnamed[session_id] = self._clock.now_s
            return
        self.counters.connections_refused += 1
        message = f"{self.settings.unnamed_max:,} connections have not said hello yet"
        self._end_unnamed(session_id, ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS, message)

    def _end_silent_connections(self, now_s: float) -> None:
        oldest_s = now_s - self.settings.hello_timeout_s
        for session_id in [s for s, since_s in self._unnamed.items() if since_s <= oldest_s]:
            self.counters.hello_timeouts += 1
            message = f"no hello within {self.settings.hello_timeout_s:g} s"
            # Perhaps the network was slow: the client may try again.
            self._end_unnamed(session_id, ErrorCode.ERROR_CODE_UNSPECIFIED, message)

    def _end_unnamed(self, session_id: SessionId, code: ErrorCode.ValueType, message: str) -> None:
        self._unnamed.pop(session_id, None)
        session = self.sessions[session_id] = Session(session_id, "", 0, self.settings)
        self._end_session(session, code, message)

    def replace_access(self, access: Access, reading_s: float) -> list[BrokerEffect]:
        """Other rules hold from now on, for the sessions that are here too."""
        for session, refusal in self.gate.replace(access, self.sessions.values()):
            self._end_session(session, refusal.code, refusal.message)
        return self._finish([], self._clock.at(reading_s))

    def close_session(self, session_id: SessionId, reading_s: float) -> list[BrokerEffect]:
        """The client has gone. Its open publications are still seen through."""
        now_s = self._clock.at(reading_s)
        self._unnamed.pop(session_id, None)
        session = self.sessions.pop(session_id, None)
        effects: list[Effect] = []
        if session is not None:
            session.closing = True
            self.gate.release(session)
            for topic in self.subscriptions.unsubscribe(session, list(session.topics)):
                effects += self.node.unwant(topic, now_s)
        return self._finish(effects, now_s)

    def take_output(self, session_id: SessionId, bytes_max: int) -> bytes:
        session = self.sessions.get(session_id)
        return session.take(bytes_max) if session is not None else b""

    def garbage(self, session_id: SessionId, reading_s: float) -> list[BrokerEffect]:
        """The client sent something that is no frame."""
        self._fail(session_id, "that was not a ClientFrame (or contained text that is not UTF-8)")
        return self._finish([], self._clock.at(reading_s))

    def on_client_frame(
        self, session_id: SessionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        effects: list[Effect] = []
        for message in frame.messages:
            session = self.sessions.get(session_id)
            if session is None:
                if session_id not in self._unnamed or not self._greet(session_id, message):
                    break
            elif session.closing:
                break
            else:
                effects += self._serve(session, message, now_s)
        return self._finish(effects, now_s)

    def _greet(self, session_id: SessionId, message: ClientMessage) -> bool:
        self._unnamed.pop(session_id, None)
        hello = message.hello
        session = Session(session_id, hello.client_id, hello.slow_policy, self.settings)
        self.sessions[session_id] = session
        if not message.HasField("hello"):
            self._fail(session_id, "the first message must be Hello")
        elif hello.protocol != CLIENT_PROTOCOL:
            self._fail(
                session_id,
                f"this broker speaks protocol {CLIENT_PROTOCOL}, the client {hello.protocol}",
            )
        elif len(self.sessions) > self.settings.sessions_max:
            self.counters.sessions_refused += 1
            self._end_session(
                session,
                ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS,
                f"this broker has {self.settings.sessions_max:,} sessions already",
            )
        elif isinstance(grant := self.gate.admit(hello), Refusal):
            self._end_session(session, grant.code, grant.message)
        else:
            session.grant = grant
            self.counters.sessions_opened += 1
            welcome = Welcome(
                broker_id=self.identity.broker_id,
                session_id=session_id,
                payload_bytes_max=grant.settings.payload_bytes_max,
                topic_bytes_max=self.settings.topic_bytes_max,
                alternatives=self._alternatives(),
            )
            session.say(ServerMessage(welcome=welcome))
            self._effects.append(Wake(session_id))
            return True
        return False

    def _serve(self, session: Session, message: ClientMessage, now_s: float) -> list[Effect]:
        kind = message.WhichOneof("body")
        if kind == "publication":
            self._publish(session, message.publication, now_s)
        elif kind == "subscribe":
            return self._subscribe(session, message.subscribe, now_s)
        elif kind == "unsubscribe":
            return self._unsubscribe(session, message.unsubscribe, now_s)
        elif kind == "echo":
            session.say(ServerMessage(echoed=Echoed(request=message.echo.request)))
            self._effects.append(Wake(session.session_id))
        else:
            self._fail(session.session_id, f"unexpected message {kind or '(empty)'}")
        return []

    def _subscribe(self, session: Session, message: Subscribe, now_s: float) -> list[Effect]:
        patterns = [f.pattern for f in message.filters]
        allowed, problems = self.gate.sort_patterns(session.grant, patterns)
        accepted, others = sort_topics(allowed, session.topics, session.grant.settings)
        problems += others
        self.counters.client_errors += len(problems)
        effects: list[Effect] = []
        for topic in self.subscriptions.subscribe(session, message.request, accepted, problems):
            effects += self.node.want(topic, now_s)
        return effects

    def _unsubscribe(self, session: Session, message: Unsubscribe, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for topic in self.subscriptions.unsubscribe(session, [f.pattern for f in message.filters]):
            effects += self.node.unwant(topic, now_s)
        session.say(ServerMessage(unsubscribed=Unsubscribed(request=message.request)))
        self._effects.append(Wake(session.session_id))
        return effects

    def _publish(self, session: Session, publication: Publication, now_s: float) -> None:
        problem = (
            self.gate.forbids(session.grant, publication)
            or problem_with(publication, session.grant.settings)
            or self.gate.overtaxed(session.grant, publication, now_s)
        )
        if problem is not None:
            self.counters.client_errors += 1
            self.publishing.refuse(session, publication, problem.code, problem.message)
            if not problem.uses_up_numbers:
                return
            publication = void(publication)
        self._to_publish.append(self.publishing.accept(session, publication, now_s))
        if session.unsettled_bytes > self.settings.publish_window_bytes and not session.paused:
            session.paused = True
            self.counters.publish_pauses += 1
            self._effects.append(PauseReading(session.session_id))
        if self.gate.must_wait(session, now_s):
            self._effects.append(PauseReading(session.session_id))

    def _fail(self, session_id: SessionId, message: str) -> None:
        """The client broke the rules: tell it why, and end the session."""
        self.counters.client_errors += 1
        self._unnamed.pop(session_id, None)
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id, "", 0, self.settings)
        self._end_session(session, ErrorCode.ERROR_CODE_PROTOCOL, message)

    def _end_session(self, session: Session, code: ErrorCode.ValueType, message: str) -> None:
        session.close(code, message, self._alternatives())
        self._effects += [Wake(session.session_id), CloseSession(session.session_id)]

    def _alternatives(self) -> list[str]:
        others = [*self.node.ring.successors, *self.node.ring.fingers.routes.targets]
        addresses = dict.fromkeys(peer.address for peer in others)
        addresses.pop(self.identity.address, None)
        return list(addresses)[: self.settings.alternatives_max]

    # ---- what the node wants done ---------------------------------------------------------------

    def _finish(self, node_effects: Iterable[Effect], now_s: float) -> list[BrokerEffect]:
        pending = self._node_effects
        pending.extend(node_effects)
        while pending or self._to_publish:
            if not pending:
                self._send_publications(now_s)
            while pending:
                self._perform(pending.popleft(), now_s)
        self._look_after_sessions()
        effects, self._effects = self._effects, []
        return effects

    def _send_publications(self, now_s: float) -> None:
        """To each rendezvous point that is known directly, the rest along the overlay."""
        by_destination: dict[Peer | None, list[Publication]] = {}
        for publication in self._to_publish:
            via = self.publishing.rendezvous_point(publication.topic)
            by_destination.setdefault(via, []).append(publication)
        self._to_publish = []
        for via, publications in by_destination.items():
            self._node_effects.extend(self.node.publish(publications, via, now_s))

    def _perform(self, effect: Effect, now_s: float) -> None:
        match effect:
            case Send(to=peer, frame=frame):
                self._effects.append(SendFrame(peer.address, frame))
            case Deliver(run=run):
                self.subscriptions.on_run(run, now_s)
            case InTree(topic=topic, position=position):
                self.subscriptions.observe(topic, position, now_s)
            case Accepted(by=peer, ack=ack):
                for acknowledged in ack.acknowledged:
                    self.publishing.note_rendezvous_point(acknowledged.topic, peer)
                    self.publishing.acknowledged(acknowledged, now_s)
            case Repaired(by=peer, answer=answer):
                self.publishing.note_rendezvous_point(answer.topic, peer)
                self.subscriptions.on_repair(answer, now_s)
            case Ready():
                self._effects.append(NodeReady())
            case Departed():
                self._effects.append(Stopped())

    def _look_after_sessions(self) -> None:
        touched, slow = self.subscriptions.take_touched()
        for session in slow:
            self.counters.sessions_closed_slow += 1
            message = "the session's queue is full and its policy is to be disconnected"
            self._end_session(session, ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER, message)
        for session in touched:
            self._effects.append(Wake(session.session_id))
        for session in self.publishing.take_touched():
            self._effects.append(Wake(session.session_id))
            if session.paused and session.unsettled_bytes < self.settings.publish_window_bytes / 2:
                session.paused = False
                if not self.gate.is_waiting(session):
                    self._effects.append(ResumeReading(session.session_id))
