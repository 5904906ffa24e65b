"""What a token allows its clients, with real brokers and the real client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

import dynatops
from dynatops.client.errors import AccessError
from dynatops.client.inspection import Inspector
from dynatops.kit.security.tls import open_channel
from dynatops.v1.inspection_pb2 import DescribeSessionRequest, ListSessionsRequest
from dynatops.v1.inspection_pb2_grpc import InspectionStub
from tests.support.security import running, table


def write(path: Path, text: str) -> None:
    path.write_text(text)


class TestTokens:
    def test_no_token_no_service_and_no_second_try(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                for token, reason in (("", "none was given"), ("guess", "does not know the token")):
                    with pytest.raises(AccessError, match=reason):
                        await dynatops.connect(agent.address, token=token)
                assert agent.core.counters.authentication_refused == 2
                with pytest.raises(AccessError, match="is for client ids dev-"):
                    await dynatops.connect(agent.address, token="own-token", client_id="x")

        asyncio.run(scenario())

    def test_rules_hold(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                async with dynatops.connect(agent.address, token="app-token") as client:
                    with pytest.raises(dynatops.SubscribeError, match="does not allow subscribing"):
                        await client.subscribe("other")
                    with pytest.raises(dynatops.PublishError, match="does not allow publishing"):
                        await client.publish("news", b"1")
                    await client.publish("news", b"2", ack=dynatops.Ack.NONE)
                    await client.publish("app/x", b"3")
                    await client.flush()
                assert agent.core.counters.publish_not_allowed == 2
                async with dynatops.connect(
                    agent.address, token="own-token", client_id="dev-1"
                ) as client:
                    await client.publish("of/dev-1", b"mine")
                    with pytest.raises(dynatops.PublishError):
                        await client.publish("of/dev-2", b"not mine")

        asyncio.run(scenario())

    def test_inspecting_needs_the_right(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                for token, reason in (("", "none was given"), ("app-token", "no `inspect = true`")):
                    with pytest.raises(AccessError, match=reason):
                        async with Inspector(agent.address, token=token) as inspector:
                            await inspector.brokers()
                async with Inspector(agent.address, token="ops-token") as inspector:
                    assert len(await inspector.brokers()) == 1
                    assert await inspector.topics() == []
                    assert (await inspector.tree("x")).node.broker_id == "b0"
                    assert await inspector.sessions() == []
                    assert await inspector.session("x") == []
                assert agent.core.counters.inspect_refused == 2

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("method", "request_"),
        [
            ("ListSessions", ListSessionsRequest()),
            ("DescribeSession", DescribeSessionRequest(client_id="ann")),
        ],
    )
    def test_so_does_looking_at_sessions(
        self, tokens: Path, method: str, request_: Message
    ) -> None:
        async def scenario() -> None:
            async with (
                running(security={"tokens": str(tokens)}) as agent,
                open_channel(agent.address, None) as channel,
            ):
                ask = getattr(InspectionStub(channel), method)
                denied = grpc.StatusCode.PERMISSION_DENIED
                for token, code in (("app-token", denied), ("", grpc.StatusCode.UNAUTHENTICATED)):
                    metadata = (("authorization", f"Bearer {token}"),) if token else ()
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await ask(request_, metadata=metadata)
                    assert refused.value.code() is code
                async with (
                    dynatops.connect(agent.address, token="app-token", client_id="ann") as client,
                    client.subscribe("app/x"),
                    Inspector(agent.address, token="ops-token") as inspector,
                ):
                    ((broker, session),) = await inspector.sessions()
                    assert (broker.broker_id, session.client_id) == ("b0", "ann")
                    assert session.token == "app"
                    ((_, details),) = await inspector.session("ann")
                    assert [f.pattern for f in details.filters] == ["app/x"]

        asyncio.run(scenario())

    def test_new_rules_reach_clients_that_are_there(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                client = await dynatops.connect(agent.address, token="app-token")
                events = await client.subscribe("app/x", "news")
                gone = await client.subscribe("app/y")
                write(
                    tokens,
                    table("app", "app-token", publish='["#"]', subscribe='["app/x", "news"]'),
                )
                agent.reload()
                with pytest.raises(dynatops.SubscribeError, match="'app/y'"):
                    await gone.__anext__()
                await client.publish("app/x", b"still")
                assert (await events.__anext__()).payload == b"still"
                write(tokens, "nonsense")
                agent.reload()
                assert agent.core.counters.reloads_failed == 1
                await client.publish("app/x", b"as before")
                write(tokens, "")
                agent.reload()
                assert (await events.__anext__()).payload == b"as before"
                with pytest.raises(AccessError, match="does not know"):
                    await events.__anext__()
                with pytest.raises(AccessError):
                    await client.publish("app/x", b"no more")
                await client.close()

        asyncio.run(scenario())

    def test_a_rate_slows_down_and_loses_nothing(self, tokens: Path) -> None:
        async def scenario() -> None:
            write(
                tokens, table("app", "t", publish='["#"]', limits="{ publish_events_per_s = 1000 }")
            )
            async with running(security={"tokens": str(tokens)}) as agent:
                loop = asyncio.get_running_loop()
                async with dynatops.connect(agent.address, token="t") as client:
                    started_s = loop.time()
                    for _ in range(4):
                        await client.publish_many("x", [b"1"] * 500)
                    await client.flush()
                    assert loop.time() - started_s > 0.8
                assert agent.core.counters.throttle_pauses >= 1
                assert agent.core.counters.published_events == 2_000

        asyncio.run(scenario())
