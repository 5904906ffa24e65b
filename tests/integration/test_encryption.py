"""Certificates: what clients believe of brokers, and brokers of clients and of each other."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

import dynatops
from broker_agent.runtime.agent import JoinError
from dynatops.client.errors import ConnectError
from dynatops.client.inspection import Inspector, ring_problems
from dynatops.kit.security.tls import Tls
from tests.support.security import (
    CLIENT,
    ENCRYPTED,
    MUTUAL,
    STRANGER,
    TRUSTING,
    exchange,
    pem,
    running,
)
from tests.support.waiting import until

QUICK = 1.5


def copy(name: str, path: Path) -> None:
    path.write_bytes(Path(pem(name)).read_bytes())


class TestEncryption:
    def test_a_client_that_trusts_the_authority(self) -> None:
        async def scenario() -> None:
            async with running(security=ENCRYPTED) as agent:
                await exchange(agent.address, agent.address, tls=TRUSTING)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("tls", "reason"),
        [
            (None, "perhaps it speaks TLS"),
            (Tls(ca=pem("stranger.crt")), "not from an authority that is believed"),
            (Tls(), "not from an authority that is believed"),
            (Tls(ca=pem("ca.crt"), server_name="elsewhere"), "is for another name"),
            (
                Tls(ca="/nowhere/ca.crt"),
                "cannot read the authorities file /nowhere/ca.crt: No such",
            ),
            (Tls(ca=pem("make.sh")), "holds no certificates"),
            (Tls(ca=pem("ca.crt"), cert=pem("client.crt")), "go together"),
        ],
    )
    def test_a_client_that_does_not_is_told_why(self, tls: Tls | None, reason: str) -> None:
        async def scenario() -> None:
            async with running(security=ENCRYPTED) as agent:
                with pytest.raises(ConnectError, match=reason):
                    await dynatops.connect(agent.address, tls=tls, timeout_s=0.5)
                with pytest.raises(ConnectError, match=reason):
                    async with Inspector(agent.address, tls=tls) as inspector:
                        await inspector.brokers()

        asyncio.run(scenario())

    def test_a_client_that_encrypts_where_nobody_does(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                with pytest.raises(ConnectError, match="it does not speak TLS"):
                    await dynatops.connect(agent.address, tls=TRUSTING, timeout_s=0.5)

        asyncio.run(scenario())

    def test_from_code_that_is_not_asynchronous(self, tokens: Path) -> None:
        def publish(address: str) -> None:
            with dynatops.connect_sync(address, token="app-token", tls=TRUSTING) as client:
                client.publish("app/x", b"1")

        async def scenario() -> None:
            async with running(security={**ENCRYPTED, "tokens": str(tokens)}) as agent:
                await asyncio.to_thread(publish, agent.address)
                assert agent.core.counters.published_events == 1

        asyncio.run(scenario())


class TestMutualTls:
    @pytest.mark.parametrize("tls", [TRUSTING, STRANGER])
    def test_no_certificate_no_service(self, tls: Tls) -> None:
        async def scenario() -> None:
            async with running(security=MUTUAL) as agent:
                with pytest.raises(ConnectError, match="asks for a certificate"):
                    await dynatops.connect(agent.address, tls=tls, timeout_s=0.5)
                with pytest.raises(ConnectError, match="asks for a certificate"):
                    async with Inspector(agent.address, tls=tls) as inspector:
                        await inspector.brokers()

        asyncio.run(scenario())

    def test_a_ring_of_three(self) -> None:
        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as stack:
                first = await stack.enter_async_context(running("b0", MUTUAL))
                others = [
                    await stack.enter_async_context(running(name, MUTUAL, join=(first.address,)))
                    for name in ("b1", "b2")
                ]

                async def is_whole() -> bool:
                    async with Inspector(first.address, tls=CLIENT) as inspector:
                        reports = await inspector.brokers()
                    return len(reports) == 3 and not ring_problems(reports)

                await until(is_whole)
                await exchange(others[0].address, others[1].address, tls=CLIENT)

        asyncio.run(scenario())

    def test_a_broker_with_a_strange_certificate_cannot_join(self) -> None:
        async def scenario() -> None:
            strange = {
                **MUTUAL, "tls_cert": pem("stranger.crt"), "tls_key": pem("stranger.key"),
            }  # fmt: skip
            quick = {"join_timeout_s": QUICK}
            async with running("b0", MUTUAL) as agent:
                with pytest.raises(JoinError, match="asks for a certificate"):
                    async with running("b1", strange, join=(agent.address,), runtime=quick):
                        pass

        asyncio.run(scenario())

    def test_a_renewed_certificate_is_shown_without_a_restart(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            cert, key = tmp_path / "b.crt", tmp_path / "b.key"
            for name, path in (("stranger.crt", cert), ("stranger.key", key)):
                copy(name, path)
            own = {"tls_cert": str(cert), "tls_key": str(key)}
            async with running(security=own) as agent:
                with pytest.raises(ConnectError):
                    await dynatops.connect(agent.address, tls=TRUSTING, timeout_s=0.5)
                copy("broker.crt", cert)
                agent.reload()
                assert agent.core.counters.reloads_failed == 1
                copy("broker.key", key)
                agent.reload()
                await exchange(agent.address, agent.address, tls=TRUSTING)

        asyncio.run(scenario())
