"""What uvicorn's connections do not do by themselves: be in a hurry, and make room.

A connection has so long to say its request, with all that TLS wants before it, or since its last
answer; an answer that is not taken ends it. What is no HTTP is answered as a problem. All of it is
counted; the log has a line a minute of each kind about it, since anyone can make it say so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dynatops.kit.observing.logs import OncePerMinute
from dynatops.kit.serving.accepting import AcceptedConnection
from reconfig_manager.rest.problems import MEDIA_TYPE, ProblemError, document_of

STALLED = "stalled"
MALFORMED = "malformed"

log = logging.getLogger(__name__)
log.addFilter(OncePerMinute())


class HttpConnection(H11Protocol):
    def __init__(
        self, connection: AcceptedConnection, answer_timeout_s: float, **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self.logger = log
        self._connection = connection
        self._answer_timeout_s = answer_timeout_s
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.close_by(transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.leave()
        self._cancel_stall()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.transport.is_closing():
            self._connection.answer()

    def on_response_complete(self) -> None:
        # Before the next request, which may have come already, begins. One that is being closed has
        # so long to take what is left of the answer.
        self._connection.ask()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_stall()
        self._stall = self.loop.call_later(self._answer_timeout_s, self._connection.close, STALLED)

    def resume_writing(self) -> None:
        self._cancel_stall()
        super().resume_writing()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP: as every other problem."""
        problem = ProblemError(400, "this is no HTTP/1.1 request, or its head is too long")
        body = json.dumps(document_of("", problem)).encode()
        head = h11.Response(
            status_code=400,
            headers=[
                ("content-type", MEDIA_TYPE),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._connection.count(MALFORMED)
