"""Brokers join each other only if they know the same secret."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_agent.runtime.agent import JoinError
from tests.support.security import SECRET, exchange, running

QUICK = 1.5


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
                assert len(agent.core.node.ring.successors) == 0

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
