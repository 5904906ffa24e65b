"""The past of topics, asked of brokers that run: out of the logs of stores, hop by hop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

import dynatops
from dynatops.kit.run_events import events_of
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage, Filter, Hello, History, ServerFrame
from tests.support.agent_trees import TIMEOUT_S, Tree
from tests.support.waiting import until


async def _past(address: str, pattern: str, **wanted: Any) -> list[bytes]:
    """As a client of this broker is told of it."""
    history = History(request=1, filter=Filter(pattern=pattern), credit_bytes=1 << 20, **wanted)
    said = [ClientMessage(hello=Hello(protocol=1)), ClientMessage(history=history)]
    payloads: list[bytes] = []
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(TIMEOUT_S):
        call: Any = channel.stream_stream("/dynatops.v1.PubSub/Connect")()
        await call.write(ClientFrame(messages=said).SerializeToString())
        while True:
            for message in ServerFrame.FromString(await call.read()).messages:
                if message.HasField("history_end"):
                    assert not message.history_end.error, message.history_end
                    return payloads
                for run in message.history_part.events.runs:
                    payloads += [event.payload for event in events_of(run) or ()]


def test_what_was_stored_is_had_from_other_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = Tree(tmp_path, 2)
        try:
            await _ask_everywhere(tree, tmp_path)
        finally:
            await asyncio.gather(*(agent.kill() for agent in tree.running.values()))

    asyncio.run(scenario())


async def _ask_everywhere(tree: Tree, tmp_path: Path) -> None:
    kept = {"keep": ["quake/#"], "dir": str(tmp_path / "store")}
    await tree.start("hub")
    await tree.start("leaf2", store=kept)
    await tree.start("leaf1")
    await until(lambda: tree.running["leaf1"].core.status().known_units == 1)
    async with dynatops.connect(tree.addresses["leaf1"], stay=True) as client:
        for number in range(20):
            await client.publish("quake/ca", b"%d" % number)
    counters = tree.running["leaf2"].counters
    await until(lambda: counters.stored_events == 20)
    expected = [b"%d" % number for number in range(20)]
    for address in tree.addresses.values():
        assert await _past(address, "quake/ca") == expected
    assert await _past(tree.addresses["leaf1"], "quake/+", last=5) == expected[15:]
