"""Serves the app by uvicorn, within the manager's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from dynatops.addresses import split_address
from dynatops.tls import Tls, TlsFileError
from reconfig_manager.rest.settings import RestSettings

_STOP_S = 3
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104


class ServeError(Exception):
    """The address cannot be served at; the message says why."""


class _Server(uvicorn.Server):
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
                limit_concurrency=settings.connections_max,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._socket: socket.socket | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port, once it is started."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def url(self) -> str:
        """Where others reach it."""
        if self._settings.advertise:
            return self._settings.advertise
        host, port = split_address(self.address)
        # Whoever listens everywhere is reached by its name.
        address = f"{socket.gethostname()}:{port}" if host in _ANYWHERE else self.address
        return f"{self._settings.scheme}://{address}"

    async def start(self) -> None:
        """Raises ServeError."""
        host, port = split_address(self._settings.listen)
        try:
            self._check_files()
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=512)
            self._server.config.load()
        except (OSError, TlsFileError) as error:
            raise ServeError(f"cannot serve HTTP at {self._settings.listen}: {error}") from None
        self._running = asyncio.create_task(self._server.serve([self._socket]))
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
