"""A running broker: the core, driven by real time and real connections.

    agent = Agent(settings)
    await agent.start()        # listens, and joins or founds a ring
    await agent.run_until_stopped()

The core decides; this module performs its effects in order: frames to links, wake-ups to sessions.
All of it lives in one event loop, so nothing here is locked. What goes on behind the scenes is
supervised: should it fail, `run_until_stopped` ends the broker. A frame from outside that makes
the core fail ends only the connection it came on: a client could otherwise end brokers, one after
the other, by any bug that it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    NodeReady,
    PauseReading,
    ReadPast,
    RememberAssignment,
    ReplyToManager,
    ResumeReading,
    SaveNow,
    SendFrame,
    Stopped,
    StoreNow,
    Wake,
)
from broker_agent.core.base.identity import Identity
from broker_agent.core.base.notices import PlaceGone, TopologyChanged
from broker_agent.core.broker import Broker
from broker_agent.core.keeping.journal import Stored
from broker_agent.core.options import BrokerOptions
from broker_agent.core.rights.access import Access
from broker_agent.doors.door import Door
from broker_agent.process_settings import BrokerSettings, default_broker_id
from broker_agent.runtime.analytics.extras import advice_reader, lake_feed, open_lake
from broker_agent.runtime.connections import ClientConnection, ClientWire
from broker_agent.runtime.disk.learnt_topology import LearntTopology
from broker_agent.runtime.disk.saving import Saving
from broker_agent.runtime.disk.session_store import SessionStore, SessionStoreError
from broker_agent.runtime.disk.stimulus_file import StimulusFile, StimulusFileError
from broker_agent.runtime.eventlog.store_feed import StoreFeed
from broker_agent.runtime.listeners.listener import Listeners
from broker_agent.runtime.listeners.table import KNOWN_BY, LISTENERS
from broker_agent.runtime.manager.managed import ManagedBroker
from broker_agent.runtime.manager.uplink import Uplink
from broker_agent.runtime.observing.http_server import HttpServer
from broker_agent.runtime.observing.narrating import Narrator
from broker_agent.runtime.observing.probes import pages
from broker_agent.runtime.observing.watch import Watch
from broker_agent.runtime.peers.joining import joined
from broker_agent.runtime.peers.links import LinkHost, Links
from broker_agent.runtime.peers.namesakes import living_namesake
from broker_agent.runtime.recording import make_core
from broker_agent.runtime.streams import InputFailedError
from dynatops.kit.addresses import split_address
from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.background import Supervisor, finish, until_one_ends
from dynatops.kit.security.peer_credentials import (
    CredentialsError,
    LinkCredentials,
    read_link_credentials,
)
from dynatops.kit.security.tls import TlsFileError
from dynatops.kit.security.tokens_file import TokensError, read_tokens
from dynatops.kit.serving.first_reads import FirstReads
from dynatops.kit.serving.start_errors import JoinError, StartError
from dynatops.lake.counters import LakeCounters
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import PeerFrame
from overlay.forwarding.tree.topology import Topology

if TYPE_CHECKING:
    from broker_agent.runtime.analytics.lake_feed import LakeFeed
    from dynatops.lake.files import Lake
    from dynatops.lake.writer import LakeWriter

# A broker that failed ends without a word, and soon.
_KILL_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

__all__ = ["Agent", "JoinError", "StartError"]


class Agent:
    def __init__(self, settings: BrokerSettings) -> None:
        self.settings: BrokerSettings = settings
        self.supervisor = Supervisor()
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.started_s: float = 0.0
        # Known once the port is bound.
        self.address = ""
        self.broker_id: str = settings.broker_id
        # What happens here, in the core and around it.
        self.counters = BrokerCounters()
        self.core: Broker
        self.links: Links
        self.watch: Watch
        self._narrator: Narrator
        # Probes and metrics, where they are asked for.
        self.http: HttpServer | None = None
        self.is_stopping = False
        # What clients say first, through whichever door, and what is asked of the broker.
        self.first_reads: FirstReads = FirstReads(
            settings.runtime.unnamed_bytes_max,
            settings.runtime.message_bytes_max,
            self._on_place_lost,
        )
        self.listeners = Listeners(self, LISTENERS, KNOWN_BY)
        self._connections: dict[ConnectionId, ClientConnection] = {}
        self._connections_opened = 0
        # When the last tick was over.
        self._ticked_s = 0.0
        self.advice_counters: AdviceCounters = AdviceCounters()
        self._saving: Saving | None = None
        # Of a broker that is a store.
        self._store: StoreFeed | None = None
        # What the core is told, if that is written down.
        self._recording: StimulusFile | None = None
        self._feed: LakeFeed | None = None
        # To the reconfiguration managers, where there are any.
        self.uplink: Uplink | None = None
        # Of a tree that changed while this broker was in it.
        self.learnt_topology: LearntTopology | None = None
        if settings.topology and settings.data_dir:
            self.learnt_topology = LearntTopology(settings.data_dir)
        self._keeping_topology: asyncio.Task[object] | None = None
        self._place_gone: PlaceGone | None = None
        self._is_up = False
        self._left = asyncio.Event()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- starting and stopping ------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and become a member of the ring. Raises StartError."""
        settings = self.settings
        access, credentials = self._read_access()
        lake = open_lake(settings.lake)
        logged_rows_max = settings.lake.buffer_rows_max if lake is not None else 0
        await self.listeners.bind(settings, credentials)
        self.address = settings.advertise or self.listeners.address
        _, port = split_address(self.listeners.address)
        self.broker_id = settings.broker_id or default_broker_id(port)
        self.started_s = self._now()
        store, stored, incarnation = await self._begin_life()
        identity = Identity(self.broker_id, self.address, incarnation)
        try:
            if settings.store.is_store:
                self._store = await asyncio.to_thread(StoreFeed.open, settings, incarnation)
            options = self._options(access, logged_rows_max)
            learnt = self.learnt_topology
            self.core, self._recording = make_core(settings, identity, options, learnt)
        except (StimulusFileError, StartError) as error:
            await self.listeners.stop()
            if store is not None:
                store.close()
            if self._store is not None:
                self._store.close()
            raise StartError(str(error)) from error
        self.links = Links(self._link_host(), settings.runtime, credentials, self.supervisor)
        if store is not None:
            await self._restore(store, stored)
        self.watch = Watch(self.core, closely=bool(settings.http.listen))
        self._narrator = Narrator(self.core)
        await self._answer_probes()
        await self.listeners.start()
        if self._saving is not None:
            self._saving.start(self.supervisor)
        if self._store is not None:
            self._store.start(self.core, self._now, self._perform, self.supervisor)
        if namesake := await living_namesake(self.links, settings.join):
            await self.kill()
            raise JoinError(namesake)
        self._perform(self.core.start(settings.join, self._now()))
        self._ticked_s = self._now()
        self.supervisor.start("ticks", self._tick_forever())
        if lake is not None:
            self._feed_lake(lake)
        await self._wait_for_membership()
        self._start_advising()
        if settings.manager.addresses:
            managed = ManagedBroker(self)
            # What happens before one is found is counted, too.
            managed.attend()
            self.uplink = Uplink(settings.manager, credentials, managed, self.links.options)
            self.supervisor.start("attending to managers", self._attend(self.uplink))
        http = self.http.address if self.http is not None else None
        self._narrator.joined(self._now() - self.started_s, http, self.listeners.others)
        self._is_up = True

    def _options(self, access: Access, logged_rows_max: int) -> BrokerOptions:
        settings = self.settings
        return BrokerOptions(
            access,
            settings.selection,
            settings.labels,
            logged_rows_max=logged_rows_max,
            saving=bool(settings.data_dir),
            counters=self.counters,
            doors=self.listeners.advertised(settings.advertised),
            store=self._store.options if self._store is not None else None,
            past=settings.past,
        )

    def _link_host(self) -> LinkHost:
        return LinkHost(
            self.broker_id,
            self.address,
            self.on_peer_frame,
            self.on_unreachable,
            self.core.namesakes,
            lambda: self.core.is_member and not self.is_stopping,
            frozenset(self.settings.join),
        )

    async def _answer_probes(self) -> None:
        settings = self.settings.http
        if settings.listen:
            self.http = HttpServer(settings, pages(self))
            try:
                await self.http.start()
            except OSError as error:
                await self.kill()
                raise StartError(f"cannot serve HTTP at {settings.listen}: {error}") from None

    async def _attend(self, uplink: Uplink) -> None:
        await self.ready.wait()
        await uplink.run()

    def _start_advising(self) -> None:
        reader = advice_reader(
            self.settings.advice, lambda advice: self.core.advise(advice, self._now())
        )
        if reader is not None:
            self.advice_counters = reader.counters
            self.supervisor.start("reading advice", reader.run())

    def _feed_lake(self, lake: Lake) -> None:
        self._feed = lake_feed(self.core, lake, self.settings, self._now)
        self._feed.start()
        self.supervisor.start("feeding the lake", self._feed.run())

    @property
    def lake_writer(self) -> LakeWriter | None:
        return self._feed.writer if self._feed is not None else None

    @property
    def lake_hangs(self) -> bool:
        """Whether there is a thread that waits for the lake; once the broker has stopped, for
        nobody any more."""
        return self._feed is not None and self._feed.writer.is_alive

    @property
    def lake_counters(self) -> LakeCounters:
        return self._feed.counters if self._feed is not None else LakeCounters()

    @property
    def unsaved_for_s(self) -> float:
        """For how long the disk has taken nothing."""
        return self._saving.failing_for_s if self._saving is not None else 0.0

    @property
    def saving_fails(self) -> bool:
        return self._saving is not None and self._saving.is_failing

    def _read_access(self) -> tuple[Access, LinkCredentials]:
        security = self.settings.security
        try:
            tokens = read_tokens(security.tokens) if security.tokens else None
            return Access(self.settings.core, tokens), read_link_credentials(security)
        except (TokensError, CredentialsError) as error:
            raise StartError(str(error)) from None

    def reload(self) -> None:
        """Read the tokens and the certificates again; what cannot be used leaves all as it was."""
        if not self.started_s:
            return
        path = self.settings.security.tokens
        try:
            tokens = read_tokens(path) if path else None
            self.listeners.reload_certificates()
        except (TokensError, TlsFileError) as error:
            self.counters.reloads_failed += 1
            log.error("nothing reloaded: %s", error)
            return
        if tokens is not None:
            self._perform(self.core.replace_access(Access(self.settings.core, tokens), self._now()))
        log.warning("reloaded tokens and certificates")

    def save_recording(self) -> None:
        """Have what is recorded so far on disk."""
        recording = self._recording
        if recording is None:
            log.warning("nothing is recorded: set record.dir, and start the broker again")
            return
        recording.sync()
        state = "goes on" if recording.is_open else "has ended"
        log.warning("%s has %d inputs, and %s", recording.path, recording.inputs, state)

    async def _begin_life(self) -> tuple[SessionStore | None, Stored, int]:
        """The store of sessions and what is in it, if there is one, and this life's incarnation."""
        clock_ms = time.time_ns() // 1_000_000
        if not self.settings.data_dir:
            return None, Stored(), clock_ms
        try:
            return await asyncio.to_thread(
                SessionStore.open, Path(self.settings.data_dir), clock_ms
            )
        except SessionStoreError as error:
            await self.listeners.stop()
            raise StartError(str(error)) from error

    async def _restore(self, store: SessionStore, stored: Stored) -> None:
        flush_s = self.settings.runtime.session_flush_s
        self._saving = Saving(store, self.core, flush_s, self._now, self._perform)
        try:
            self._saving.restore(stored)
        except SessionStoreError as error:
            await self.listeners.stop()
            raise StartError(str(error)) from error
        if self.counters.sessions_restored:
            log.info("%d sessions restored", self.counters.sessions_restored)

    async def _wait_for_membership(self) -> None:
        is_joined = await joined(self.core, self.settings, self._perform)
        if self._place_gone is not None:
            await self.topology_kept()
            await self.kill()
            raise StartError(
                f"topology version {self._place_gone.version}, which others have, has no "
                f"{self.broker_id} at {self.address}: tell one of them of a newer topology with it "
                "(`dynatops topology apply`), or leave it ended"
            )
        if is_joined:
            return
        await self.kill()
        seeds = ", ".join(self.settings.join)
        problem = self.links.last_problem
        raise JoinError(
            f"no broker at {seeds} let {self.broker_id} join within "
            f"{self.settings.runtime.join_timeout_s:g} s; check that one runs there and "
            f"can be reached, and that {self.address} can be reached from there"
            + (f" ({problem})" if problem else "")
        )

    async def stop(self) -> None:
        """Leave the ring, let clients take what is theirs, and end."""
        if self.stopped.is_set():
            return
        log.info("broker %s leaves", self.broker_id)
        self.is_stopping = True
        began_s = self._now()
        if self._saving is not None:
            # Clients that are told goodbye must find their sessions when the broker is back.
            await self._saving.end_with(self._leave)
        else:
            self._leave()
        patience_s = self.settings.overlay.leave_patience_s + 1.0
        try:
            async with asyncio.timeout(patience_s):
                await self._left.wait()
        except TimeoutError:
            log.warning("broker %s goes without its neighbours' farewell", self.broker_id)
        await self._drain()
        if self._saving is not None:
            await self._saving.save_departures()
        self._narrator.end_of_sessions()
        if self._store is not None:
            await self._store.stop()
        await self._end()
        if self._feed is not None:
            await self._feed.finish()
        self._narrator.left(self._now() - began_s, in_time=self._left.is_set())
        self.stopped.set()

    def _leave(self) -> None:
        self._perform(self.core.leave(self._now()))

    async def _drain(self) -> None:
        flushing = [connection.flushed() for connection in self._connections.values()]
        try:
            async with asyncio.timeout(self.settings.runtime.drain_timeout_s):
                await asyncio.gather(*flushing)
        except TimeoutError:
            log.warning("some clients did not take what was queued for them")

    async def kill(self) -> None:
        """End at once, without a word to anyone."""
        if self._feed is not None:
            self._feed.abandon()
        await self._end()
        self.stopped.set()

    async def _end(self) -> None:
        await self.listeners.stop()
        if self.http is not None:
            await self.http.stop()
        await self.links.close()
        await self.supervisor.stop()
        if self._saving is not None:
            await self._saving.close()
        if self._store is not None:
            self._store.close()
        if self._recording is not None:
            self._recording.close()

    async def run_until_stopped(self) -> None:
        """If what it cannot do without fails, it ends as one that crashed does: clients and peers
        find their connections broken, and know what to do. Raises BackgroundError then."""
        await until_one_ends(self.stopped.wait(), self.supervisor.failure())
        if self.supervisor.failed is not None and not self.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await self.kill()
            raise self.supervisor.failed

    # ---- inputs ---------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        while True:
            due_s = self._now() + self.settings.runtime.tick_s
            await asyncio.sleep(self.settings.runtime.tick_s)
            now_s = self._now()
            self._perform(self.core.tick(now_s))
            if self.uplink is not None:
                self.uplink.update_registration()
            self._narrator.tick(now_s)
            self.watch.tick(now_s - due_s, now_s)
            self._ticked_s = self._now()

    @property
    def late_s(self) -> float:
        """For how long it has not looked at the time."""
        if not self._ticked_s:
            return 0.0
        return max(self._now() - self._ticked_s - self.settings.runtime.tick_s, 0.0)

    def _take_in(self, source: str, effects_of: Callable[[float], Sequence[BrokerEffect]]) -> None:
        """Something from outside. Raises InputFailedError."""
        try:
            effects = effects_of(self._now())
        except Exception as error:
            self.counters.inputs_failed += 1
            log.exception("what came from %s made this broker fail: it is not listened to", source)
            raise InputFailedError(f"{source}: {error!r}") from error
        self._perform(effects)

    async def change_topology(self, topology: Topology) -> str:
        """It is in use at once. Wait until it is on disk; why it is not, if it should be."""
        self._perform(self.core.change_topology(topology, self._now()))
        return await self.topology_kept()

    async def topology_kept(self) -> str:
        """Wait until what was learnt is on disk; why it is not, if it should be."""
        keeping = self._keeping_topology
        return str(await asyncio.shield(keeping)) if keeping is not None else ""

    def _heed_topology(self, notice: TopologyChanged | PlaceGone) -> None:
        learnt = self.learnt_topology
        if learnt is not None:
            keeping = learnt.keep(notice.version, notice.text)
            self._keeping_topology = self.supervisor.start(
                "keeping the topology", keeping, may_end=True
            )
        if isinstance(notice, PlaceGone):
            is_first, self._place_gone = self._place_gone is None, notice
            if is_first and self._is_up and not self.is_stopping:
                finish("leaving the tree", self._leave_tree())

    async def _leave_tree(self) -> None:
        await self.topology_kept()
        await self.stop()

    def on_step(self, step: Step) -> None:
        self._take_in("a manager", lambda now_s: self.core.on_step(step, now_s))

    def on_peer_frame(self, frame: PeerFrame) -> None:
        source = f"broker {frame.sender.broker_id or 'unknown'}"
        self._take_in(source, lambda now_s: self.core.on_peer_frame(frame, now_s))

    def on_unreachable(self, address: str) -> None:
        log.info("nobody listens at %s any more", address)
        self._perform(self.core.unreachable(address, self._now()))

    async def serve_client(self, wire: ClientWire, door: Door, came_by: str = "") -> None:
        """Until the client goes or the core ends its session, whichever way the client came in:
        `came_by` is the name of a further door."""
        core, bytes_max = self.core, self.settings.runtime.session_frame_bytes_max
        connection = ClientConnection(wire)
        connection_id = self._open_connection(connection, came_by)
        client = f"a client ({connection_id})"

        def on_bytes(raw: bytes) -> None:
            self._take_in(
                client, lambda now_s: door.on_client_bytes(core, connection_id, raw, now_s)
            )

        def take_output() -> bytes:
            return door.take_output(core, connection_id, bytes_max)

        broken = ""
        try:
            await connection.serve(on_bytes, take_output, self.first_reads)
        except InputFailedError:
            # It is logged; to the client the connection is broken.
            broken = "the broker failed on what was said"
        finally:
            try:
                await wire.close(broken)
            finally:
                self._close_connection(connection_id)

    def _open_connection(self, connection: ClientConnection, came_by: str) -> ConnectionId:
        self._connections_opened += 1
        connection_id = ConnectionId(f"{self.broker_id}/{self._connections_opened}")
        self._connections[connection_id] = connection
        host, now_s = connection.host, self._now()
        self._perform(self.core.open_connection(connection_id, now_s, host, came_by))
        return connection_id

    def _close_connection(self, connection_id: ConnectionId) -> None:
        if self._connections.pop(connection_id, None) is not None:
            self._perform(self.core.close_connection(connection_id, self._now()))

    def _on_place_lost(self) -> None:
        """A stream said nothing for so long that others were read from in its stead."""
        self.counters.first_reads_lost += 1

    # ---- effects --------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[BrokerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(address=address, frame=frame):
                    self.links.send(address, frame)
                case Wake() | PauseReading() | ResumeReading() | CloseConnection():
                    connection = self._connections.get(effect.connection)
                    if connection is not None:
                        connection.perform(effect)
                case SaveNow() | StoreNow() | ReadPast() | RememberAssignment():
                    self._turn_to_disk(effect)
                case ReplyToManager(reply=reply):
                    if self.uplink is not None:
                        self.uplink.reply(reply)
                case NodeReady():
                    self.ready.set()
                case Stopped():
                    self._left.set()
                case _:
                    self._narrator.on_notice(effect)
                    if isinstance(effect, TopologyChanged | PlaceGone):
                        self._heed_topology(effect)

    def _turn_to_disk(self, effect: SaveNow | StoreNow | ReadPast | RememberAssignment) -> None:
        if isinstance(effect, SaveNow) and self._saving is not None:
            self._saving.hurry()
        elif isinstance(effect, StoreNow) and self._store is not None:
            self._store.feed()
        elif isinstance(effect, ReadPast) and self._store is not None:
            self._store.read(effect.order)
        elif isinstance(effect, RememberAssignment) and self._store is not None:
            remembering = self._store.remember(effect.assignment)
            self.supervisor.start("remembering what to keep", remembering, may_end=True)
