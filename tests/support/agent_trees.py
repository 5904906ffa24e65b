"""Brokers in a tree, in this process, with real links."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent
from dynatops.client.subscription import Subscription
from tests.support.ports import free_addresses

TIMEOUT_S = 20.0


class Tree:
    """A hub, and leaves around it."""

    def __init__(self, folder: Path, leaves: int, **settings: Any) -> None:
        """`settings`: of all its brokers."""
        names = ["hub", *(f"leaf{number}" for number in range(1, leaves + 1))]
        self.addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        self.running: dict[str, Agent] = {}
        self.file = folder / "tree.yaml"
        self.write(self.file, 1, [("hub", name) for name in names[1:]])
        self._settings = settings

    def write(
        self,
        file: Path,
        version: int,
        links: Iterable[tuple[str, str]],
        addresses: Mapping[str, str] | None = None,
    ) -> Path:
        brokers = (addresses or self.addresses).items()
        lines = [
            f"version: {version}",
            "root: hub",
            "brokers:",
            *(f"  {name}: {at}" for name, at in brokers),
            "links:",
            *(f"  - [{one}, {other}]" for one, other in links),
        ]
        file.write_text("\n".join(lines) + "\n")
        return file

    async def start(self, name: str, file: Path | None = None, **settings: Any) -> Agent:
        values = {"listen": self.addresses[name], **self._settings, **settings}
        agent = Agent(BrokerSettings(broker_id=name, topology=str(file or self.file), **values))
        self.running[name] = agent
        await agent.start()
        return agent

    async def kill(self, name: str) -> None:
        await self.running.pop(name).kill()


@contextlib.asynccontextmanager
async def tree_of(folder: Path, leaves: int = 3, **settings: Any) -> AsyncIterator[Tree]:
    tree = Tree(folder, leaves, **settings)
    try:
        async with asyncio.TaskGroup() as group:
            for name in tree.addresses:
                group.create_task(tree.start(name))
        yield tree
    finally:
        await asyncio.gather(*(agent.kill() for agent in tree.running.values()))


async def payloads(events: Subscription, count: int) -> list[bytes]:
    async with asyncio.timeout(TIMEOUT_S):
        return [(await anext(events)).payload for _ in range(count)]


async def nothing_more(events: Subscription) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(events)
            return False
    return True
