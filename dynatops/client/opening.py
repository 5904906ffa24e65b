"""`dynatops.connect`."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any

from dynatops.client.aio import Client
from dynatops.client.errors import ConnectError
from dynatops.tls import Tls

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
    token: str = "",
    tls: Tls | None = None,
    timeout_s: float = 10.0,
    disconnect_when_slow: bool = False,
) -> _Connecting:
    """Connect to a network of brokers: `async with connect(…) as client`, or `await connect(…)`.

    `addresses` are one or more brokers, host:port, as a comma-separated string or an iterable; any
    of them will do, and the others of the network are learnt of. Raises ConnectError if none
    answers, AccessError if one does not accept the token. With `tls`, such as `Tls(ca="ca.crt")`,
    the connection is encrypted. A subscriber that is too slow misses events and is told so; with
    `disconnect_when_slow` its session ends instead.
    """
    parts = addresses.split(",") if isinstance(addresses, str) else addresses
    seeds = [part.strip() for part in parts if part.strip()]
    if not seeds:
        raise ConnectError((), "no address given")
    name = client_id or f"client-{secrets.token_hex(4)}"
    client = Client(seeds, name, token=token, tls=tls, disconnect_when_slow=disconnect_when_slow)
    return _Connecting(client, timeout_s)
