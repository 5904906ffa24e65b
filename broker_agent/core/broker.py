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

from broker_agent.core.announcing import Announcing
from broker_agent.core.clock import SteadyClock
from broker_agent.core.confirming import Request
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    NodeReady,
    PauseReading,
    ResumeReading,
    SaveNow,
    SendFrame,
    Stopped,
    Wake,
)
from broker_agent.core.journal import Changes, Journal, Stored
from broker_agent.core.publishing import Publishing
from broker_agent.core.registry import Registry
from broker_agent.core.restoring import restore_sessions
from broker_agent.core.sessions import Session
from broker_agent.core.settings import CoreSettings
from broker_agent.core.subscriptions import Subscriptions
from broker_agent.core.unsaved import Unsaved
from broker_agent.core.validation import problem_with, readable_filters, sort_filters, void
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Echoed,
    ErrorCode,
    Hello,
    ServerMessage,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import (
    NotHere,
    PeerFrame,
    PeerMessage,
    Publication,
    SessionMoved,
)
from overlay.catalogue import CATALOGUE_SHARDS
from overlay.effects import (
    Accepted,
    Announce,
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
from overlay.reader import TERMS_MAX
from overlay.settings import OverlaySettings

CLIENT_PROTOCOL = 1
CLIENT_ID_BYTES_MAX = 256
_SHUTTING_DOWN = "the broker is shutting down"


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
        *,
        saving: bool = False,
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
        self._unsaved = Unsaved(noting=saving)
        self.registry = Registry(
            f"{identity.broker_id}/{identity.incarnation:x}", settings, self._unsaved
        )
        self.subscriptions = Subscriptions(
            settings,
            self.counters,
            overlay.catalogue_names_max // CATALOGUE_SHARDS,
            self._unsaved,
        )
        self.journal: Journal | None = None
        if saving:
            self.journal = Journal(self.registry, self.subscriptions, self._unsaved, self.counters)
        self.publishing = Publishing(settings, self.counters)
        self.announcing = Announcing(settings, self.counters)
        self._clock = SteadyClock(settings.clock_step_max_s, self.counters)
        self._effects: list[BrokerEffect] = []
        self._node_effects: deque[Effect] = deque()
        self._to_publish: list[Publication] = []
        self._is_leaving = False

    # ---- inputs ---------------------------------------------------------------------------------

    def start(self, seeds: Sequence[str], reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        return self._finish(self.node.start(seeds, now_s), now_s)

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        effects = self.node.tick(now_s)
        for repair in self.subscriptions.progress.due_repairs(now_s):
            via = self.publishing.rendezvous_point(repair.topic)
            # Should there be no answer, the next request looks for it anew.
            self.publishing.forget_rendezvous_point(repair.topic)
            effects += self.node.fetch(repair.topic, repair.seen, via, now_s, repair.reader)
        for topic, newest_term in self.subscriptions.progress.due_corrections(now_s):
            effects += self.node.insist(topic, newest_term, now_s)
        self._to_publish += self.publishing.due(now_s)
        for announcement in self.announcing.due(now_s):
            self.publishing.forget_rendezvous_point(announcement.topic)
            self._to_publish.append(announcement)
        self._look_after_the_absent(now_s)
        return self._finish(effects, now_s)

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        if frame.HasField("to") and frame.to != self.node.me.node_id:
            self._refuse_frame(frame)
            return self._finish([], now_s)
        if frame.messages and frame.messages[0].HasField("session_moved"):
            self._on_session_moved(frame.messages[0].session_moved, now_s)
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
        """Leave the ring and say goodbye to clients; done when `Stopped` comes out.

        Sessions end with it here, not on disk: take what is unsaved first.
        """
        now_s = self._clock.at(reading_s)
        self._is_leaving = True
        if self.journal is not None:
            self.journal.end()
        for session in self.registry.clients.values():
            self._end_session(session, ErrorCode.ERROR_CODE_SHUTTING_DOWN, _SHUTTING_DOWN)
        return self._finish(self.node.leave(now_s), now_s)

    # ---- sessions on disk -----------------------------------------------------------------------

    def restore(self, stored: Stored, reading_s: float) -> None:
        """Go on with the sessions that were on disk. To be said before `start`."""
        assert self.journal is not None
        now_s = self._clock.at(reading_s)
        sessions = restore_sessions(stored, self.registry, self.subscriptions, self.settings, now_s)
        self.journal.restored(sessions, stored)
        self.counters.sessions_restored += len(sessions)

    def unsaved(self, *, everything: bool = False) -> Changes | None:
        """What is to be written to disk now; say `saved` or `not_saved` before asking again."""
        return self.journal.take(everything=everything) if self.journal is not None else None

    def saved(self, reading_s: float) -> list[BrokerEffect]:
        assert self.journal is not None
        return self._tell_confirmed(self.journal.written(), reading_s)

    def not_saved(self, reading_s: float) -> list[BrokerEffect]:
        assert self.journal is not None
        return self._tell_confirmed(self.journal.failed(), reading_s)

    def _tell_confirmed(self, requests: Iterable[Request], reading_s: float) -> list[BrokerEffect]:
        for request in requests:
            if self.subscriptions.confirming.tell(request):
                self._wake(request.session)
        return self._finish([], self._clock.at(reading_s))

    # ---- connections and sessions ---------------------------------------------------------------

    def open_connection(self, connection: ConnectionId) -> None:
        """A client has connected; it must say hello before anything else."""
        self.registry.unnamed.add(connection)

    def close_connection(self, connection: ConnectionId, reading_s: float) -> list[BrokerEffect]:
        """The connection is gone. Its open publications are still seen through."""
        now_s = self._clock.at(reading_s)
        ended = self.registry.depart(connection, now_s)
        if ended is not None:
            ended.closing = True
            self.subscriptions.end(ended, now_s)
        return self._finish([], now_s)

    def take_output(self, connection: ConnectionId, bytes_max: int) -> bytes:
        session = self.registry.connections.get(connection)
        if session is None or session.connection != connection:
            return b""
        # What was dropped may be told now.
        self._unsaved.queue(session)
        return session.take(bytes_max, self._clock.now_s)

    def garbage(self, connection: ConnectionId, reading_s: float) -> list[BrokerEffect]:
        """The client sent something that is no frame."""
        self._fail(connection, "that was not a ClientFrame (or contained text that is not UTF-8)")
        return self._finish([], self._clock.at(reading_s))

    def on_client_frame(
        self, connection: ConnectionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        for message in frame.messages:
            session = self.registry.connections.get(connection)
            if session is None:
                if connection not in self.registry.unnamed:
                    break
                if not self._greet(connection, message, now_s):
                    break
            elif session.closing:
                break
            else:
                self._serve(session, message, now_s)
        return self._finish([], now_s)

    def _greet(self, connection: ConnectionId, message: ClientMessage, now_s: float) -> bool:
        self.registry.unnamed.discard(connection)
        hello = message.hello
        problem = ""
        if not message.HasField("hello"):
            problem = "the first message must be Hello"
        elif hello.protocol != CLIENT_PROTOCOL:
            problem = f"this broker speaks protocol {CLIENT_PROTOCOL}, the client {hello.protocol}"
        elif len(hello.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            problem = f"a client id has at most {CLIENT_ID_BYTES_MAX} bytes"
        if problem:
            self._fail(connection, problem)
            return False
        if self._is_leaving:
            shell = self.registry.shell(connection)
            self._end_session(shell, ErrorCode.ERROR_CODE_SHUTTING_DOWN, _SHUTTING_DOWN)
            return False
        if self.registry.is_full and hello.client_id not in self.registry.clients:
            self.counters.sessions_refused += 1
            message_text = f"this broker has {self.settings.sessions_max:,} sessions already"
            shell = self.registry.shell(connection)
            self._end_session(shell, ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS, message_text)
            return False
        self._welcome(connection, hello, now_s)
        return True

    def _welcome(self, connection: ConnectionId, hello: Hello, now_s: float) -> None:
        arrival = self.registry.arrive(connection, hello, now_s)
        session = arrival.session
        if arrival.ended is not None:
            arrival.ended.closing = True
            self.subscriptions.end(arrival.ended, now_s)
        if arrival.ousted is not None:
            self.counters.sessions_taken_over += 1
            shell = self.registry.shell(arrival.ousted)
            reason = f"another connection has come with the client id {hello.client_id!r}"
            self._end_session(shell, ErrorCode.ERROR_CODE_TAKEN_OVER, reason)
        if arrival.resumed:
            self.counters.sessions_resumed += 1
        else:
            self.counters.sessions_opened += 1
        welcome = Welcome(
            broker_id=self.identity.broker_id,
            session_id=session.session_id,
            payload_bytes_max=self.settings.payload_bytes_max,
            topic_bytes_max=self.settings.topic_bytes_max,
            alternatives=self._alternatives(),
            resumed=arrival.resumed,
            filters=[f.to_wire() for filters in session.filters.values() for f in filters],
            serial=session.acknowledged + 1,
            expiry_s=int(session.expiry_s),
        )
        session.say_first(ServerMessage(welcome=welcome))
        self._effects.append(Wake(connection))
        if hello.redirected:
            session.moved_s = now_s
        if hello.former_broker and hello.former_broker != self.identity.address:
            moved = SessionMoved(client_id=session.client_id, session_id=hello.session_id)
            frame = PeerFrame(sender=self.node.me.ref, messages=[PeerMessage(session_moved=moved)])
            self._effects.append(SendFrame(hello.former_broker, frame))

    def _on_session_moved(self, message: SessionMoved, now_s: float) -> None:
        """A client has gone on at another broker: what is kept for it here is of no use."""
        session = self.registry.clients.get(message.client_id)
        if session is None or not session.is_called(message.session_id):
            return
        if self.journal is not None:
            self.journal.forget(session)
        self.counters.sessions_moved += 1
        if session.connection is not None:
            self._effects.append(CloseConnection(session.connection))
            self.registry.depart(session.connection, now_s)
        self.registry.remove(session)
        session.closing = True
        self.subscriptions.end(session, now_s)

    def _look_after_the_absent(self, now_s: float) -> None:
        if not self.registry.is_check_due(now_s):
            return
        for session in self.registry.expired(now_s):
            self.counters.sessions_expired += 1
            session.closing = True
            self.subscriptions.end(session, now_s)
        oldest_s = now_s - self.settings.offline_age_max_s
        for session in self.registry.detached():
            done = session.acknowledged
            self.counters.expired_events += session.expire(oldest_s)
            if session.acknowledged != done:
                self._unsaved.queue(session)

    def _serve(self, session: Session, message: ClientMessage, now_s: float) -> None:
        kind = message.WhichOneof("body")
        if kind == "publication":
            self._publish(session, message.publication, now_s)
        elif kind == "received":
            self._unsaved.queue(session)
            if session.received(message.received.serial):
                self._wake(session)
        elif kind == "subscribe":
            self._subscribe(session, message.subscribe, now_s)
        elif kind == "unsubscribe":
            self._unsubscribe(session, message.unsubscribe, now_s)
        elif kind == "echo":
            session.say(ServerMessage(echoed=Echoed(request=message.echo.request)))
            self._wake(session)
        elif session.connection is not None:
            self._fail(session.connection, f"unexpected message {kind or '(empty)'}")

    def _wake(self, session: Session) -> None:
        if session.connection is not None:
            self._effects.append(Wake(session.connection))

    def _subscribe(self, session: Session, message: Subscribe, now_s: float) -> None:
        accepted, problems = sort_filters(message.filters, session.filters, self.settings)
        self.counters.client_errors += len(problems)
        cursors = None
        if message.resume:
            cursors = {
                cursor.topic: tuple((entry.term, entry.seq) for entry in cursor.seen[-TERMS_MAX:])
                for cursor in message.cursors
            }
        self.subscriptions.subscribe(session, message.request, accepted, problems, cursors, now_s)

    def _unsubscribe(self, session: Session, message: Unsubscribe, now_s: float) -> None:
        gone = readable_filters(message.filters, self.settings)
        self.subscriptions.unsubscribe(session, gone, now_s)
        session.say(ServerMessage(unsubscribed=Unsubscribed(request=message.request)))
        self._wake(session)

    def _publish(self, session: Session, publication: Publication, now_s: float) -> None:
        problem = problem_with(publication, self.settings)
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
            if session.connection is not None:
                self._effects.append(PauseReading(session.connection))

    def _fail(self, connection: ConnectionId, message: str) -> None:
        """The client broke the rules: tell it why, and end the session."""
        self.counters.client_errors += 1
        self.registry.unnamed.discard(connection)
        session = self.registry.connections.get(connection) or self.registry.shell(connection)
        self._end_session(session, ErrorCode.ERROR_CODE_PROTOCOL, message)

    def _end_session(self, session: Session, code: ErrorCode.ValueType, message: str) -> None:
        session.close(code, message, self._alternatives())
        self._unsaved.session(session)
        if session.connection is not None:
            self._effects += [Wake(session.connection), CloseConnection(session.connection)]

    def _alternatives(self) -> list[str]:
        others = [*self.node.ring.successors, *self.node.ring.fingers.routes.targets]
        addresses = dict.fromkeys(peer.address for peer in others)
        addresses.pop(self.identity.address, None)
        return list(addresses)[: self.settings.alternatives_max]

    # ---- what the node wants done ---------------------------------------------------------------

    def _finish(self, node_effects: Iterable[Effect], now_s: float) -> list[BrokerEffect]:
        pending = self._node_effects
        pending.extend(node_effects)
        while True:
            while pending:
                self._perform(pending.popleft(), now_s)
            self._to_publish += self.announcing.fresh(now_s)
            for topic, is_wanted in self.subscriptions.take_wants():
                change = self.node.want if is_wanted else self.node.unwant
                pending.extend(change(topic, now_s))
            if self._to_publish:
                self._send_publications(now_s)
            if not pending:
                break
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
                if announced := self.announcing.acknowledged(ack.acknowledged):
                    self._node_effects.extend(self.node.announced(announced, now_s))
            case Announce(topic=topic):
                self.announcing.announce(topic)
            case Repaired(by=peer, answer=answer):
                self.publishing.note_rendezvous_point(answer.topic, peer)
                self.subscriptions.on_repair(answer, now_s)
            case Ready():
                self._effects.append(NodeReady())
            case Departed():
                self._effects.append(Stopped())

    def _look_after_sessions(self) -> None:
        touched, slow = self.subscriptions.delivery.take_touched()
        for session in slow:
            self.counters.sessions_closed_slow += 1
            message = "the session's queue is full and its policy is to be disconnected"
            self._end_session(session, ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER, message)
        for session in touched:
            self._wake(session)
            self._unsaved.queue(session)
        if self.subscriptions.confirming.held:
            self._effects.append(SaveNow())
        for session in self.publishing.take_touched():
            self._wake(session)
            if session.paused and session.unsettled_bytes < self.settings.publish_window_bytes / 2:
                session.paused = False
                if session.connection is not None:
                    self._effects.append(ResumeReading(session.connection))
