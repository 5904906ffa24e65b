"""An object store that fails when it is told to: S3 as moto serves it, behind a proxy of TCP.

    with s3_server() as s3, StoreProxy(s3.address) as store:
        s3.environment(store.url)      # what a client finds the bucket by
        store.fault = STALL            # nobody is answered any more
        store.fault = Answer(503, "SlowDown", "Please reduce your request rate.")
        store.fault = None             # what was stalled goes on

What is stalled goes on when the fault is over, also if its client has long given up, as on a real
network.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pytest
from pyarrow import fs as pafs

BUCKET = "lake-bucket"
REGION = "eu-central-1"
_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)
_START_S = 60.0
_SPOKEN = re.compile(rb"Running on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Fault:
    name: str


# Nothing passes, in either direction; connections stay.
STALL = Fault("stall")
# Connections end with a reset as soon as the client says something.
RESET = Fault("reset")
# Of what a client says next half arrives; then both sides see the connection reset.
CUT = Fault("cut")


@dataclass(frozen=True, slots=True)
class Answer(Fault):
    """What S3 says when it refuses, whatever was asked."""

    status: int
    code: str
    message: str

    def __init__(self, status: int, code: str, message: str) -> None:
        object.__setattr__(self, "name", code)
        object.__setattr__(self, "status", status)
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "message", message)

    def to_bytes(self) -> bytes:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>"
        ).encode()
        head = (
            f"HTTP/1.1 {self.status} {self.code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


class StoreProxy:
    """Threads, as what is tested has an event loop of its own that must not wait for this one."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._fault: Fault | None = None
        self._changed = threading.Condition()
        self._is_over = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.connections = 0
        # Pieces, of either side, that wait for the end of a stall.
        self.stalled = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            self._end(each)
        for thread in list(self._threads):
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    # ---- its threads ----------------------------------------------------------------------------

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        with contextlib.suppress(OSError), socket.create_connection(self._upstream) as server:
            self._sockets.add(server)
            self._start(self._carry, server, client, False)
            self._carry(client, server, True)
        self._end(client)

    def _carry(self, source: socket.socket, target: socket.socket, is_asking: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_CHUNK):
                self.stalled += 1
                is_over = not self._wait_until_passing()
                self.stalled -= 1
                if is_over:
                    break
                if is_asking and self._fault is not None:
                    self._fail(self._fault, piece, source, target)
                    break
                target.sendall(piece)
        self._end(target)
        self._end(source)

    def _wait_until_passing(self) -> bool:
        """Whether there is anything more to carry."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._fault != STALL)
            return not self._is_over

    def _fail(
        self, fault: Fault, piece: bytes, client: socket.socket, server: socket.socket
    ) -> None:
        if isinstance(fault, Answer):
            client.sendall(fault.to_bytes())
            # Or what the client still says would be answered with a reset, before it has read this.
            client.shutdown(socket.SHUT_WR)
            while client.recv(_CHUNK):
                pass
            return
        if fault == CUT:
            server.sendall(piece[: len(piece) // 2])
        for each in (client, server):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _end(self, ended: socket.socket) -> None:
        self._sockets.discard(ended)
        with contextlib.suppress(OSError):
            is_reset = ended.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_RESET)) == _RESET
            # Either wakes whoever reads from it; the first says nothing to the other side.
            ended.shutdown(socket.SHUT_RD if is_reset else socket.SHUT_RDWR)
        ended.close()


@dataclass(frozen=True, slots=True)
class S3Server:
    """moto, in a process of its own, with one bucket."""

    port: int

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def s3_variables(url: str) -> Mapping[str, str]:
    """What clients of a store at `url` find in their environment."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "not-much-of-a-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def make_bucket(server: S3Server) -> None:
    endpoint = server.url.removeprefix("http://")
    filesystem = pafs.S3FileSystem(
        access_key="nobody",
        secret_key="not-much-of-a-secret",
        region=REGION,
        scheme="http",
        endpoint_override=endpoint,
        allow_bucket_creation=True,
    )
    filesystem.create_dir(BUCKET)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        yield S3Server(_port_of(process))
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _port_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if found := _SPOKEN.search(line):
            # Somebody must read what it says of each request.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            return int(found[1])
    pytest.fail(f"moto did not start: {said.decode(errors='replace')}")


def _drain(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    with contextlib.suppress(OSError, ValueError):
        while process.stderr.read1(_CHUNK):  # type: ignore[attr-defined]
            pass
