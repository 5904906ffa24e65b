"""A small synchronous face of the client, for scripts: the asynchronous one in a thread of its own.

with dynatops.connect_sync() as client:
    client.publish("quake/ca", b"M5.1")
    for event in client.subscribe("quake/ca"):
        print(event.payload)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, Self, TypeVar

from dynatops.client.aio import Client
from dynatops.client.opening import DEFAULT_ADDRESS, connect
from dynatops.client.publications import Ack
from dynatops.client.subscription import Event, Subscription
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

    def publish(
        self, topic: str, payload: bytes, *, ack: Ack = Ack.REPLICATED, timeout_s: float = 30.0
    ) -> None:
        self._run(self._client.publish(topic, payload, ack=ack, timeout_s=timeout_s))

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        ack: Ack = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        self._run(self._client.publish_many(topic, list(payloads), ack=ack, timeout_s=timeout_s))

    def subscribe(self, *topics: str) -> SyncSubscription:
        """Subscribe; returns when every event published from now on will come."""
        subscription = self._run(_await(self._client.subscribe(*topics)))
        return SyncSubscription(self._run, subscription)

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


def connect_sync(
    addresses: str | Iterable[str] = DEFAULT_ADDRESS,
    *,
    client_id: str = "",
    token: str = "",
    tls: Tls | None = None,
    timeout_s: float = 10.0,
) -> SyncClient:
    """Connect to a network of brokers from code that is not asynchronous. See `connect`."""
    return SyncClient(
        lambda: connect(addresses, client_id=client_id, token=token, tls=tls, timeout_s=timeout_s)
    )
