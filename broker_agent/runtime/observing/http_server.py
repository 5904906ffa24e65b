"""A very small HTTP server, for probes and metrics: one request a connection, GET and HEAD only.

Everything is bounded: connections at once, bytes and seconds of a request, seconds of an answer.
Past the first of these the oldest connection goes (`dynatops.kit.serving.accepting`), so that a
probe is answered whoever else keeps connections. What is not HTTP is answered 400 if it can be, and
the connection ends. It shares the broker's event loop, so an answer must take little time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from broker_agent.process_settings import HttpSettings
from dynatops.kit.addresses import join_address, split_address
from dynatops.kit.serving.accepting import AcceptedConnection, Acceptor, ConnectionTable

log = logging.getLogger(__name__)

_END = b"\r\n\r\n"
_BACKLOG = 128
# Counted under this name: paths that nobody serves are whatever people make up.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    body: str
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Answer]]


class HttpServer:
    def __init__(self, settings: HttpSettings, pages: Pages) -> None:
        # Where it listens, once it does.
        self.address = ""
        # By path (or OTHER) and status.
        self.requests: Counter[tuple[str, str]] = Counter()
        self._settings = settings
        self._pages = pages
        self._table = ConnectionTable(settings.connections_max, settings.timeout_s)
        self._acceptor: Acceptor | None = None

    @property
    def busy(self) -> int:
        """Connections that are being served."""
        return len(self._table)

    @property
    def closed(self) -> Mapping[str, int]:
        """Connections that it ended itself, by reason."""
        return self._table.closed

    async def start(self) -> None:
        """Raises OSError."""
        host, port = split_address(self._settings.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._acceptor = Acceptor(listening, self._table, self._serve)
        self._acceptor.start()
        self.address = join_address(host, listening.getsockname()[1])

    async def stop(self) -> None:
        if self._acceptor is None:
            return
        self._acceptor.close()
        await self._acceptor.wait_closed()
        # Connections that were cut off are closed in the loop's next turn.
        await asyncio.sleep(0)
        self._acceptor = None

    # ---- connections ----------------------------------------------------------------------------

    async def _serve(self, accepted: socket.socket, connection: AcceptedConnection) -> None:
        reader, writer = await asyncio.open_connection(
            sock=accepted, limit=self._settings.request_bytes_max
        )
        try:
            raw = await _request(reader)
            # As much time again for the answer to be taken, and no claim to a place meanwhile.
            connection.ask()
            writer.write(self._answer(raw))
            writer.close()
            await writer.wait_closed()
        except asyncio.IncompleteReadError as error:
            log.debug("%s went: %r", connection.address, error)
        finally:
            connection.leave()
            writer.transport.abort()

    # ---- requests -------------------------------------------------------------------------------

    def _answer(self, raw: bytes) -> bytes:
        words = raw.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
            return self._said(OTHER, _problem(HTTPStatus.BAD_REQUEST))
        path = words[1].partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if page is None:
            return self._said(OTHER, _problem(HTTPStatus.NOT_FOUND))
        if words[0] not in (b"GET", b"HEAD"):
            return self._said(path, _problem(HTTPStatus.METHOD_NOT_ALLOWED))
        try:
            answer = page()
        except Exception:
            # A bug, which must not take the broker with it.
            log.exception("no answer for %s", path)
            answer = _problem(HTTPStatus.INTERNAL_SERVER_ERROR)
        return self._said(path, answer, head_only=words[0] == b"HEAD")

    def _said(self, path: str, answer: Answer, *, head_only: bool = False) -> bytes:
        self.requests[path, str(answer.status.value)] += 1
        body = answer.body.encode()
        allow = "Allow: GET, HEAD\r\n" if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{allow}Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        return head if head_only else head + body


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Its head; nothing if that is too long. What may follow is not read."""
    try:
        return await reader.readuntil(_END)
    except asyncio.LimitOverrunError:
        return b""


def _problem(status: HTTPStatus) -> Answer:
    return Answer(f'{{"error": "{status.phrase}"}}\n', status=status)
