"""A broker process's edges: links, strange peers and clients, addresses, starting and stopping."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest

import dynatops
from broker_agent.process_settings import BrokerSettings, RuntimeSettings
from broker_agent.runtime.agent import Agent, JoinError, StartError
from broker_agent.runtime.peers.links import LinkHost, Links
from broker_agent.runtime.streams import METHOD as LINK_METHOD
from broker_agent.runtime.streams import InboundStream, StreamBrokenError
from dynatops.client.connection import METHOD as CLIENT_METHOD
from dynatops.local.cluster import LocalCluster
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage, ErrorCode, Hello, ServerFrame
from dynatops.v1.overlay_pb2 import PeerFrame
from dynatops.v1.peer_pb2 import LinkFrame, LinkHello
from tests.support.waiting import until


def settings(**values: object) -> BrokerSettings:
    return BrokerSettings.model_validate({"broker_id": "b0", "listen": "127.0.0.1:0", **values})


@asynccontextmanager
async def running(**values: object) -> AsyncIterator[Agent]:
    agent = Agent(settings(**values))
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()


@asynccontextmanager
async def raw_stream(address: str, method: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel.stream_stream(method, lambda raw: raw, lambda raw: raw)()


@pytest.mark.parametrize(
    "failure",
    [grpc.aio.InternalError, grpc.aio.UsageError, grpc.aio.BaseError, asyncio.InvalidStateError],
)
@pytest.mark.parametrize("during", ["read", "write"])
def test_a_stream_that_breaks_off_is_broken(failure: type[Exception], during: str) -> None:
    """gRPC has several ways of saying that the other side, or the server itself, is no more; who
    knows one of them only ends the whole broker with another."""

    class Context:
        async def write(self, frame: bytes) -> None:
            raise failure("execute_batch")

        async def read(self) -> bytes:
            raise failure("Server already stopped.")

    stream = InboundStream(Context())  # type: ignore[arg-type]  # two methods of many
    with pytest.raises(StreamBrokenError):
        asyncio.run(stream.read() if during == "read" else stream.write(b""))


class TestStrangePeers:
    @pytest.mark.parametrize(
        ("hello", "reason"),
        [
            (LinkHello(protocol_min=7, protocol_max=9, address="x:1"), "the other 7 to 9"),
            (LinkHello(protocol_min=2, protocol_max=2), "names no address"),
            (None, "must be a hello"),
        ],
    )
    def test_are_refused_with_a_reason(self, hello: LinkHello | None, reason: str) -> None:
        async def scenario() -> None:
            async with running() as agent, raw_stream(agent.address, LINK_METHOD) as call:
                await call.write(LinkFrame(hello=hello).SerializeToString() or b"\x12\x00")
                refusal = LinkFrame.FromString(await call.read()).refusal
                assert reason in refusal.reason
                assert agent.links.counters.links_refused == 1

        asyncio.run(scenario())

    def test_garbage_ends_the_link_and_nothing_else(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                async with raw_stream(agent.address, LINK_METHOD) as call:
                    hello = LinkHello(protocol_min=2, protocol_max=2, address="127.0.0.1:1")
                    await call.write(LinkFrame(hello=hello).SerializeToString())
                    assert LinkFrame.FromString(await call.read()).HasField("hello")
                    await call.write(b"\xff\xff\xff")
                    await until(lambda: agent.links.counters.links_broken == 1)
                async with dynatops.connect(agent.address) as client:
                    await client.publish("still", b"serving")

        asyncio.run(scenario())

    def test_a_broker_that_is_refused_says_so_and_gives_up(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with running() as agent:
                monkeypatch.setattr("broker_agent.runtime.peers.links.PROTOCOL_MIN", 5)
                monkeypatch.setattr("broker_agent.runtime.peers.links.PROTOCOL_MAX", 5)
                old = LinkHello(protocol_min=1, protocol_max=2, broker_id="old", address="old:1")
                monkeypatch.setattr(Links, "hello", lambda self: old)
                host = LinkHost("old", "old:1", lambda frame: None, lambda address: None)
                links = Links(host, RuntimeSettings())
                links.send(agent.address, PeerFrame())
                await until(lambda: links.counters.link_frames_dropped == 1)
                await links.close()

        asyncio.run(scenario())
        assert "this broker speaks protocol 5 to 5, the other 1 to 2" in caplog.text


class TestStrangeClients:
    def test_an_unknown_protocol_version_is_named(self) -> None:
        async def scenario() -> None:
            async with running() as agent, raw_stream(agent.address, CLIENT_METHOD) as call:
                hello = ClientMessage(hello=Hello(protocol=42))
                await call.write(ClientFrame(messages=[hello]).SerializeToString())
                (message,) = ServerFrame.FromString(await call.read()).messages
                assert message.goodbye.code == ErrorCode.ERROR_CODE_PROTOCOL
                assert "the client 42" in message.goodbye.message
                assert await call.read() is grpc.aio.EOF

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        "raw",
        [
            b"\xff\xff\xff",
            # A topic that is not UTF-8.
            b"\x0a\x08\x12\x06\x12\x04\xc3\x28\xc3\x28",
        ],
    )
    def test_garbage_is_answered_before_the_end(self, raw: bytes) -> None:
        async def scenario() -> None:
            async with running() as agent, raw_stream(agent.address, CLIENT_METHOD) as call:
                await call.write(raw)
                (message,) = ServerFrame.FromString(await call.read()).messages
                assert message.goodbye.code == ErrorCode.ERROR_CODE_PROTOCOL
                assert await call.read() is grpc.aio.EOF
                await until(lambda: not agent.core.registry.clients)

        asyncio.run(scenario())

    def test_random_bytes_never_bring_a_broker_down(self) -> None:
        async def scenario() -> None:
            rng = Random(5)
            async with running() as agent:
                for _ in range(150):
                    method = rng.choice((CLIENT_METHOD, LINK_METHOD))
                    async with raw_stream(agent.address, method) as call:
                        await call.write(rng.randbytes(rng.randint(1, 60)))
                async with dynatops.connect(agent.address) as client:
                    await client.publish("still", b"serving")
                await until(lambda: not agent.core.registry.clients)

        asyncio.run(scenario())


class TestAddresses:
    def test_a_port_in_use(self) -> None:
        async def scenario() -> None:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                with pytest.raises(StartError, match=f"127.0.0.1:{port}: the port is in use"):
                    await Agent(settings(listen=f"127.0.0.1:{port}")).start()

        asyncio.run(scenario())

    def test_two_brokers_cannot_share_a_port(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                with pytest.raises(StartError):
                    await Agent(settings(listen=agent.address)).start()

        asyncio.run(scenario())

    def test_nobody_to_join(self) -> None:
        async def scenario() -> None:
            agent = Agent(settings(join=("127.0.0.1:1",), runtime={"join_timeout_s": 0.3}))
            with pytest.raises(JoinError, match=r"no broker at 127.0.0.1:1 let b0 join within 0.3"):
                await agent.start()

        asyncio.run(scenario())

    @pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:7400", "[::]:0"])
    def test_beyond_loopback_only_when_told(self, listen: str) -> None:
        with pytest.raises(ValueError, match="--insecure"):
            settings(listen=listen)
        assert settings(listen=listen, insecure=True).listen == listen

    @pytest.mark.parametrize("wrong", ["7400", "host", "host:", ":1", "host:x", "host:70000"])
    def test_what_is_no_address(self, wrong: str) -> None:
        with pytest.raises(ValueError, match="write host:port"):
            settings(listen=wrong)

    def test_ipv6(self) -> None:
        async def scenario() -> None:
            async with running(listen="[::1]:0") as agent:
                assert agent.address.startswith("[::1]:")
                async with dynatops.connect(agent.address) as client:
                    await client.publish("over", b"six")

        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 loopback here: {error}")
        asyncio.run(scenario())


class TestLinks:
    def test_a_dead_address_is_reported_and_its_frames_dropped(self) -> None:
        async def scenario() -> None:
            unreachable: list[str] = []
            host = LinkHost("x", "127.0.0.1:2", lambda frame: None, unreachable.append)
            links = Links(host, RuntimeSettings(link_patience_s=0.3))
            for _ in range(3):
                links.send("127.0.0.1:1", PeerFrame())
            await until(lambda: links.counters.link_frames_dropped == 3)
            assert set(unreachable) == {"127.0.0.1:1"}
            await links.close()

        asyncio.run(scenario())

    def test_a_full_queue_drops_the_newest(self) -> None:
        async def scenario() -> None:
            host = LinkHost("x", "127.0.0.1:2", lambda frame: None, lambda address: None)
            links = Links(host, RuntimeSettings(link_queue_bytes_max=100))
            for _ in range(10):
                links.send("127.0.0.1:1", PeerFrame(to=7))
            assert 0 < links.counters.link_frames_dropped < 10
            await links.close()

        asyncio.run(scenario())

    def test_one_stream_serves_both_directions(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(2) as cluster:
                opened = [agent.links.counters.links_opened for agent in cluster.agents]
                # Each side counts the streams it is part of: one, or two where both began at once.
                assert all(1 <= count <= 2 for count in opened)

        asyncio.run(scenario())

    def test_an_idle_link_is_closed_and_opened_again(self) -> None:
        async def scenario() -> None:
            received: list[PeerFrame] = []
            async with running() as agent:
                agent.links.host = LinkHost(
                    "b0", agent.address, received.append, agent.on_unreachable
                )
                host = LinkHost("x", "127.0.0.1:2", lambda frame: None, lambda address: None)
                links = Links(host, RuntimeSettings(link_idle_s=0.2))
                links.send(agent.address, PeerFrame(to=1))
                await until(lambda: len(received) == 1)
                await until(lambda: agent.links.counters.links_broken == 1)
                links.send(agent.address, PeerFrame(to=2))
                await until(lambda: len(received) == 2)
                await links.close()

        asyncio.run(scenario())

    def test_whoever_comes_again_is_answered_where_it_is_now(self) -> None:
        """Its former stream may look alive for long: its host has vanished without a word."""

        async def scenario() -> None:
            async with running() as agent:
                former: list[PeerFrame] = []
                present: list[PeerFrame] = []
                lives: list[Links] = []
                for heard in (former, present):
                    host = LinkHost("x", "127.0.0.1:1", heard.append, lambda address: None)
                    lives.append(Links(host, RuntimeSettings()))
                    lives[-1].send(agent.address, PeerFrame())
                    await until(lambda: agent.links.counters.links_opened == len(lives))
                agent.links.send("127.0.0.1:1", PeerFrame(to=7))
                await until(lambda: present == [PeerFrame(to=7)])
                assert former == []
                for links in lives:
                    await links.close()

        asyncio.run(scenario())

    def test_what_is_closed_opens_nothing(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                host = LinkHost("x", "127.0.0.1:1", lambda frame: None, lambda address: None)
                links = Links(host, RuntimeSettings())
                links.send(agent.address, PeerFrame())
                await until(lambda: agent.links.counters.links_opened == 1)
                await links.close()
                links.send(agent.address, PeerFrame())
                await until(lambda: agent.links.counters.links_broken == 1)
                assert not [task for task in links._tasks if not task.done()]
                assert agent.links.counters.links_opened == 1

        asyncio.run(scenario())


class TestStopping:
    def test_twice_is_once(self) -> None:
        async def scenario() -> None:
            agent = Agent(settings())
            await agent.start()
            await asyncio.gather(agent.stop(), agent.stop())
            await agent.stop()
            await agent.run_until_stopped()

        asyncio.run(scenario())

    def test_a_client_that_does_not_read_does_not_hold_it_up(self) -> None:
        async def scenario() -> None:
            agent = Agent(settings(runtime={"drain_timeout_s": 0.3}))
            await agent.start()
            async with raw_stream(agent.address, CLIENT_METHOD) as call:
                hello = ClientMessage(hello=Hello(protocol=1))
                await call.write(ClientFrame(messages=[hello]).SerializeToString())
                await until(lambda: len(agent.core.registry.clients) == 1)
                async with asyncio.timeout(5.0):
                    await agent.stop()

        asyncio.run(scenario())
