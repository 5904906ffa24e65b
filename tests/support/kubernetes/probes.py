"""Probes of containers, asked as the kubelet asks them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from tests.support.kubernetes.chart import Object

Run = Callable[[list[str]], Awaitable[int]]
_KNOWN = {
    "httpGet", "tcpSocket", "exec", "periodSeconds", "timeoutSeconds", "failureThreshold",
    "initialDelaySeconds", "successThreshold",
}  # fmt: skip


class Prober:
    def __init__(self, address: str, ports: dict[str, int], run: Run) -> None:
        self._address = address
        self._ports = ports
        self._run = run

    async def passes(self, probe: Object) -> bool:
        assert probe.keys() <= _KNOWN, probe
        try:
            # Machines that run tests are slower than those that run brokers.
            async with asyncio.timeout(5 * probe.get("timeoutSeconds", 1)):
                return await self._ask(probe)
        except (OSError, TimeoutError, EOFError):
            return False

    async def _ask(self, probe: Object) -> bool:
        if "exec" in probe:
            return await self._run(probe["exec"]["command"]) == 0
        if "tcpSocket" in probe:
            async with self._connected(probe["tcpSocket"]["port"]):
                return True
        get = probe["httpGet"]
        assert get.keys() <= {"path", "port", "scheme"}, get
        async with self._connected(get["port"], get.get("scheme", "HTTP")) as (reader, writer):
            port = self._port(get["port"])
            request = f"GET {get['path']} HTTP/1.1\r\nHost: {self._address}:{port}\r\n"
            writer.write(f"{request}User-Agent: kube-probe\r\nConnection: close\r\n\r\n".encode())
            status = int((await reader.readline()).split()[1])
            return 200 <= status < 400

    def _port(self, port: str | int) -> int:
        return self._ports[port] if isinstance(port, str) else port

    @contextlib.asynccontextmanager
    async def _connected(self, port: str | int, scheme: str = "HTTP"):  # type: ignore[no-untyped-def]
        context = None
        if scheme == "HTTPS":
            # The kubelet does not look at certificates.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(self._address, self._port(port), ssl=context)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
