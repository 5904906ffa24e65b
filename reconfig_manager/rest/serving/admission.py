"""What happens to every request before its endpoint: counted, bounded, and asked who it is from.

Probes are answered whatever else goes on: they wait for no body, and for no place among the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dynatops.kit.observing.metrics import Metric, counter, gauge
from dynatops.kit.serving.accepting import ConnectionTable
from reconfig_manager.rest.access import Tokens, check_host
from reconfig_manager.rest.problems import RETRY_AFTER_S, ProblemError, response_of
from reconfig_manager.rest.rest_settings import RestSettings


class CallerTraffic:
    """What is counted of requests."""

    def __init__(self) -> None:
        # By method and status.
        self.requests: Counter[tuple[str, int]] = Counter()
        self.audit_failures = 0
        # Requests being answered.
        self.under_way = 0
        # Where the app is served, and not only called.
        self.connections: ConnectionTable | None = None

    @property
    def closed(self) -> dict[str, float]:
        return {} if self.connections is None else dict(self.connections.closed)


TRAFFIC: list[Metric[CallerTraffic]] = [
    counter(
        "dynatops_http_requests_total",
        "HTTP requests, by method and status.",
        lambda traffic: {
            (method, str(status)): float(count)
            for (method, status), count in sorted(traffic.requests.items())
        },
        "method",
        "status",
    ),
    gauge(
        "dynatops_http_requests_under_way",
        "HTTP requests being answered, streams of events among them.",
        lambda traffic: traffic.under_way,
    ),
    gauge(
        "dynatops_http_connections",
        "Connections to the HTTP side.",
        lambda traffic: 0 if traffic.connections is None else len(traffic.connections),
    ),
    counter(
        "dynatops_http_closed_total",
        "Connections that the manager ended, by reason: `slow` to ask, `crowded` by others, "
        "`stalled` in taking their answer, `malformed`.",
        lambda traffic: traffic.closed,
        "reason",
    ),
    counter(
        "dynatops_audit_failures_total",
        "Refused commands that could not be written to the audit log.",
        lambda traffic: traffic.audit_failures,
    ),
]


class Gatekeeper:
    def __init__(
        self,
        app: ASGIApp,
        settings: RestSettings,
        tokens: Tokens,
        traffic: CallerTraffic,
        open_paths: Collection[str],
    ) -> None:
        """Open paths tell no secrets: they take no token, and no place among the others."""
        self._app = app
        self._open_paths = open_paths
        self._settings = settings
        self.tokens = tokens
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._traffic.requests[_known(scope["method"]), message["status"]] += 1
            await send(message)

        self._traffic.under_way += 1
        try:
            await self._pass_on(scope, receive, counted)
        finally:
            self._traffic.under_way -= 1

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._admit(scope)
            body = await self._body(scope, receive)
        except ProblemError as problem:
            await response_of(scope["path"], problem)(scope, receive, send)
            return
        if body is None:
            return
        # Forwarding needs it, when the endpoint has had it.
        scope.setdefault("state", {})["body"] = body
        await self._app(scope, _replayed(body, receive), send)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self.tokens.asked_for and not self._settings.insecure:
            check_host(headers.get("host", ""))
        if scope["path"] not in self._open_paths:
            if self._traffic.under_way > self._settings.requests_max:
                raise ProblemError(
                    503,
                    f"{self._settings.requests_max} requests are being answered; try again later",
                    "too_many_requests",
                    {"Retry-After": str(RETRY_AFTER_S)},
                )
            caller = self.tokens.caller(headers.get("authorization", ""))
            scope.setdefault("state", {})["caller"] = caller

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of it; None if the other side went away."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        most = self._settings.body_bytes_max
        too_large = ProblemError(
            413, f"the body is larger than {most:,} bytes", headers={"Connection": "close"}
        )
        if length.isdigit() and int(length) > most:
            raise too_large
        if length in ("", "0") and "transfer-encoding" not in headers:
            return b""
        if scope["path"] in self._open_paths:
            # It is not read: its sender needs no token, and may take long.
            return b""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ProblemError(
                408, "the body did not arrive in time", headers={"Connection": "close"}
            ) from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    taken = False

    async def replay() -> Message:
        nonlocal taken
        if taken:
            return await receive()
        taken = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})


def _known(method: str) -> str:
    """Labels come from a small set, whatever is sent."""
    return method if method in _METHODS else "other"
