"""What keeps a client connected: one connection, one reader and one writer task.

If the connection breaks, the engine goes to another broker by itself, subscribes again, and sends
again what was not acknowledged. What comes it hands on to the inbox and to those who wait for it.
What applications call, and what they are told of their mistakes, is in `aio`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from dynatops.client.callbacks import report_failing
from dynatops.client.connection import Connection, ConnectionLostError
from dynatops.client.core.client_core import ClientCore, Item, SessionWishes
from dynatops.client.core.destinations import Destination, Destinations
from dynatops.client.core.histories import PastEnd, PastPart, PastWish
from dynatops.client.core.past_reading import PastReading
from dynatops.client.core.publications import (
    Confirmed,
    ConfirmedColumns,
    Publications,
    Rejected,
)
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.client.errors import (
    AccessError,
    ClientFailedError,
    ClosedError,
    ConnectError,
    PublishError,
    WrongLoopError,
)
from dynatops.client.inbox import Inbox
from dynatops.client.past_source import PastSource
from dynatops.client.waiting import Waiting
from dynatops.kit.pacing import FRAMES_PER_S, SELDOM_PER_S, Pacer
from dynatops.kit.security.tls import Tls, TlsFileError
from dynatops.v1.client_pb2 import (
    Cursor,
    ErrorCode,
    Goodbye,
    Missed,
    Redirect,
    ServerFrame,
    Subscribed,
    Welcome,
)

_FRAME_BYTES_MAX = 256 << 10
# Bytes gathered or unacknowledged past which publishing waits.
_WINDOW_BYTES = 8 << 20
# A small frame looks so often whether there is enough in it, and goes then.
_GATHER_STEPS = 14
_GATHER_STEP_S = 0.001
_HELLO_TIMEOUT_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
# The broker of a kept session hears at least this often of what the application has taken.
TELL_PERIOD_S = 0.2
# Before it goes to another broker, the client gives this one so long to take what is under way.
_REDIRECT_PATIENCE_S = 2.0
CLOSED_BY_US = "the client is closed"

# After these a session is not to be opened again.
_FINAL = frozenset(
    {
        ErrorCode.ERROR_CODE_PROTOCOL,
        ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER,
        ErrorCode.ERROR_CODE_TAKEN_OVER,
        ErrorCode.ERROR_CODE_NOT_AUTHENTICATED,
    }
)

# Called with the broker and "" once it is connected again; with "" and why once it is not.
OnConnection = Callable[[str, str], None]

log = logging.getLogger(__name__)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Engine:
    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        wishes: SessionWishes,
        tls: Tls | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self.core = ClientCore(client_id, secrets.token_bytes(16), wishes)
        self.inbox = Inbox(self.core.reading, lambda: self.core.awaits_answers)
        self.waiting = Waiting()
        # Those that read the past, by the numbers of their histories.
        self._pasts: dict[int, PastSource] = {}
        # Why nothing works any more, once it is so.
        self.failure: Exception | None = None
        # Set while not too much is unacknowledged.
        self.window_open = asyncio.Event()
        self.window_open.set()
        self._seeds = list(addresses)
        self._destinations = Destinations(addresses, random.Random())
        self._tls = tls
        # Set once a broker has sent this client elsewhere, until it has gone.
        self._is_sent = False
        self._has_output = asyncio.Event()
        # The broker is to hear what has been taken, though there is nothing else to say.
        self._should_tell = False
        # Those that wait until it has.
        self._telling: list[asyncio.Future[None]] = []
        # Set once a broker has said welcome.
        self._greeted = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        # The one that all of this belongs to.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_reason = ""
        # What the present broker said before it ended the connection.
        self._farewell = ""
        self._on_connection = on_connection
        # Whether the application has been told, and not of the end of it since.
        self._is_lost = False

    # ---- opening and closing --------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Raises ConnectError, AccessError."""
        if self._tls is not None:
            try:
                self._tls.check()
            except TlsFileError as error:
                raise ConnectError(self._seeds, str(error)) from None
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._run())
        greeted = asyncio.create_task(self._greeted.wait())
        await asyncio.wait(
            (greeted, self._running), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not greeted.done():
            greeted.cancel()
            if isinstance(self.failure, AccessError | ClientFailedError):
                await self.close()
                raise self.failure
            reason = self._last_reason or f"no answer within {timeout_s:g} s"
            await self.close()
            raise ConnectError(self._seeds, reason)

    async def close(self) -> None:
        """May be called again, and from anywhere in the client's event loop."""
        self._fail(ClosedError(CLOSED_BY_US))
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self.core.disconnected()

    def _fail(self, failure: Exception) -> None:
        """Nothing works any more; whoever waits is told."""
        if self.failure is not None:
            return
        self.failure = failure
        self._stop_telling()
        self.waiting.on_failed(failure)
        self.inbox.fail(failure)
        for source in self._pasts.values():
            source.fail(failure)
        self.window_open.set()

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            # The same for every caller, each with a traceback of its own.
            raise self.failure.with_traceback(None)

    def check_usable(self) -> None:
        """Raises ClosedError, and what else forbids a call from here."""
        if self.failure is not None:
            self.raise_if_failed()
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(connected=self._loop is not None)

    # ---- being connected ------------------------------------------------------------------------

    async def _run(self) -> None:
        """Nobody waits for this task: what ends it, every call says from then on."""
        try:
            await self._stay_with_the_network()
        except Exception as error:
            log.exception("the client %s has failed", self.core.client_id)
            failure = ClientFailedError(f"the client has failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)
            self.core.disconnected()

    async def _stay_with_the_network(self) -> None:
        """Be connected to some broker, one after the other, until closed."""
        backoff_s = _BACKOFF_MIN_S
        now_s = asyncio.get_running_loop().time
        while self.failure is None:
            destination = self._destinations.next(now_s())
            address = destination.address
            self._is_sent = False
            self._farewell = ""
            try:
                await self._stay_connected(destination)
            except (ConnectionLostError, TimeoutError, TlsFileError) as error:
                reason = self._farewell or str(error) or f"no answer within {_HELLO_TIMEOUT_S:g} s"
                self._destinations.failed_at(address, now_s())
                # What ended a session for good says more than that it ended.
                if self.failure is None:
                    # Which of them it was is no question where there is but one.
                    only = self._seeds == [address]
                    self._last_reason = reason if only else f"{address}: {reason}"
                log.info("no connection to %s: %s", address, reason)
            if self.core.welcome is not None:
                backoff_s = _BACKOFF_MIN_S
            self.core.disconnected()
            self._stop_telling()
            if self.failure is None and not self._destinations.is_sent:
                self._tell_lost()
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    def _stop_telling(self) -> None:
        told, self._telling = self._telling, []
        for future in told:
            _settle(future)

    def _tell_lost(self) -> None:
        if self._on_connection is not None and self._greeted.is_set() and not self._is_lost:
            self._is_lost = True
            report_failing(self._on_connection, "on_connection", "", self._last_reason)

    def _tell_connected(self, broker: str) -> None:
        if self._on_connection is not None and self._is_lost:
            self._is_lost = False
            report_failing(self._on_connection, "on_connection", broker, "")

    async def _stay_connected(self, destination: Destination) -> None:
        connection = Connection(destination.address, self._tls)
        avoid = self._destinations.failed.latest(asyncio.get_running_loop().time())
        hello = self.core.connected(
            destination.address, redirected=destination.redirected, avoid=avoid
        )
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                await connection.write(hello.SerializeToString())
                self._take_in(await connection.read())
            if self.core.welcome is not None:
                self._destinations.reached(destination.address)
            tasks = [
                asyncio.create_task(work)
                for work in (
                    self._read_all(connection),
                    self._write_all(connection),
                    self._tell_all(),
                )
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
        finally:
            await connection.close()

    async def _read_all(self, connection: Connection) -> None:
        while True:
            await self.inbox.has_room.wait()
            self._take_in(await connection.read())

    async def _write_all(self, connection: Connection) -> None:
        pacer = Pacer()
        while True:
            await self._has_output.wait()
            awaits = self.core.publications.awaits_acknowledgements
            await pacer.turn(SELDOM_PER_S if awaits else FRAMES_PER_S)
            if awaits:
                await self._gather(self.core.publications)
            self._has_output.clear()
            tell, self._should_tell = self._should_tell, False
            told, self._telling = self._telling, []
            if tell:
                self._note_taken()
            try:
                while (frame := self.core.take_frame(_FRAME_BYTES_MAX, tell=tell)) is not None:
                    self.adjust_window()
                    # Encoded once: to be asked for its size it would be, too.
                    raw = frame.SerializeToString()
                    pacer.wrote(len(raw))
                    await connection.write(raw)
            finally:
                for future in told:
                    _settle(future)

    async def _gather(self, publications: Publications) -> None:
        """Wait for company: if much is to be acknowledged anyway, a frame with little of it costs
        what one with a fair share would, here, at each broker on its way, and back."""
        for _ in range(_GATHER_STEPS):
            if publications.is_worth_a_frame:
                break
            await asyncio.sleep(_GATHER_STEP_S)

    async def _tell_all(self) -> None:
        """Tell the broker of a kept session now and then what has been taken; and go where it
        sends this client."""
        while not self._is_sent:
            await asyncio.sleep(TELL_PERIOD_S)
            self._note_taken(everything=True)
            if self.core.has_untold:
                # Only one task may write: the connection does not bear two at a time.
                self._should_tell = True
                self._has_output.set()
        try:
            await self.flush(_REDIRECT_PATIENCE_S)
        except PublishError:
            log.info("going elsewhere although this broker has not taken everything")

    def _note_taken(self, *, everything: bool = False) -> None:
        """What the application has taken since last time is to be told."""
        taking = self.inbox.taking
        self.core.taken(taking.taken())
        if everything or taking.has_words:
            self.core.taken_beyond(taking.beyond(everything=everything), taking.marks())

    # ---- what is to be said ---------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to say."""
        if not self._has_output.is_set():
            self._has_output.set()
        if not self.inbox.has_room.is_set():
            self.inbox.look_for_room()

    def has_taken_in(self) -> None:
        """The application has published something."""
        publications = self.core.publications
        if publications.unsettled_bytes + publications.open_bytes > _WINDOW_BYTES:
            self.window_open.clear()
        if not self._has_output.is_set() or not self.inbox.has_room.is_set():
            self.wake()

    def tell_taken(self) -> None:
        """The broker of a kept session is to hear at once what has become of events."""
        self._should_tell = True
        self._has_output.set()

    async def told(self) -> None:
        """Until that has been handed to the network; not at all while there is no connection."""
        if self.core.welcome is None or self.failure is not None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._telling.append(future)
        self._has_output.set()
        await future

    def adjust_window(self) -> None:
        publications = self.core.publications
        if publications.unsettled_bytes + publications.open_bytes > _WINDOW_BYTES:
            self.window_open.clear()
        elif not self.window_open.is_set():
            self.window_open.set()

    async def flush(self, timeout_s: float) -> None:
        """What `Client.flush` does."""
        self.raise_if_failed()
        # A kept session is not to be sent again what the application has had.
        self._note_taken()
        echo = self.waiting.echo(self.core.echo())
        self.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await echo
        except TimeoutError:
            reason = f"not handed to a broker within {timeout_s:g} s"
            raise PublishError("*", reason, may_arrive=True) from None

    # ---- the past -------------------------------------------------------------------------------

    def open_past(
        self, wish: PastWish, reading: PastReading | None = None, upto: Sequence[Cursor] = ()
    ) -> PastSource:
        """See `Histories.open`."""
        number = self.core.histories.open(wish, reading, upto)
        source = self._pasts[number] = PastSource(
            self.core.histories, number, wish.pattern, self.wake, upto
        )
        self.wake()
        return source

    def close_past(self, source: PastSource) -> None:
        if self._pasts.pop(source.number, None) is not None:
            self.core.histories.close(source.number)
            self.wake()

    # ---- what brokers say -----------------------------------------------------------------------

    def _take_in(self, frame: ServerFrame) -> None:
        try:
            for item in self.core.on_frame(frame):
                if isinstance(item, Arrived):
                    self.inbox.put(item)
                elif isinstance(item, ArrivedBundle):
                    self.inbox.put_bundle(item)
                elif isinstance(item, PastPart | PastEnd):
                    if (source := self._pasts.get(item.history)) is not None:
                        source.put(item)
                else:
                    self._on_item(item)
        except DecodeError as error:
            reason = f"the broker sent events that cannot be read: {error}"
            raise ConnectionLostError(reason) from error
        self.inbox.end_of_frame()
        self._note_taken()
        if self.core.has_output:
            self._has_output.set()

    def _on_item(self, item: Item) -> None:
        match item:
            case Confirmed(topic=topic, number=number):
                self.waiting.on_confirmed(topic, number)
                self.adjust_window()
            case ConfirmedColumns(topics=topics, numbers=numbers):
                for topic, number in zip(topics, numbers, strict=True):
                    self.waiting.on_confirmed(topic, number)
                self.adjust_window()
            case Rejected():
                self.waiting.on_rejected(item)
                self.adjust_window()
            case Subscribed():
                if not self.waiting.on_subscribed(item):
                    # Asked for again after a loss of the connection: some may be lost.
                    self.inbox.refused(item.problems)
            case int():
                self.waiting.on_echo(item)
            case Missed():
                self.inbox.tell_gap(item)
            case Welcome():
                self.inbox.begin_session(kept=item.expiry_s > 0)
                self._destinations.learn(item.alternatives)
                self._greeted.set()
                self._tell_connected(item.broker_id)
            case Redirect():
                log.info("sent to %s: %s", item.address, item.reason)
                self._destinations.send_to(item.address, asyncio.get_running_loop().time())
                self._is_sent = True
            case Goodbye():
                self._on_goodbye(item)

    def _on_goodbye(self, goodbye: Goodbye) -> None:
        self._destinations.learn(goodbye.alternatives)
        self._last_reason = self._farewell = goodbye.message
        if goodbye.code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED:
            self._fail(AccessError(f"not let in: {goodbye.message}"))
        elif goodbye.code in _FINAL:
            self._fail(ClosedError(goodbye.message))
