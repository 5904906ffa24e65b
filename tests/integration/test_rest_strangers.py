"""Whoever has no token keeps nobody else out of a manager's HTTP side."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from dynatops.kit.observing.logs import OncePerMinute
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import is_problem, leading
from tests.support.rest_server import Served, served
from tests.support.security import pem, table
from tests.support.waiting import wait_for

WANTED = b"GET /v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextmanager
def manager(**values: Any) -> Iterator[Served]:
    settings = RestSettings(listen="127.0.0.1:0", **values)
    with served(asyncio.run(leading(settings))) as running:
        yield running


def connect(running: Served) -> socket.socket:
    host, _, port = running.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_well(running: Served) -> bool:
    verify: Any = ssl.create_default_context(cafile=pem("ca.crt")) if running.tls else True
    began_s = time.monotonic()
    answer = httpx.get(f"{running.url}/v1/healthz", timeout=10, verify=verify)
    assert time.monotonic() - began_s < 2
    return answer.status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        b"",
        WANTED,
        WANTED + b"\r\n",
        b"POST /v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "half a head", "one request", "a body that never comes"],
)
def test_health_is_answered_whoever_else_is_there(said: bytes) -> None:
    with manager(connections_max=100) as running, ExitStack() as stack:
        for _ in range(300):
            stranger = stack.enter_context(connect(running))
            stranger.sendall(said)
        assert is_well(running)
        assert running.closed["crowded"] >= 200


@pytest.mark.slow
def test_a_thousand_that_say_nothing() -> None:
    with manager() as running, ExitStack() as stack:
        for _ in range(1_100):
            stack.enter_context(connect(running))
        assert is_well(running)


def test_handshakes_that_never_end_make_room_too() -> None:
    with (
        manager(
            connections_max=20, tls_cert=pem("broker.crt"), tls_key=pem("broker.key")
        ) as running,
        ExitStack() as stack,
    ):
        for _ in range(60):
            stack.enter_context(connect(running))
        assert is_well(running)
        assert running.closed["crowded"] >= 40


@pytest.mark.parametrize("said", [b"", WANTED + b"X-Slow: "])
def test_time_for_a_request_is_bounded_in_all(said: bytes) -> None:
    with manager(request_timeout_s=0.2) as running, connect(running) as stranger:
        stranger.sendall(said)
        assert stranger.recv(1) == b""
        assert running.closed == {"slow": 1}


def test_one_that_takes_no_answers_is_ended() -> None:
    with manager(answer_timeout_s=0.2) as running, connect(running) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        wanted = WANTED.replace(b"healthz", b"openapi.json") + b"\r\n"
        stranger.setblocking(False)

        def is_ended() -> bool:
            with suppress(OSError):
                stranger.send(wanted)
            return running.closed.get("stalled", 0) == 1

        wait_for(is_ended)


def test_what_is_no_http_is_a_problem_and_counted() -> None:
    with manager() as running, connect(running) as stranger:
        stranger.sendall(b"\x16\x03\x01 what?\r\n\r\n")
        head, _, body = stranger.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert b'"code": "malformed"' in body
        assert running.closed == {"malformed": 1}


def test_the_log_has_a_line_a_minute_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with manager() as running:
        for _ in range(20):
            with connect(running) as stranger:
                stranger.sendall(b"what?\r\n\r\n")
                stranger.makefile("rb").read()
    assert sum("Invalid HTTP" in line for line in caplog.messages) <= 1


def test_how_often_it_was_not_said_is_said() -> None:
    now_s = 0.0
    bounded = OncePerMinute(lambda: now_s)

    def said() -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "x", 1, "what?", None, None)
        return str(record.msg) if bounded.filter(record) else None

    assert [said(), said(), said()] == ["what?", None, None]
    now_s = 61.0
    assert said() == "what? (2 more since the last such line)"


def test_streams_leave_room_for_probes_and_commands_hear_why() -> None:
    """Nine of ten connections at most are being answered."""
    with manager(connections_max=10, watchers_max=20, caller_watchers_max=20) as running:
        with ExitStack() as stack:
            client = stack.enter_context(httpx.Client(base_url=running.url, timeout=30))
            for _ in range(9):
                stream = stack.enter_context(client.stream("GET", "/v1/events"))
                assert stream.status_code == 200
            refused = httpx.get(f"{running.url}/v1/cluster")
            assert refused.status_code == 503
            assert refused.json()["code"] == "too_many_requests"
            assert refused.headers["Retry-After"]
            assert is_well(running)


def test_one_viewer_does_not_take_all_streams(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    viewers = (table(name, name * 8, role='"viewer"') for name in ("one", "other"))
    tokens.write_text("\n".join(viewers))
    with (
        manager(tokens=str(tokens), watchers_max=20) as running,
        ExitStack() as stack,
        httpx.Client(base_url=running.url, timeout=30) as client,
    ):
        one, other = ({"Authorization": f"Bearer {name * 8}"} for name in ("one", "other"))
        for _ in range(10):
            opened = stack.enter_context(client.stream("GET", "/v1/events", headers=one))
            assert opened.status_code == 200
        refused = client.get("/v1/events", headers=one)
        is_problem(refused, 429, "too_many_streams")
        assert "one has 10 streams" in refused.json()["detail"]
        assert refused.headers["Retry-After"]
        opened = stack.enter_context(client.stream("GET", "/v1/events", headers=other))
        assert opened.status_code == 200
