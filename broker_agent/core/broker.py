"""The broker, as a pure state machine: clients on one side, an overlay node on the other.

    effects = broker.on_peer_frame(frame, now_s)
    effects = broker.on_client_bytes(connection, raw, now_s)
    effects = broker.tick(now_s)

It keeps sessions, local subscriptions and open publications, which stay with the broker, and hosts
a node, which is the part that a reconfiguration moves. Its driver performs the effects in order,
takes session output when woken, and ticks it every few tens of milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.reception import HELLO_FIRST, SHUTTING_DOWN, Reception
from broker_agent.core.clients.serving import Serving
from broker_agent.core.clock import SteadyClock
from broker_agent.core.core_settings import CoreSettings
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.effects import BrokerEffect, ConnectionId, NodeReady, SendFrame, Stopped
from broker_agent.core.frame_bounds import FrameError, read_client_frame
from broker_agent.core.identity import Identity
from broker_agent.core.keeping.journal import Changes, SessionJournal, Stored
from broker_agent.core.keeping.restoring import restore_sessions
from broker_agent.core.options import BrokerOptions
from broker_agent.core.publishing.announcing import Announcing
from broker_agent.core.publishing.publishing import Publishing
from broker_agent.core.reading.subscriptions import Subscriptions
from broker_agent.core.reconfiguration.node_hosting import NodeHosting
from broker_agent.core.reconfiguration.reconfiguration import CONCERNED, Reconfiguration
from broker_agent.core.reports.logbook import Logbook
from broker_agent.core.reports.reporting import Reporting
from broker_agent.core.rights.access import Access
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.cluster import cluster_for
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from broker_agent.core.sessions.unsaved import Unsaved
from dynatops.v1.client_pb2 import ClientFrame, ErrorCode, Hello
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, PeerMessage, Publication, SessionMoved
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
    Superseded,
)
from overlay.node import Node
from overlay.overlay_settings import OverlaySettings
from overlay.peers import Peer
from overlay.status import Status

_FOR_BROKERS = CONCERNED | {"session_moved"}


class Broker:
    def __init__(
        self,
        identity: Identity,
        overlay: OverlaySettings,
        settings: CoreSettings,
        rng: Random,
        options: BrokerOptions | None = None,
    ) -> None:
        options = options or BrokerOptions()
        self.identity = identity
        self.settings = settings
        self.counters = BrokerCounters()
        self.hosting = NodeHosting(identity, overlay, self.counters, rng)
        self._clock = SteadyClock(settings.clock_step_max_s, self.counters)
        self.logbook = Logbook(self.hosting, self._clock, options.logged_rows_max)
        self.cluster = cluster_for(identity, options.selection, options.labels, self.hosting, rng)
        unsaved = self._unsaved = Unsaved(noting=options.saving)
        self.registry = Registry(identity.life, settings, unsaved, rng)
        self.subscriptions = Subscriptions(
            settings,
            self.counters,
            overlay.catalogue_names_max // CATALOGUE_SHARDS,
            self.cluster.selection.local,
            unsaved,
            self.logbook,
        )
        self.journal: SessionJournal | None = None
        if options.saving:
            self.journal = SessionJournal(self.registry, self.subscriptions, unsaved, self.counters)
        if options.selection.enabled:
            self.subscriptions.read_system_topic(self.cluster.topic, self.cluster.take)
        self.publishing = Publishing(settings, self.counters)
        self.gate = Gate(options.access or Access(settings), settings, self.counters)
        self.reception = Reception(
            identity.broker_id,
            self.registry,
            self.gate,
            self.subscriptions,
            settings,
            self.counters,
            lambda: self.hosting.alternatives(settings.alternatives_max),
            unsaved,
            self.journal,
            self.logbook,
            rng,
        )
        self._effects: list[BrokerEffect] = []
        self._serving = self._make_serving(unsaved)
        self.announcing = Announcing(settings, self.counters)
        self.reconfiguration = Reconfiguration(
            self.hosting, lambda: not self.publishing.open_streams, settings, self.counters
        )
        self.reporting = Reporting(
            options.labels, self.hosting, self.reconfiguration, self.registry, self.counters
        )
        self._node_effects: deque[Effect] = deque()
        self._to_publish: list[Publication] = []

    def _make_serving(self, unsaved: Unsaved) -> Serving:
        return Serving(
            self.settings,
            self.counters,
            self.registry,
            self.gate,
            self.reception,
            self.cluster,
            self.subscriptions,
            self.publishing,
            unsaved,
            self._effects,
            lambda: self.reconfiguration.is_frozen,
        )

    @property
    def node(self) -> Node:
        """The node that is hosted here now."""
        return self.hosting.node

    @property
    def now_s(self) -> float:
        """As of the last input."""
        return self._clock.now_s

    # ---- inputs ---------------------------------------------------------------------------------

    def start(
        self, seeds: Sequence[str], reading_s: float, *, founding: bool = False
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        return self._finish(self.node.start(seeds, now_s, founding=founding), now_s)

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        effects = self.node.tick(now_s)
        if not self.reconfiguration.is_frozen:
            effects += self._ask_for_repairs(now_s)
            self._to_publish += self.publishing.due(now_s)
            if self.node.ring.status is Status.MEMBER:
                self._to_publish += self.cluster.due(len(self.registry), now_s)
        for announcement in self.announcing.due(now_s):
            self.publishing.forget_rendezvous_point(announcement.topic)
            self._to_publish.append(announcement)
        self.reception.tick(now_s)
        self._serving.tick(now_s)
        self.reconfiguration.tick(now_s)
        return self._finish(effects, now_s)

    def _ask_for_repairs(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for repair in self.subscriptions.readers.progress.due_repairs(now_s):
            via = self.publishing.rendezvous_point(repair.topic)
            # Should there be no answer, the next request looks for it anew.
            self.publishing.forget_rendezvous_point(repair.topic)
            effects += self.node.fetch(repair.topic, repair.seen, via, now_s, repair.reader)
        for topic, newest_term in self.subscriptions.readers.progress.due_corrections(now_s):
            effects += self.node.insist(topic, newest_term, now_s)
        return effects

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        if frame.HasField("to") and frame.to != self.node.me.node_id:
            self._pass_on(frame)
            return self._finish([], now_s)
        if any(message.WhichOneof("body") in _FOR_BROKERS for message in frame.messages):
            frame = self._take_own(frame, now_s)
        return self._finish(self.node.handle(frame, now_s), now_s)

    def _take_own(self, frame: PeerFrame, now_s: float) -> PeerFrame:
        """What is said to the broker, in whichever place; what is left is for its node."""
        left = PeerFrame()
        left.CopyFrom(frame)
        del left.messages[:]
        for message in frame.messages:
            kind = message.WhichOneof("body")
            if kind in CONCERNED:
                self.reconfiguration.on_peer(frame.sender, message, now_s)
            elif kind == "session_moved":
                self.reception.moved(message.session_moved, now_s)
            else:
                left.messages.append(message)
        return left

    def _pass_on(self, frame: PeerFrame) -> None:
        """The node that this is meant for is not here: it went to another broker, will come, or is
        gone, which its sender should know, once."""
        host = self.hosting.forward_to(frame)
        if host is not None:
            self._effects.append(SendFrame(host, frame))
            return
        if self.reconfiguration.awaits(frame.to):
            return
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
        self.cluster.selection.lose((address,))
        return self._finish(self.node.unreachable(address, now_s), now_s)

    def leave(self, reading_s: float) -> list[BrokerEffect]:
        """Leave the ring and say goodbye to clients; done when `Stopped` comes out. Sessions end
        with it here, not on disk: take what is unsaved first."""
        now_s = self._clock.at(reading_s)
        self.reception.is_leaving = True
        self._to_publish += self.cluster.farewell(now_s)
        self.reconfiguration.leave(now_s)
        if self.journal is not None:
            self.journal.end()
        for session in self.registry.clients.values():
            self.reception.end(session, ErrorCode.ERROR_CODE_SHUTTING_DOWN, SHUTTING_DOWN)
        return self._finish(self.node.leave(now_s), now_s)

    # ---- the reconfiguration manager ------------------------------------------------------------

    def on_step(self, step: Step, reading_s: float) -> list[BrokerEffect]:
        """A step of a reconfiguration; it is answered by `ReplyToManager`, now or later."""
        now_s = self._clock.at(reading_s)
        self.reconfiguration.on_step(step, now_s)
        return self._finish([], now_s)

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
        self._serving.confirm(self.journal.written())
        return self._finish([], self._clock.at(reading_s))

    def not_saved(self, reading_s: float) -> list[BrokerEffect]:
        assert self.journal is not None
        self._serving.confirm(self.journal.failed())
        return self._finish([], self._clock.at(reading_s))

    # ---- connections and sessions ---------------------------------------------------------------

    def open_connection(
        self, connection: ConnectionId, reading_s: float, host: str = ""
    ) -> list[BrokerEffect]:
        """A client has connected, from this host; it must say hello before anything else."""
        now_s = self._clock.at(reading_s)
        self.reception.open(connection, host, now_s)
        return self._finish([], now_s)

    def close_connection(self, connection: ConnectionId, reading_s: float) -> list[BrokerEffect]:
        """The connection is gone. Its open publications are still seen through."""
        now_s = self._clock.at(reading_s)
        self.reception.close(connection, now_s)
        return self._finish([], now_s)

    def replace_access(self, access: Access, reading_s: float) -> list[BrokerEffect]:
        """Other rules hold from now on, for the sessions that are here too."""
        self.reception.replace_access(access)
        return self._finish([], self._clock.at(reading_s))

    def advise(self, advice: SelectionAdvice | None, reading_s: float) -> None:
        """What analytics say about where users should be."""
        self.cluster.selection.advise(advice, self._clock.at(reading_s))

    def take_output(self, connection: ConnectionId, bytes_max: int) -> bytes:
        session = self.registry.connections.get(connection)
        if session is None or session.connection != connection or not session.has_output:
            return b""
        # What was dropped may be told now.
        self._unsaved.queue(session)
        return self.publishing.timings.taken(session, bytes_max, self._clock.now_s)

    def on_client_bytes(
        self, connection: ConnectionId, raw: bytes, reading_s: float
    ) -> list[BrokerEffect]:
        """What came from a client, whatever it is."""
        is_named = not self.reception.is_unnamed(connection)
        try:
            frame = read_client_frame(raw, self.settings, is_named=is_named)
        except FrameError as error:
            self.counters.frames_refused += 1
            self.reception.fail(connection, str(error))
            return self._finish([], self._clock.at(reading_s))
        return self.on_client_frame(connection, frame, reading_s)

    def on_client_frame(
        self, connection: ConnectionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        if not frame.messages and self.reception.is_unnamed(connection):
            self.reception.fail(connection, HELLO_FIRST)
        for message in frame.messages:
            session = self.registry.connections.get(connection)
            if session is None:
                if not self.reception.is_unnamed(connection):
                    break
                session = self.reception.greet(connection, message, now_s)
                if session is None:
                    break
                if message.hello.redirected:
                    self.cluster.selection.note_arrival(session.client_id, now_s)
                self._tell_former_broker(session, message.hello)
            elif session.closing:
                break
            else:
                self._serving.take_in(connection, session, message, now_s)
        return self._finish([], now_s)

    def _tell_former_broker(self, session: Session, hello: Hello) -> None:
        """The broker that had this client's session need not keep it any longer.

        Only brokers of this ring are told: a client could name anyone.
        """
        address = hello.former_broker
        if address == self.identity.address or not self.node.directory.at_address(address):
            return
        moved = SessionMoved(
            client_id=session.client_id,
            session_id=hello.session_id,
            owner=session.owner,
            attempt=hello.attempt,
        )
        frame = PeerFrame(sender=self.node.me.ref, messages=[PeerMessage(session_moved=moved)])
        self._effects.append(SendFrame(address, frame))

    # ---- what the node wants done ---------------------------------------------------------------

    def _finish(self, node_effects: Iterable[Effect], now_s: float) -> list[BrokerEffect]:
        pending = self._node_effects
        pending.extend(node_effects)
        while True:
            pending.extend(self.hosting.take_effects())
            while pending:
                self._perform(pending.popleft(), now_s)
            self._to_publish += self.announcing.fresh(now_s)
            if not self.reconfiguration.is_frozen:
                self._let_go(now_s)
            if self._to_publish:
                self._send_publications(now_s)
            if not pending and not self.hosting.effects:
                break
        self._serving.settle()
        self.reconfiguration.progress(now_s)
        self._effects += self.reconfiguration.take_effects()
        effects = [*self._effects, *self.reception.effects]
        self._effects.clear()
        self.reception.effects.clear()
        return effects

    def _let_go(self, now_s: float) -> None:
        """What clients have caused may leave the broker: it is not frozen."""
        self._serving.serve_held(now_s)
        self._to_publish += self._serving.published
        self._serving.published.clear()
        for topic, is_wanted in self.subscriptions.readers.take_wants():
            change = self.node.want if is_wanted else self.node.unwant
            self._node_effects.extend(change(topic, now_s))

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
                self.publishing.timings.note_run(run, now_s)
                self.subscriptions.on_run(run, now_s)
            case InTree(topic=topic, position=position):
                self.subscriptions.observe(topic, position, now_s)
            case Accepted(by=peer, ack=ack):
                for acknowledged in ack.acknowledged:
                    self.publishing.note_rendezvous_point(acknowledged.topic, peer)
                    self.publishing.acknowledged(acknowledged, now_s)
                if announced := self.announcing.acknowledged(ack.acknowledged):
                    self._node_effects.extend(self.node.announced(announced, now_s))
            case Announce():
                self.announcing.announce(effect, self.node.reigns.began(effect.topic))
            case Repaired(by=peer, answer=answer):
                self.publishing.note_rendezvous_point(answer.topic, peer)
                self.subscriptions.on_repair(answer, now_s)
            case Ready():
                self._effects.append(NodeReady())
            case Departed():
                self._effects.append(Stopped())
            case Superseded(by=peer):
                self.reconfiguration.superseded(peer, now_s)
