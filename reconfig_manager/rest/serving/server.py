"""Serves the app by uvicorn, within the manager's own event loop; it accepts connections itself, so
that those of strangers leave room for others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import uvicorn
from fastapi import FastAPI

from dynatops.kit.addresses import join_address, split_address
from dynatops.kit.background import Supervisor
from dynatops.kit.security.tls import Tls, TlsFileError
from dynatops.kit.serving.accepting import AcceptedConnection, Acceptor, ConnectionTable
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.rest.serving.connections import HttpConnection

_STOP_S = 3
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104


class ServeError(Exception):
    """The address cannot be served at; the message says why."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, settings: RestSettings) -> None:
        super().__init__(config)
        self._settings = settings
        self.table = ConnectionTable(settings.connections_max, settings.request_timeout_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        acceptors = [Acceptor(listening, self.table, self._connect) for listening in sockets or ()]
        for acceptor in acceptors:
            acceptor.start()
        # Closed and waited for as asyncio's own are.
        self.servers = cast("list[asyncio.Server]", acceptors)
        self.started = True

    async def _connect(self, accepted: socket.socket, connection: AcceptedConnection) -> None:
        settings, config = self._settings, self.config

        def protocol() -> HttpConnection:
            return HttpConnection(
                connection,
                settings.answer_timeout_s,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        loop = asyncio.get_running_loop()
        # A handshake is over when the time for the request is, which is counted by the table.
        await loop.connect_accepted_socket(protocol, accepted, ssl=config.ssl)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business."""
        yield


class RestServer:
    def __init__(self, app: FastAPI, settings: RestSettings) -> None:
        self._app = app
        self._settings = settings
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
                h11_max_incomplete_event_size=settings.head_bytes_max,
                timeout_graceful_shutdown=_STOP_S,
            ),
            settings,
        )
        app.state.traffic.connections = self._server.table
        self._socket: socket.socket | None = None
        self._running: asyncio.Task[object] | None = None

    @property
    def address(self) -> str:
        """host:port, once it is started."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return join_address(host, port)

    @property
    def url(self) -> str:
        """Where others reach it."""
        if self._settings.advertise:
            return self._settings.advertise
        host, port = split_address(self.address)
        # A manager that listens everywhere is reached by its name.
        address = f"{socket.gethostname()}:{port}" if host in _ANYWHERE else self.address
        return f"{self._settings.scheme}://{address}"

    async def _serve(self, listening: socket.socket) -> None:
        await self._server.serve([listening])
        if not self._server.should_exit:
            raise ServeError("the HTTP server has ended by itself")

    async def start(self, supervisor: Supervisor | None = None) -> None:
        """Raises ServeError."""
        host, port = split_address(self._settings.listen)
        try:
            self._check_files()
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=512)
            self._server.config.load()
        except (OSError, TlsFileError) as error:
            raise ServeError(f"cannot serve HTTP at {self._settings.listen}: {error}") from None
        work = self._serve(self._socket)
        # Without a supervisor it says by itself that it has ended.
        self._running = (supervisor or Supervisor()).start("HTTP", work, may_end=True)
        while not self._server.started:
            if self._running.done():
                self._running.result()
                raise ServeError(f"cannot serve HTTP at {self._settings.listen}")
            await asyncio.sleep(0.01)

    def reload(self) -> None:
        """Read tokens and certificates again; raises TokensError and TlsFileError."""
        self._app.state.tokens.reload()
        context = self._server.config.ssl
        if context is not None:
            settings = self._settings
            self._check_files()
            # New connections get the new ones.
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")

    def _check_files(self) -> None:
        Tls(cert=self._settings.tls_cert, key=self._settings.tls_key).check()

    async def stop(self) -> None:
        """Streams of events must have been ended (`Broadcast.close`): it waits for them a while."""
        if self._running is not None:
            self._server.should_exit = True
            await self._running
            # Those in the middle of TLS are not uvicorn's yet.
            for acceptor in self._server.servers:
                await acceptor.wait_closed()
