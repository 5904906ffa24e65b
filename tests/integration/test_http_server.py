"""The small HTTP server: what it answers, and what it does about those who misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import pytest

from broker_agent.process_settings import HttpSettings
from broker_agent.runtime.observing.http_server import OTHER, Answer, HttpServer
from tests.support.waiting import until

Scenario = Callable[[HttpServer], Awaitable[None]]


def broken() -> Answer:
    raise KeyError("a bug")


PAGES = {
    "/fine": lambda: Answer("it is\n", "text/plain"),
    "/not": lambda: Answer("{}", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/broken": broken,
    "/long": lambda: Answer("x" * 30_000_000, "text/plain"),
}


def serve(scenario: Scenario, **values: Any) -> None:
    async def run() -> None:
        server = HttpServer(HttpSettings(listen="127.0.0.1:0", **values), PAGES)
        await server.start()
        try:
            await scenario(server)
        finally:
            await server.stop()

    asyncio.run(run())


@asynccontextmanager
async def connected(
    server: HttpServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(server: HttpServer, raw: bytes) -> bytes:
    """Everything that is answered; nothing, if the connection is just ended."""
    async with connected(server) as (reader, writer):
        writer.write(raw)
        try:
            return await reader.read(-1)
        except ConnectionError:
            return b""


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


class TestAnswers:
    def test_a_page(self) -> None:
        async def scenario(server: HttpServer) -> None:
            answer = await ask(server, b"GET /fine?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Content-Type: text/plain\r\n" in head
            assert b"Content-Length: 6\r\n" in head
            assert b"Connection: close" in head
            assert body == b"it is\n"
            assert server.requests == {("/fine", "200"): 1}

        serve(scenario)

    def test_head_has_no_body(self) -> None:
        async def scenario(server: HttpServer) -> None:
            answer = await ask(server, b"HEAD /fine HTTP/1.0\r\n\r\n")
            assert answer.endswith(b"\r\n\r\n")
            assert b"Content-Length: 6" in answer

        serve(scenario)

    @pytest.mark.parametrize(
        ("request_line", "status"),
        [
            (b"GET /not HTTP/1.1", 503),
            (b"GET /broken HTTP/1.1", 500),
            (b"GET /nothing HTTP/1.1", 404),
            (b"POST /fine HTTP/1.1", 405),
            (b"DELETE /fine HTTP/1.1", 405),
        ],
    )
    def test_statuses(self, request_line: bytes, status: int) -> None:
        async def scenario(server: HttpServer) -> None:
            answer = await ask(server, request_line + b"\r\n\r\n")
            assert status_of(answer) == status
            assert (b"Allow: GET, HEAD" in answer) == (status == 405)

        serve(scenario)

    def test_paths_that_people_make_up_are_one_series(self) -> None:
        async def scenario(server: HttpServer) -> None:
            for number in range(20):
                await ask(server, b"GET /%d HTTP/1.1\r\n\r\n" % number)
            assert server.requests == {(OTHER, "404"): 20}

        serve(scenario)


class TestMisbehaviour:
    @pytest.mark.parametrize(
        "raw",
        [
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /fine\r\n\r\n",
            b"GET fine HTTP/1.1\r\n\r\n",
            b"GET /fine HTTP/2\r\n\r\n",
            b"GET  /fine HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
            bytes(range(256)) + b"\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ],
    )
    def test_garbage_is_answered_400_or_nothing(self, raw: bytes) -> None:
        async def scenario(server: HttpServer) -> None:
            answer = await ask(server, raw)
            assert not answer or status_of(answer) == 400
            assert status_of(await ask(server, b"GET /fine HTTP/1.1\r\n\r\n")) == 200

        serve(scenario)

    def test_who_says_nothing_is_not_waited_for(self) -> None:
        async def scenario(server: HttpServer) -> None:
            assert await ask(server, b"") == b""
            assert await ask(server, b"GET /fine HTTP/1.1\r\n") == b""
            assert status_of(await ask(server, b"GET /fine HTTP/1.1\r\n\r\n")) == 200

        serve(scenario, timeout_s=0.1)

    def test_who_takes_nothing_is_not_waited_for(self) -> None:
        async def scenario(server: HttpServer) -> None:
            async with connected(server) as (_, writer):
                writer.write(b"GET /long HTTP/1.1\r\n\r\n")
                await until(lambda: server.requests["/long", "200"] == 1)
                await until(lambda: not server.busy)

        serve(scenario, timeout_s=0.2)

    def test_one_more_than_fits_closes_the_oldest(self) -> None:
        async def scenario(server: HttpServer) -> None:
            async with connected(server) as (oldest, _), connected(server) as (newer, _):
                await until(lambda: server.busy == 2)
                assert status_of(await ask(server, b"GET /fine HTTP/1.1\r\n\r\n")) == 200
                assert await oldest.read(-1) == b""
                assert not newer.at_eof()
                assert server.closed == {"crowded": 1}
            await until(lambda: not server.busy)

        serve(scenario, connections_max=2)

    @pytest.mark.parametrize("sockets", [40, 400])
    def test_a_probe_is_answered_however_many_say_little(self, sockets: int) -> None:
        async def scenario(server: HttpServer) -> None:
            async with AsyncExitStack() as stack:
                for _ in range(sockets):
                    _, writer = await stack.enter_async_context(connected(server))
                    writer.write(b"GET /fine HTTP/1.1\r\nX-Slow: ")
                for _ in range(3):
                    async with asyncio.timeout(1):
                        answer = await ask(server, b"GET /fine HTTP/1.1\r\n\r\n")
                    assert status_of(answer) == 200

        serve(scenario)

    def test_saying_something_now_and_then_buys_no_time(self) -> None:
        async def scenario(server: HttpServer) -> None:
            async with connected(server) as (reader, writer):
                writer.write(b"GET /fine HTTP/1.1\r\nX-Slow: ")
                async with asyncio.timeout(5):
                    while not server.closed:
                        writer.write(b"x")
                        await asyncio.sleep(0)
                with suppress(ConnectionResetError):
                    assert await reader.read(-1) == b""
                assert server.closed == {"slow": 1}

        serve(scenario, timeout_s=0.2, request_bytes_max=1 << 30)

    def test_it_ends_with_connections_open(self) -> None:
        async def scenario(server: HttpServer) -> None:
            async with connected(server):
                await until(lambda: server.busy == 1)
                await server.stop()
                assert not server.busy

        serve(scenario)
