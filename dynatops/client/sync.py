"""A small synchronous face of the client, for scripts: the asynchronous one in a thread of its own.

with dynatops.connect_sync() as client:
    client.publish("quake/ca", b"M5.1")
    for event in client.subscribe("quake/ca"):
        print(event.payload)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, overload

from dynatops.client.aio import Client
from dynatops.client.arguments import check_events, check_payloads, check_text, check_timeout
from dynatops.client.core.publications import Ack, AckName, Payload
from dynatops.client.core.work import AckMode
from dynatops.client.cursors import Cursor
from dynatops.client.engine import CLOSED_BY_US, OnConnection
from dynatops.client.errors import CallbackError, ClosedError
from dynatops.client.events import Event
from dynatops.client.history import History
from dynatops.client.opening import DEFAULT_ADDRESS, connect
from dynatops.client.past_wishes import Pace, Since
from dynatops.client.subscription import OnGap, Subscription
from dynatops.kit.filters import Filter, Value
from dynatops.kit.security.tls import Tls

_T = TypeVar("_T")


class _Runner(Protocol):
    """Runs a coroutine in the client's thread, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, _T]) -> _T: ...


class SyncEvent(Event):
    """One event, as a subscriber gets it from the synchronous client."""

    _run: _Runner
    _event: Event

    @classmethod
    def of(cls, run: _Runner, event: Event) -> SyncEvent:
        sync = cls(*event)
        sync._run, sync._event = run, event
        return sync

    @property
    def deliveries(self) -> int:
        return self._event.deliveries

    # What is awaited of an event of the asynchronous client is done here when it returns.

    def ack(self, *, wait: bool = False) -> None:  # type: ignore[override]
        """The work on this event is done; see `Event.ack`. From whichever thread."""
        self._run(_say(lambda: self._event.ack(wait=wait)))

    def nak(self, delay_s: float = 0.0) -> None:  # type: ignore[override]
        """It came to nothing, and is to come again; see `Event.nak`."""
        self._run(_say(lambda: self._event.nak(delay_s)))

    def in_progress(self) -> None:  # type: ignore[override]
        """It goes on; see `Event.in_progress`."""
        self._run(_say(self._event.in_progress))


async def _say(words: Callable[[], Awaitable[None]]) -> None:
    await words()


class SyncSubscription:
    """Events of some topics: iterate over it, or ask for the `next`; both block until one comes.

    Made by `SyncClient.subscribe`, and in place from then on. `with` closes it in the end.
    """

    def __init__(self, run: _Runner, subscription: Subscription) -> None:
        self._run = run
        self._subscription = subscription

    def __iter__(self) -> Iterator[SyncEvent]:
        while True:
            try:
                yield SyncEvent.of(self._run, self._run(self._subscription.__anext__()))
            except StopAsyncIteration:
                return

    def next(self, timeout_s: float | None = None) -> SyncEvent:
        """The next event; TimeoutError if none comes within so many seconds, ClosedError if none
        will come any more."""
        if timeout_s is not None:
            check_timeout(timeout_s)
        try:
            return SyncEvent.of(self._run, self._run(_next(self._subscription, timeout_s)))
        except StopAsyncIteration:
            raise ClosedError("the subscription is closed") from None

    def change(self, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> None:
        """Take up patterns and give others up, as one change of mind."""
        self._run(self._subscription.change(add=add, drop=drop))

    @property
    def topics(self) -> list[str]:
        """The topics and patterns subscribed to."""
        return self._subscription.topics

    @property
    def missed(self) -> int:
        """Events known to have been missed; a gap of unknown size counts as one."""
        return self._subscription.missed

    def close(self) -> None:
        """End the subscription. What is queued is dropped."""
        with contextlib.suppress(ClosedError):
            self._run(self._subscription.close())

    def __repr__(self) -> str:
        return repr(self._subscription).replace("<Subscription", "<SyncSubscription", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncHistory:
    """What stores have of some topics: iterate over it. Made by `SyncClient.history`."""

    def __init__(self, run: _Runner, history: History) -> None:
        self._run = run
        self._history = history

    def __iter__(self) -> Iterator[SyncEvent]:
        while True:
            try:
                yield SyncEvent.of(self._run, self._run(self._history.__anext__()))
            except StopAsyncIteration:
                return

    @property
    def cursor(self) -> Cursor:
        """How far it has been read; `since=cursor` is what is beyond."""
        return self._history.cursor

    @property
    def missed(self) -> int:
        """How often events were missing that are not kept any more, or cannot be read."""
        return self._history.missed

    def close(self) -> None:
        """Nothing more of it is wanted."""
        with contextlib.suppress(ClosedError):
            self._run(self._history.close())

    def __repr__(self) -> str:
        return repr(self._history).replace("<History", "<SyncHistory", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncClient:
    """A connection to a network of brokers, for code that is not asynchronous.

    Made by `connect_sync`. May be used from any thread, but for the client's own: callbacks are
    called there, and must not call the client. `with` flushes and closes it in the end.
    """

    def __init__(self, connecting: Awaitable[Client]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dynatops-client", daemon=True
        )
        self._thread.start()
        self._client: Client
        try:
            self._client = self._run(_await(connecting))
        except BaseException:
            self._stop_loop()
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            if self._loop.is_closed():
                raise ClosedError(CLOSED_BY_US)
            raise CallbackError
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C, perhaps: nobody waits for it any longer.
            future.cancel()
            raise

    @property
    def client_id(self) -> str:
        """The name of the session."""
        return self._client.client_id

    @property
    def broker(self) -> str:
        """The broker that this client is connected to; empty if to none."""
        return self._client.broker

    @property
    def resumed(self) -> list[Filter]:
        """Filters of a kept session that this client has not subscribed with yet."""
        return self._run(_resumed(self._client))

    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish one event, and block until it has reached its level of acknowledgement.

        With `Ack.NONE` it returns as soon as the event is taken in for sending. `attributes` are
        what subscribers' conditions ask about.

        Raises TopicError, AttributesError or ArgumentError if the call cannot be right, and
        PublishError if the event is refused, or not acknowledged within `timeout_s` seconds.
        """
        self._run(
            self._client.publish(
                topic, payload, attributes=attributes, ack=ack, timeout_s=timeout_s
            )
        )

    @overload
    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None: ...

    @overload
    def publish_many(
        self,
        events: Iterable[tuple[str, Payload]],
        /,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None: ...

    def publish_many(
        self,
        topic: str | Iterable[tuple[str, Payload]],
        payloads: Iterable[Payload] | None = None,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish events in this order, and block once, until the last has reached its level: of
        one topic, `publish_many(topic, payloads)`, or of several, `publish_many(events)`, pairs of
        a topic and a payload; then until the last of each topic has.

        Each of them has these `attributes`. Nothing is published if one of them is no payload, or
        no such pair.
        """
        if payloads is None and not isinstance(topic, str):
            check_events(topic)
            publishing = self._client.publish_many(
                list(topic), attributes=attributes, ack=ack, timeout_s=timeout_s
            )
        else:
            check_text(topic, "topic")
            check_payloads(payloads)
            publishing = self._client.publish_many(
                str(topic),
                list(payloads or ()),
                attributes=attributes,
                ack=ack,
                timeout_s=timeout_s,
            )
        self._run(publishing)

    def subscribe(
        self,
        *patterns: str,
        where: str = "",
        on_gap: OnGap | None = None,
        ack: AckMode = "auto",
        max_in_flight: int = 1_000,
        ack_wait_s: float = 60.0,
        max_deliver: int = 0,
        dead_letter: str = "",
        since: Since | None = None,
        last: int = 0,
        pace: Pace = "instant",
    ) -> SyncSubscription:
        """Subscribe; returns when every event published from now on will come.

        Patterns are topics, or have `+` for one level or a last `#` for all further ones; `where`
        is a condition on attributes. `on_gap` is called, in the client's own thread, when events
        were missed, with how many and why.

        Raises FilterError or ArgumentError if the call cannot be right, SubscribeError if a broker
        refuses.

        With `ack="manual"` events are taken once the application says `event.ack()`, in whichever
        thread; with `since` or `last`, what stores have comes first. See `Client.subscribe`.
        """

        def subscribe() -> Subscription:
            return self._client.subscribe(
                *patterns,
                where=where,
                on_gap=on_gap,
                ack=ack,
                max_in_flight=max_in_flight,
                ack_wait_s=ack_wait_s,
                max_deliver=max_deliver,
                dead_letter=dead_letter,
                since=since,
                last=last,
                pace=pace,
            )

        return SyncSubscription(self._run, self._run(_subscribed(subscribe)))

    def history(
        self,
        pattern: str,
        *,
        where: str = "",
        since: Since = "all",
        last: int = 0,
        with_loss: bool = False,
        pace: Pace = "instant",
        on_gap: OnGap | None = None,
    ) -> SyncHistory:
        """What stores have of a topic or pattern: iterate over it. See `Client.history`."""

        async def made() -> History:
            return self._client.history(
                pattern,
                where=where,
                since=since,
                last=last,
                with_loss=with_loss,
                pace=pace,
                on_gap=on_gap,
            )

        return SyncHistory(self._run, self._run(made()))

    def flush(self, timeout_s: float = 30.0) -> None:
        """Block until a broker has taken everything published so far, acknowledged or not."""
        self._run(self._client.flush(timeout_s))

    def close(self) -> None:
        """Disconnect at once; what has not been handed to the broker is lost. See `flush`."""
        if self._loop.is_running():
            self._run(self._client.close())
            self._stop_loop()

    def __repr__(self) -> str:
        return repr(self._client).replace("<Client", "<SyncClient", 1)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        if self._loop.is_closed():
            raise ClosedError(CLOSED_BY_US)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if not self._loop.is_closed():
                self._run(_left(self._client, failed=kind is not None))
        finally:
            self.close()


async def _next(subscription: Subscription, timeout_s: float | None) -> Event:
    async with asyncio.timeout(timeout_s):
        return await subscription.__anext__()


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def _left(client: Client, *, failed: bool) -> None:
    """As at the end of the asynchronous client's block."""
    error = RuntimeError("the block has failed") if failed else None
    await client.__aexit__(type(error) if error is not None else None, error, None)


async def _resumed(client: Client) -> list[Filter]:
    return client.resumed


async def _subscribed(subscribe: Callable[[], Subscription]) -> Subscription:
    return await subscribe()


def connect_sync(
    addresses: str | Iterable[str] = DEFAULT_ADDRESS,
    *,
    client_id: str = "",
    keep_s: int = 0,
    clean: bool = False,
    stay: bool = False,
    token: str = "",
    tls: Tls | None = None,
    timeout_s: float = 10.0,
    disconnect_when_slow: bool = False,
    place: tuple[float, float] | None = None,
    on_connection: OnConnection | None = None,
) -> SyncClient:
    """Connect to a network of brokers from code that is not asynchronous. See `connect`.

    `on_connection` is called in the client's own thread.
    """
    return SyncClient(
        connect(
            addresses,
            client_id=client_id,
            keep_s=keep_s,
            clean=clean,
            stay=stay,
            token=token,
            tls=tls,
            timeout_s=timeout_s,
            disconnect_when_slow=disconnect_when_slow,
            place=place,
            on_connection=on_connection,
        )
    )
