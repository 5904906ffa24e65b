"""A small synchronous face of the client, for scripts: the asynchronous one in a thread of its own.

with dynatops.connect_sync() as client:
    client.publish("quake/ca", b"M5.1")
    for event in client.subscribe("quake/ca"):
        print(event.payload)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from dynatops.client.aio import Client
from dynatops.client.engine import OnConnection
from dynatops.client.opening import DEFAULT_ADDRESS, connect
from dynatops.client.publications import Ack
from dynatops.client.subscription import Event, OnGap, Subscription
from dynatops.filters import Filter, Value
from dynatops.tls import Tls

_T = TypeVar("_T")


class _Runner(Protocol):
    """Runs a coroutine in the client's thread, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, _T]) -> _T: ...


class SyncSubscription:
    """Iterate over it for events; it blocks until there are any."""

    def __init__(self, run: _Runner, subscription: Subscription) -> None:
        self._run = run
        self._subscription = subscription

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                yield self._run(self._subscription.__anext__())
            except StopAsyncIteration:
                return

    def next(self, timeout_s: float | None = None) -> Event:
        """The next event; TimeoutError if none comes in time."""
        return self._run(asyncio.wait_for(self._subscription.__anext__(), timeout_s))

    @property
    def missed(self) -> int:
        return self._subscription.missed

    def close(self) -> None:
        self._run(self._subscription.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncClient:
    """Made by `connect_sync`. May be used from any thread."""

    def __init__(self, connecting: Callable[[], Awaitable[Client]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dynatops-client", daemon=True
        )
        self._thread.start()
        self._client: Client
        try:
            self._client = self._run(_await(connecting()))
        except BaseException:
            self._stop_loop()
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def client_id(self) -> str:
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
        payload: bytes,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        self._run(
            self._client.publish(
                topic, payload, attributes=attributes, ack=ack, timeout_s=timeout_s
            )
        )

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        self._run(
            self._client.publish_many(
                topic, list(payloads), attributes=attributes, ack=ack, timeout_s=timeout_s
            )
        )

    def subscribe(
        self, *patterns: str, where: str = "", on_gap: OnGap | None = None
    ) -> SyncSubscription:
        """Subscribe; returns when every event published from now on will come.

        `on_gap` is called in the client's own thread.
        """
        return SyncSubscription(
            self._run, self._run(_subscribed(self._client, patterns, where, on_gap))
        )

    def flush(self, timeout_s: float = 30.0) -> None:
        self._run(self._client.flush(timeout_s))

    def close(self) -> None:
        if self._loop.is_running():
            self._run(self._client.close())
            self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()
        self.close()


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def _resumed(client: Client) -> list[Filter]:
    return client.resumed


async def _subscribed(
    client: Client, patterns: Sequence[str], where: str, on_gap: OnGap | None
) -> Subscription:
    return await client.subscribe(*patterns, where=where, on_gap=on_gap)


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
        lambda: connect(
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
