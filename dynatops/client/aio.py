"""The asynchronous client.

    async with dynatops.connect("127.0.0.1:7400") as client:
        await client.publish("quake/ca", b"M5.1")
        async with client.subscribe("quake/ca") as events:
            async for event in events:
                print(event.payload)

One connection, one reader and one writer task. If the connection breaks, the client goes to another
broker by itself, subscribes again, and sends again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from dynatops.client.connection import Connection, ConnectionLostError
from dynatops.client.core import ClientCore, Item, SessionWishes
from dynatops.client.errors import (
    AccessError,
    ClosedError,
    ConnectError,
    PublishError,
    SubscribeError,
)
from dynatops.client.inbox import Inbox
from dynatops.client.publications import Ack, Confirmed, Rejected
from dynatops.client.reading import Arrived, FilterKey
from dynatops.client.subscription import EventQueue, OnGap, Subscription
from dynatops.client.waiting import Waiting
from dynatops.filters import Filter, Value, attributes_to_wire
from dynatops.tls import Tls, TlsFileError
from dynatops.topics import TOPIC_BYTES_MAX, check_topic
from dynatops.v1.client_pb2 import (
    ErrorCode,
    Goodbye,
    Missed,
    Redirect,
    ServerFrame,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Attribute

_FRAME_BYTES_MAX = 256 << 10
# Bytes gathered or unacknowledged past which publishing waits.
_WINDOW_BYTES = 8 << 20
_HELLO_TIMEOUT_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
# The broker of a kept session hears at least this often of what the application has taken.
TELL_PERIOD_S = 0.2
# Before it goes to another broker, the client gives this one so long to take what is under way.
_REDIRECT_PATIENCE_S = 2.0
_CLOSED_BY_US = "the client is closed"

# After these a session is not to be opened again.
_FINAL = frozenset(
    {
        ErrorCode.ERROR_CODE_PROTOCOL,
        ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER,
        ErrorCode.ERROR_CODE_TAKEN_OVER,
        ErrorCode.ERROR_CODE_NOT_AUTHENTICATED,
    }
)

log = logging.getLogger(__name__)


class Client:
    """A connection to a network of brokers. Made by `dynatops.connect`."""

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        wishes: SessionWishes,
        tls: Tls | None = None,
    ) -> None:
        self._seeds = list(addresses)
        self._addresses = deque(addresses)
        self._tls = tls
        self._core = ClientCore(client_id, secrets.randbits(64), wishes)
        self._waiting = Waiting()
        self._inbox = Inbox(self._core.reading)
        # Where a broker has sent this client.
        self._redirect = ""
        self._has_output = asyncio.Event()
        # The broker is to hear what has been taken, though there is nothing else to say.
        self._should_tell = False
        # Set while: not too much is unacknowledged; a broker has said welcome.
        self._window_open = asyncio.Event()
        self._window_open.set()
        self._greeted = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._last_reason = ""

    @property
    def client_id(self) -> str:
        return self._core.client_id

    @property
    def broker(self) -> str:
        """The broker that this client is connected to; empty if to none."""
        welcome = self._core.welcome
        return welcome.broker_id if welcome is not None else ""

    @property
    def resumed(self) -> list[Filter]:
        """Filters that the session was kept with, and that this client has not subscribed with yet.

        Their events wait until it does.
        """
        return [Filter.parse(pattern, where) for pattern, where in self._core.reading.unclaimed]

    # ---- opening and closing --------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Connect; `connect` calls it. Raises ConnectError, AccessError."""
        if self._tls is not None:
            try:
                self._tls.check()
            except TlsFileError as error:
                raise ConnectError(self._seeds, str(error)) from None
        self._running = asyncio.get_running_loop().create_task(self._run())
        greeted = asyncio.create_task(self._greeted.wait())
        await asyncio.wait(
            (greeted, self._running), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not greeted.done():
            greeted.cancel()
            if isinstance(self._failure, AccessError):
                await self.close()
                raise self._failure
            reason = self._last_reason or f"no answer within {timeout_s:g} s"
            await self.close()
            raise ConnectError(self._seeds, reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._failure is None:
            await self.flush()
        await self.close()

    async def close(self) -> None:
        """Disconnect at once; what has not been handed to the broker is lost. See `flush`."""
        self._fail(ClosedError(_CLOSED_BY_US))
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _fail(self, failure: Exception) -> None:
        """Nothing works any more; whoever waits is told."""
        if self._failure is not None:
            return
        self._failure = failure
        self._waiting.on_failed(failure)
        self._inbox.fail(failure)
        self._window_open.set()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ---- being connected ------------------------------------------------------------------------

    async def _run(self) -> None:
        """Be connected to some broker, one after the other, until closed."""
        backoff_s = _BACKOFF_MIN_S
        while self._failure is None:
            redirected, self._redirect = self._redirect, ""
            address = redirected or self._addresses[0]
            if not redirected:
                self._addresses.rotate(-1)
            try:
                await self._stay_connected(address, redirected=bool(redirected))
            except (ConnectionLostError, TimeoutError, TlsFileError) as error:
                reason = str(error) or f"no answer within {_HELLO_TIMEOUT_S:g} s"
                # What ended a session for good says more than that it ended.
                if self._failure is None:
                    self._last_reason = f"{address}: {reason}"
                log.info("no connection to %s: %s", address, reason)
            if self._core.welcome is not None:
                backoff_s = _BACKOFF_MIN_S
            self._core.disconnected()
            if self._failure is None and not self._redirect:
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _stay_connected(self, address: str, *, redirected: bool) -> None:
        connection = Connection(address, self._tls)
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                await connection.write(self._core.connected(address, redirected=redirected))
                self._take_in(await connection.read())
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
            await self._inbox.has_room.wait()
            self._take_in(await connection.read())

    async def _write_all(self, connection: Connection) -> None:
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            tell, self._should_tell = self._should_tell, False
            while (frame := self._core.take_frame(_FRAME_BYTES_MAX, tell=tell)) is not None:
                self._adjust_window()
                await connection.write(frame)

    async def _tell_all(self) -> None:
        """Tell the broker of a kept session now and then what has been taken; and go where it
        sends this client."""
        while not self._redirect:
            await asyncio.sleep(TELL_PERIOD_S)
            self._core.taken(self._inbox.taken())
            if self._core.has_untold:
                # Only one task may write: the connection does not bear two at a time.
                self._should_tell = True
                self._has_output.set()
        try:
            async with asyncio.timeout(_REDIRECT_PATIENCE_S):
                await self.flush()
        except (TimeoutError, PublishError):
            log.info("going to %s although this broker has not taken everything", self._redirect)

    # ---- what brokers say -----------------------------------------------------------------------

    def _take_in(self, frame: ServerFrame) -> None:
        for item in self._core.on_frame(frame):
            if isinstance(item, Arrived):
                self._inbox.put(item)
            else:
                self._on_item(item)
        welcome = self._core.welcome
        self._inbox.end_of_frame(kept=welcome is not None and welcome.expiry_s > 0)
        self._core.taken(self._inbox.taken())
        if self._core.has_output:
            self._has_output.set()

    def _on_item(self, item: Item) -> None:
        match item:
            case Confirmed(topic=topic, number=number):
                self._waiting.on_confirmed(topic, number)
                self._adjust_window()
            case Rejected():
                self._waiting.on_rejected(item)
                self._adjust_window()
            case Subscribed():
                if not self._waiting.on_subscribed(item):
                    # Asked for again after a loss of the connection: some may be lost.
                    self._inbox.refused(item.problems)
            case int():
                self._waiting.on_echo(item)
            case Missed():
                self._inbox.tell_gap(item)
            case Welcome():
                self._learn_addresses(item.alternatives)
                self._greeted.set()
            case Redirect():
                log.info("sent to %s: %s", item.address, item.reason)
                self._redirect = item.address
            case Goodbye():
                self._on_goodbye(item)

    def _learn_addresses(self, addresses: Iterable[str]) -> None:
        self._addresses = deque(dict.fromkeys([*self._seeds, *addresses]))
        random.shuffle(self._addresses)

    def _on_goodbye(self, goodbye: Goodbye) -> None:
        self._learn_addresses(goodbye.alternatives)
        self._last_reason = goodbye.message
        if goodbye.code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED:
            self._fail(AccessError(f"not let in: {goodbye.message}"))
        elif goodbye.code in _FINAL:
            self._fail(ClosedError(goodbye.message))

    # ---- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish one event, and wait until it has reached its level of acknowledgement.

        With `Ack.NONE` it returns as soon as the event is taken in for sending. `attributes` are
        what subscribers' conditions ask about.
        """
        self._check_topic(topic)
        wire = attributes_to_wire(attributes) if attributes else None
        number = await self._take_for_sending(topic, payload, ack, wire)
        if ack is not Ack.NONE:
            await self._confirmation(topic, number, timeout_s)

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish events in this order, and wait once, until the last has reached its level.

        Each of them has these `attributes`.
        """
        self._check_topic(topic)
        wire = attributes_to_wire(attributes) if attributes else None
        number = 0
        for payload in payloads:
            number = await self._take_for_sending(topic, payload, ack, wire)
        if number and ack is not Ack.NONE:
            await self._confirmation(topic, number, timeout_s)

    async def _take_for_sending(
        self, topic: str, payload: bytes, ack: Ack, attributes: list[Attribute] | None = None
    ) -> int:
        if not self._window_open.is_set():
            await self._window_open.wait()
        self._raise_if_failed()
        self._check_payload(topic, payload)
        number = self._core.publish(topic, payload, ack, time.time_ns() // 1_000, attributes)
        self._adjust_window()
        self._has_output.set()
        return number

    def _check_topic(self, topic: str) -> None:
        self._raise_if_failed()
        welcome = self._core.welcome
        check_topic(topic, welcome.topic_bytes_max if welcome is not None else TOPIC_BYTES_MAX)

    def _check_payload(self, topic: str, payload: bytes) -> None:
        welcome = self._core.welcome
        if welcome is not None and len(payload) > welcome.payload_bytes_max:
            limit = welcome.payload_bytes_max
            reason = f"the payload has {len(payload):,} bytes; the limit is {limit:,}"
            raise PublishError(topic, reason)

    def _adjust_window(self) -> None:
        publications = self._core.publications
        if publications.unsettled_bytes + publications.open_bytes > _WINDOW_BYTES:
            self._window_open.clear()
        elif not self._window_open.is_set():
            self._window_open.set()

    async def _confirmation(self, topic: str, number: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiting.published(topic, number)
        except TimeoutError:
            reason = f"not acknowledged within {timeout_s:g} s; it may yet arrive"
            raise PublishError(topic, reason, may_arrive=True) from None

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until a broker has taken everything published so far, acknowledged or not."""
        self._raise_if_failed()
        # A kept session is not to be sent again what the application has had.
        self._core.taken(self._inbox.taken())
        echo = self._waiting.echo(self._core.echo())
        self._has_output.set()
        try:
            async with asyncio.timeout(timeout_s):
                await echo
        except TimeoutError:
            reason = f"not handed to a broker within {timeout_s:g} s"
            raise PublishError("*", reason, may_arrive=True) from None

    # ---- subscribing ----------------------------------------------------------------------------

    def subscribe(
        self, *patterns: str, where: str = "", on_gap: OnGap | None = None
    ) -> Subscription:
        """Subscribe: `async with client.subscribe(…) as events`, or `events = await …`.

        Patterns are topics, or have `+` for one level or a last `#` for all further ones; `where`
        is a condition on attributes. Once entered, every event published from then on will come.
        `on_gap` is called when events were missed, with how many and why.
        """
        if not patterns:
            raise SubscribeError((), "name at least one topic")
        self._raise_if_failed()
        welcome = self._core.welcome
        bytes_max = welcome.topic_bytes_max if welcome is not None else TOPIC_BYTES_MAX
        filters = [Filter.parse(pattern, where, bytes_max) for pattern in patterns]
        queue = EventQueue(filters, on_gap, self._inbox.on_empty)
        return Subscription(
            queue, self._start_subscription, self._end_subscription, self._change_subscription
        )

    async def _start_subscription(self, queue: EventQueue) -> None:
        self._raise_if_failed()
        new = self._inbox.add(queue)
        if not new:
            return
        try:
            await self._confirmed(queue, new, ())
        except BaseException:
            self._end_subscription(queue)
            raise

    async def _confirmed(
        self,
        queue: EventQueue,
        new: Sequence[FilterKey],
        gone: Sequence[FilterKey],
        timeout_s: float = 30.0,
    ) -> None:
        confirmation = self._waiting.subscribed(self._core.subscribe(new, gone))
        self._inbox.claim(queue)
        self._has_output.set()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await confirmation
        except TimeoutError:
            patterns = [pattern for pattern, _ in new]
            raise SubscribeError(patterns, f"not confirmed within {timeout_s:g} s") from None
        if answer.problems:
            reasons = "; ".join(problem.message for problem in answer.problems)
            raise SubscribeError([problem.topic for problem in answer.problems], reasons)

    async def _change_subscription(
        self, queue: EventQueue, add: Sequence[str], drop: Sequence[str]
    ) -> None:
        self._raise_if_failed()
        where = queue.filters[0].where if queue.filters else ""
        added = [Filter.parse(pattern, where) for pattern in add]
        before = self._inbox.remove(queue)
        queue.filters = [f for f in queue.filters if f.pattern not in drop] + added
        after = self._inbox.add(queue)
        new = [key for key in after if key not in before]
        gone = [key for key in before if key not in after]
        if new:
            await self._confirmed(queue, new, gone)
        elif gone:
            self._core.unsubscribe(gone)
            self._has_output.set()

    def _end_subscription(self, queue: EventQueue) -> None:
        gone = self._inbox.remove(queue)
        if gone and self._failure is None:
            self._core.unsubscribe(gone)
            self._has_output.set()
