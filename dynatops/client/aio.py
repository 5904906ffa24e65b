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
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from dynatops.client.connection import Connection, ConnectionLostError
from dynatops.client.core import Ack, ClientCore, Confirmed, Interrupted, Item, Rejected
from dynatops.client.errors import (
    AccessError,
    ClosedError,
    ConnectError,
    PublishError,
    SubscribeError,
)
from dynatops.client.subscription import Event, EventQueue, Gap, OnGap, Subscription
from dynatops.client.waiting import Waiting
from dynatops.tls import Tls, TlsFileError
from dynatops.topics import TOPIC_BYTES_MAX, check_topic
from dynatops.v1.client_pb2 import (
    ErrorCode,
    Goodbye,
    MissCause,
    Missed,
    ServerFrame,
    SlowPolicy,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Events, Run

_FRAME_BYTES_MAX = 256 << 10
# Bytes gathered or unacknowledged past which publishing waits.
_WINDOW_BYTES = 8 << 20
_HELLO_TIMEOUT_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
_CLOSED_BY_US = "the client is closed"

_MISS_REASONS = {
    MissCause.MISS_CAUSE_SLOW_SUBSCRIBER: "this subscriber was too slow",
    MissCause.MISS_CAUSE_NOT_RETAINED: "the events are no longer retained",
}
# After these a session is not to be opened again.
_FINAL = frozenset({ErrorCode.ERROR_CODE_PROTOCOL, ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER})

log = logging.getLogger(__name__)


class Client:
    """A connection to a network of brokers. Made by `dynatops.connect`."""

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        *,
        token: str = "",
        tls: Tls | None = None,
        disconnect_when_slow: bool = False,
    ) -> None:
        policy = SlowPolicy.SLOW_POLICY_DROP_NEWEST
        if disconnect_when_slow:
            policy = SlowPolicy.SLOW_POLICY_DISCONNECT
        self._seeds = list(addresses)
        self._addresses = deque(addresses)
        self._tls = tls
        self._core = ClientCore(client_id, secrets.randbits(64), policy, token)
        self._waiting = Waiting()
        self._queues: dict[str, list[EventQueue]] = {}
        self._has_output = asyncio.Event()
        # Set while: no queue is full; not too much is unacknowledged; a broker has said welcome.
        self._has_room = asyncio.Event()
        self._has_room.set()
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
        for queues in self._queues.values():
            for queue in queues:
                queue.fail(failure)
        self._window_open.set()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ---- being connected ------------------------------------------------------------------------

    async def _run(self) -> None:
        """Be connected to some broker, one after the other, until closed."""
        backoff_s = _BACKOFF_MIN_S
        while self._failure is None:
            address = self._addresses[0]
            self._addresses.rotate(-1)
            try:
                await self._stay_connected(Connection(address, self._tls))
            except (ConnectionLostError, TimeoutError, TlsFileError) as error:
                reason = str(error) or f"no answer within {_HELLO_TIMEOUT_S:g} s"
                # What ended a session for good says more than that it ended.
                if self._failure is None:
                    self._last_reason = f"{address}: {reason}"
                log.info("no connection to %s: %s", address, reason)
            if self._core.welcome is not None:
                backoff_s = _BACKOFF_MIN_S
            self._core.disconnected()
            if self._failure is None:
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _stay_connected(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                await connection.write(self._core.connected())
                self._take_in(await connection.read())
            reading = asyncio.create_task(self._read_all(connection))
            writing = asyncio.create_task(self._write_all(connection))
            try:
                await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reading, writing):
                    task.cancel()
                outcomes = await asyncio.gather(reading, writing, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
        finally:
            await connection.close()

    async def _read_all(self, connection: Connection) -> None:
        while True:
            await self._has_room.wait()
            self._take_in(await connection.read())

    async def _write_all(self, connection: Connection) -> None:
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            while (frame := self._core.take_frame(_FRAME_BYTES_MAX)) is not None:
                self._adjust_window()
                await connection.write(frame)

    # ---- what brokers say -----------------------------------------------------------------------

    def _take_in(self, frame: ServerFrame) -> None:
        for item in self._core.on_frame(frame):
            self._on_item(item)
        if self._core.has_output:
            self._has_output.set()

    def _on_item(self, item: Item) -> None:
        match item:
            case Run():
                self._deliver(item)
            case Confirmed(topic=topic, number=number):
                self._waiting.on_confirmed(topic, number)
                self._adjust_window()
            case Rejected():
                self._waiting.on_rejected(item)
                self._adjust_window()
            case Subscribed():
                if not self._waiting.on_subscribed(item):
                    self._on_renewed(item)
            case int():
                self._waiting.on_echo(item)
            case Missed() | Interrupted():
                self._tell_gaps(item)
            case Welcome():
                self._learn_addresses(item.alternatives)
                self._greeted.set()
            case Goodbye():
                self._on_goodbye(item)

    def _deliver(self, run: Run) -> None:
        topic, term, seq = run.topic, run.term, run.first_seq
        events = [
            Event(topic, event.payload, event.published_us, term, seq + i)
            for i, event in enumerate(Events.FromString(run.events).events)
        ]
        for queue in self._queues.get(topic, ()):
            queue.put(events)
            if queue.is_full:
                self._has_room.clear()

    def _on_renewed(self, answer: Subscribed) -> None:
        """Subscriptions of a former connection have been asked for again; some may be lost."""
        for problem in answer.problems:
            for queue in self._queues.get(problem.topic, ()):
                queue.fail(SubscribeError((problem.topic,), problem.message))

    def _on_queue_empty(self) -> None:
        """A subscription has been read empty: perhaps there is room again."""
        if not self._has_room.is_set() and not any(
            queue.is_full for queues in self._queues.values() for queue in queues
        ):
            self._has_room.set()

    def _tell_gaps(self, item: Missed | Interrupted) -> None:
        if isinstance(item, Interrupted):
            gaps = [Gap(topic, 0, "the connection was interrupted") for topic in item.topics]
        else:
            reason = _MISS_REASONS.get(item.cause, "the broker did not say why")
            gaps = [Gap(item.topic, item.count, reason)]
        for gap in gaps:
            for queue in self._queues.get(gap.topic, ()):
                queue.tell_gap(gap)

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
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish one event, and wait until it has reached its level of acknowledgement.

        With `Ack.NONE` it returns as soon as the event is taken in for sending.
        """
        await self.publish_many(topic, (payload,), ack=ack, timeout_s=timeout_s)

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish events in this order, and wait once, until the last has reached its level."""
        self._check_topic(topic)
        number = 0
        for payload in payloads:
            if not self._window_open.is_set():
                await self._window_open.wait()
            self._raise_if_failed()
            self._check_payload(topic, payload)
            number = self._core.publish(topic, payload, ack, time.time_ns() // 1_000)
            self._adjust_window()
            self._has_output.set()
        if number and ack is not Ack.NONE:
            await self._confirmation(topic, number, timeout_s)

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
        if self._core.unsettled_bytes + self._core.open_bytes > _WINDOW_BYTES:
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
        echo = self._waiting.echo(self._core.echo())
        self._has_output.set()
        try:
            async with asyncio.timeout(timeout_s):
                await echo
        except TimeoutError:
            reason = f"not handed to a broker within {timeout_s:g} s"
            raise PublishError("*", reason, may_arrive=True) from None

    # ---- subscribing ----------------------------------------------------------------------------

    def subscribe(self, *topics: str, on_gap: OnGap | None = None) -> Subscription:
        """Subscribe: `async with client.subscribe(…) as events`, or `events = await …`.

        Once entered, every event published from then on will come. `on_gap` is called when events
        were missed, with how many and why.
        """
        if not topics:
            raise SubscribeError((), "name at least one topic")
        for topic in topics:
            self._check_topic(topic)
        queue = EventQueue(topics, on_gap, self._on_queue_empty)
        return Subscription(queue, self._start_subscription, self._end_subscription)

    async def _start_subscription(self, queue: EventQueue, timeout_s: float = 30.0) -> None:
        self._raise_if_failed()
        new = [topic for topic in queue.topics if topic not in self._queues]
        for topic in queue.topics:
            self._queues.setdefault(topic, []).append(queue)
        if not new:
            return
        confirmation = self._waiting.subscribed(self._core.subscribe(new))
        self._has_output.set()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await confirmation
            if answer.problems:
                reasons = "; ".join(problem.message for problem in answer.problems)
                raise SubscribeError([problem.topic for problem in answer.problems], reasons)
        except TimeoutError:
            self._end_subscription(queue)
            raise SubscribeError(new, f"not confirmed within {timeout_s:g} s") from None
        except BaseException:
            self._end_subscription(queue)
            raise

    def _end_subscription(self, queue: EventQueue) -> None:
        gone: list[str] = []
        for topic in queue.topics:
            remaining = self._queues.get(topic, [])
            if queue in remaining:
                remaining.remove(queue)
            if not remaining and self._queues.pop(topic, None) is not None:
                gone.append(topic)
        if gone and self._failure is None:
            self._core.unsubscribe(gone)
            self._has_output.set()
        self._on_queue_empty()
