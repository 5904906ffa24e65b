"""`dynatops.connect`."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dynatops.client.aio import Client
from dynatops.client.arguments import check_connect, checked_addresses, checked_place
from dynatops.client.core.client_core import SessionWishes
from dynatops.client.engine import OnConnection
from dynatops.kit.security.tls import Tls
from dynatops.v1.client_pb2 import SlowPolicy

DEFAULT_ADDRESS = "127.0.0.1:7400"


class _Connecting:
    """What `connect` returns: to be awaited, or entered."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def _connected(self) -> Client:
        await self._client.open(self._timeout_s)
        return self._client

    def __repr__(self) -> str:
        return f"<connect(…) of {self._client.client_id!r}, not awaited or entered>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Whoever takes it for the client is told; type checkers see that themselves."""
            hint = "there is no client yet: write `async with dynatops.connect(…) as client`, or"
            raise AttributeError(f"{hint} `client = await dynatops.connect(…)`, then .{name}")

    async def __aenter__(self) -> Client:
        return await self._connected()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)


def connect(
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
) -> _Connecting:
    """Connect to a network of brokers: `async with connect(…) as client`, or `await connect(…)`.

    `addresses` are one or more brokers, host:port, as a comma-separated string or an iterable; any
    of them will do, and the others of the network are learnt of. Raises ArgumentError at once if
    something cannot be meant; when entered or awaited, ConnectError if no broker answers within
    `timeout_s`, AccessError if one does not accept the token. With `tls`, such as
    `Tls(ca="ca.crt")`, the connection is encrypted.

    A `client_id` stands for one session; who connects with it takes it over. With `keep_s` the
    session, its subscriptions and what comes for them are kept for so many seconds without a
    connection, also for a later process with the same id; `clean` begins anew. A broker may send
    the client to one that suits it better, and it goes there by itself, unless told to `stay`. A
    subscriber that is too slow misses events and is told so; with `disconnect_when_slow` its
    session ends instead. `place` is where the user is, latitude and longitude in degrees: it
    goes into statistics only.

    `on_connection` is called with ("", why) when the connection is lost, and with (broker, "") when
    there is one again, at the same broker or another; not when a broker sends the client elsewhere.
    """
    seeds = checked_addresses(addresses)
    check_connect(
        client_id=client_id,
        keep_s=keep_s,
        clean=clean,
        stay=stay,
        token=token,
        tls=tls,
        timeout_s=timeout_s,
        disconnect_when_slow=disconnect_when_slow,
        on_connection=on_connection,
    )
    policy = SlowPolicy.SLOW_POLICY_DROP_NEWEST
    if disconnect_when_slow:
        policy = SlowPolicy.SLOW_POLICY_DISCONNECT
    wishes = SessionWishes(
        slow_policy=policy,
        expiry_s=int(keep_s),
        clean=clean,
        token=token,
        movable=not stay,
        place=checked_place(place),
    )
    name = client_id or f"client-{secrets.token_hex(8)}"
    return _Connecting(Client(seeds, name, wishes, tls, on_connection), timeout_s)
