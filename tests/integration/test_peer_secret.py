"""Brokers join each other only if they know the same secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.runtime.agent import JoinError
from broker_agent.runtime.streams import unchanged
from dynatops.v1.peer_pb2 import LinkFrame, LinkHello
from tests.support.security import SECRET, exchange, running

QUICK = 1.5


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Somebody who takes links, answers with whatever it likes, and remembers what it heard."""
    heard: list[bytes] = []

    async def link(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(raw := await context.read(), bytes):
            heard.append(raw)
            await context.write(LinkFrame(hello=LinkHello(broker_id="eve")).SerializeToString())

    handler = grpc.stream_stream_rpc_method_handler(link, unchanged, unchanged)
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler("dynatops.v1.Peer", {"Link": handler})
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", heard
    finally:
        await server.stop(None)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


class TestPeerSecret:
    @pytest.mark.parametrize("other", ["another-secret-that-is-wrong", None])
    def test_who_does_not_know_it_cannot_join(
        self, secret: Path, tmp_path: Path, other: str | None
    ) -> None:
        async def scenario() -> None:
            wrong = tmp_path / "wrong"
            wrong.write_text(other or "")
            theirs = {"peer_secret": str(wrong)} if other else {}
            quick = {"join_timeout_s": QUICK}
            async with running("b0", {"peer_secret": str(secret)}) as agent:
                with pytest.raises(JoinError, match="the peer secrets differ"):
                    async with running("b1", theirs, join=(agent.address,), runtime=quick):
                        pass
                assert agent.links.counters.links_not_believed >= 1
                assert len(ring_of(agent.core).node.ring.successors) == 0

        asyncio.run(scenario())

    def test_nor_is_anyone_joined_who_does_not_know_it(self, secret: Path) -> None:
        async def scenario() -> None:
            quick = {"join_timeout_s": QUICK}
            ours = {"peer_secret": str(secret)}
            async with running("b0") as agent:
                with pytest.raises(JoinError, match="it answered, but the peer secrets differ"):
                    async with running("b1", ours, join=(agent.address,), runtime=quick):
                        pass

        asyncio.run(scenario())

    def test_a_stranger_that_is_dialled_is_told_nothing(self, secret: Path) -> None:
        async def scenario() -> None:
            async with listening() as (address, heard):
                quick = {"join_timeout_s": QUICK}
                ours = {"peer_secret": str(secret)}
                with pytest.raises(JoinError):
                    async with running("told-nobody", ours, join=(address,), runtime=quick):
                        pass
                said = b"".join(heard)
                assert said
                assert SECRET.encode() not in said
                assert b"told-nobody" not in said

        asyncio.run(scenario())

    def test_a_secret_can_be_replaced_broker_by_broker(self, secret: Path, tmp_path: Path) -> None:
        async def scenario() -> None:
            both = tmp_path / "both"
            both.write_text(f"the-next-secret-of-them\n{SECRET}\n")
            old_first = tmp_path / "old_first"
            old_first.write_text(f"{SECRET}\nthe-next-secret-of-them\n")
            async with running("b0", {"peer_secret": str(old_first)}) as first:
                ours = {"peer_secret": str(both)}
                async with running("b1", ours, join=(first.address,)) as second:
                    await exchange(first.address, second.address)

        asyncio.run(scenario())
