"""Brokers come to a manager, are let in or not, and are told where to go."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.v1.manager_pb2 import (
    RCFG_INIT,
    AgentFrame,
    LoadReport,
    Step,
)
from dynatops.v1.overlay_pb2 import NodeRef
from reconfig_manager.ports import AgentId
from reconfig_manager.service.agents import METHOD
from reconfig_manager.service.process_settings import ManagerProcessSettings
from reconfig_manager.store.embedded import EmbeddedServer
from tests.support.agents import QUICK, FakeAgent, attending, managing
from tests.support.security import ENCRYPTED, MUTUAL, SECRET, TRUSTING, pem
from tests.support.services import (
    all_attached,
    ask,
    attached,
    call,
    is_attended,
    last_words,
    registration,
    run,
)
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")


class TestAgents:
    def test_brokers_register_and_report(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agents = [FakeAgent(f"b{i}", [service.address]) for i in range(3)]
                async with attending(agents):
                    await all_attached(service, 3)
                    await until(lambda: all(agent.reports >= 3 for agent in agents))
                    page = await ask(service, "/v1/brokers")
                    assert [b["broker_id"] for b in page["items"]] == ["b0", "b1", "b2"]
                    assert all(b["topics"] == 2 for b in page["items"])
                await all_attached(service, 0)

        run(tmp_path, scenario)

    def test_what_changes_is_told(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agent = FakeAgent("b0", [service.address])
                async with attending([agent]):
                    await all_attached(service, 1)
                    agent.epoch, agent.registration_version = 6, 1
                    members = service.driver.manager.leader_state.members

                    def is_told() -> bool:
                        # As brokers do with each tick: the manager may not have answered yet.
                        agent.uplink.update_registration()
                        return members.epoch_max == 6

                    await until(is_told)
                    # On the same stream.
                    assert agent.uplink.counters.manager_streams == 1

        run(tmp_path, scenario)

    def test_followers_say_who_leads(self, tmp_path: Path) -> None:
        # However slow this machine is, the one goes on leading: that is not what is asked here.
        for_long = {
            "leadership": {**QUICK["leadership"], "ttl_s": 60.0},
            "store": {"timeout_s": 5.0},
        }

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url, "m1", **for_long) as first:
                await until(lambda: first.leads)
                async with managing(server.url, "m2") as second:
                    agent = FakeAgent("b0", [second.address])
                    async with attending([agent]):
                        await all_attached(first, 1)
                        assert agent.uplink.manager == first.address
                        assert not second.leads
                        unready = await ask(second, "/v1/readyz")
                        assert unready["leads"] is False

        run(tmp_path, scenario)

    def test_brokers_go_where_the_leader_is(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url, "m1") as first, managing(server.url, "m2") as second:
                both = [first.address, second.address]
                await until(lambda: first.leads or second.leads)
                leader, other = (first, second) if first.leads else (second, first)
                agents = [FakeAgent(f"b{i}", both) for i in range(4)]
                async with attending(agents):
                    await all_attached(leader, 4)
                    leader.driver.leadership.step_down()
                    await all_attached(other, 4)
                    assert not leader.leads
                    assert len(leader.driver.agents) == 0

        run(tmp_path, scenario)

    @pytest.mark.parametrize("obeyed", [1, 77])
    def test_a_broker_that_obeyed_another_leader(self, tmp_path: Path, obeyed: int) -> None:
        """With a higher fence; or with the same one, which the store has forgotten."""

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agent = FakeAgent("b0", [service.address])
                agent.fence = obeyed
                async with attending([agent]):
                    leadership = service.driver.leadership
                    await until(lambda: (leadership.fence or 0) > obeyed)
                    await all_attached(service, 1)

        run(tmp_path, scenario)

    @pytest.mark.parametrize(
        ("frame", "code", "details"),
        [
            (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "must be a registration"),
            (
                AgentFrame(report=LoadReport()).SerializeToString(),
                grpc.StatusCode.INVALID_ARGUMENT,
                "must be a registration",
            ),
            (
                registration(protocol_min=2, protocol_max=3),
                grpc.StatusCode.FAILED_PRECONDITION,
                "speaks protocol 1 to 1, the broker 2 to 3",
            ),
            (registration(name=""), grpc.StatusCode.INVALID_ARGUMENT, "names no broker"),
            (
                registration(epoch=1 << 63),
                grpc.StatusCode.FAILED_PRECONDITION,
                "epoch or fence out of range",
            ),
        ],
    )
    def test_who_is_no_broker(
        self, tmp_path: Path, frame: bytes, code: grpc.StatusCode, details: str
    ) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                async with call(service, frame) as stream:
                    assert await stream.code() is code
                    assert details in str(await stream.details())
                assert await attached(service) == 0

        run(tmp_path, scenario)

    def test_strangers_that_say_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("reconfig_manager.service.agents.HELLO_TIMEOUT_S", 0.1)
        monkeypatch.setattr("reconfig_manager.service.agents.UNNAMED_MAX", 1)

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                async with call(service) as first, call(service) as second:
                    codes = {await first.code(), await second.code()}
                    assert grpc.StatusCode.DEADLINE_EXCEEDED in codes

        run(tmp_path, scenario)

    def test_strangers_that_say_too_much(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                async with call(service, registration() + bytes(100_000)) as stream:
                    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
                zipped = grpc.Compression.Gzip
                async with grpc.aio.insecure_channel(service.address, compression=zipped) as other:
                    unpacked: Any = other.stream_stream(METHOD)()
                    with contextlib.suppress(grpc.RpcError):
                        await unpacked.write(registration() * 100)
                    assert await unpacked.code() is not grpc.StatusCode.OK
                assert await attached(service) == 0

        run(tmp_path, scenario)

    def test_a_second_stream_takes_the_place_of_the_first(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                async with call(service, registration()) as first:
                    assert await is_attended(first)
                    async with call(service, registration()) as second:
                        assert await is_attended(second)
                        assert "opened another stream" in await last_words(first)
                        assert await attached(service) == 1

        run(tmp_path, scenario)

    def test_becoming_another_on_the_same_stream(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                async with call(service, registration("b1"), registration("b2")) as stream:
                    assert "become another" in await last_words(stream)

        run(tmp_path, scenario)

    def test_a_broker_that_takes_nothing(self, tmp_path: Path) -> None:
        """Its queue is bounded; the others and the manager do not notice."""

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url, service={"agent_queue_frames_max": 4}) as service:
                await until(lambda: service.leads)
                async with call(service, registration()):
                    await all_attached(service, 1)
                    agents = service.driver.agents
                    step = Step(
                        plan="p", kind=RCFG_INIT, moved=[NodeRef(address="x" * 1_000)] * 500
                    )
                    for _ in range(200):
                        agents.send(AgentId("b1", 1, 1), step)
                    assert agents.counters.agent_steps_dropped >= 190
                    agents.send(AgentId("nobody", 1, 9), step)
                    assert await attached(service) == 1

        run(tmp_path, scenario)


class TestSecurity:
    def test_the_secret(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "secret"
        path.write_text(SECRET)

        async def scenario(server: EmbeddedServer) -> None:
            security = {"peer_secret": str(path)}
            async with managing(server.url, security=security) as service:
                await until(lambda: service.leads)
                wrong = LinkCredentials(secrets=("another-secret-altogether",))
                agents = [
                    FakeAgent("b0", [service.address], LinkCredentials(secrets=(SECRET,))),
                    FakeAgent("b1", [service.address], wrong),
                ]
                async with attending(agents):
                    await all_attached(service, 1)
                    await until(lambda: "peer secrets differ" in agents[1].uplink.problem)
                    assert service.driver.agents.counters.agents_not_believed >= 1
                    assert await attached(service) == 1

        with caplog.at_level(logging.DEBUG):
            run(tmp_path, scenario)
        assert SECRET not in caplog.text
        assert "another-secret" not in caplog.text

    def test_a_manager_that_does_not_know_it(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agent = FakeAgent("b0", [service.address], LinkCredentials(secrets=(SECRET,)))
                async with attending([agent]):
                    await until(lambda: "it answered, but" in agent.uplink.problem)
                    assert agent.reports == 0

        run(tmp_path, scenario)

    def test_certificates(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            security = {**MUTUAL}
            async with managing(server.url, security=security) as service:
                await until(lambda: service.leads)
                known = LinkCredentials(tls=_tls())
                agents = [
                    FakeAgent("b0", [service.address], known),
                    FakeAgent("b1", [service.address], LinkCredentials(tls=TRUSTING)),
                    FakeAgent("b2", [service.address]),
                ]
                async with attending(agents):
                    await all_attached(service, 1)
                    await until(lambda: agents[0].uplink.manager == service.address)
                    # One after the other: each says so only until it tries again.
                    await until(lambda: bool(agents[1].uplink.problem))
                    await until(lambda: bool(agents[2].uplink.problem))

        run(tmp_path, scenario)

    @pytest.mark.parametrize(
        ("security", "missing"),
        [
            ({}, "set security.tls_cert and security.tls_key, and security.peer_secret"),
            (ENCRYPTED, "set security.peer_secret (or"),
        ],
    )
    def test_beyond_loopback_says_what_is_missing(
        self, security: dict[str, Any], missing: str
    ) -> None:
        values = {"listen": "0.0.0.0:0", "security": security, "data_dir": "d"}
        with pytest.raises(ValueError, match="--insecure") as raised:
            ManagerProcessSettings.model_validate(values)
        assert missing in str(raised.value)
        ManagerProcessSettings.model_validate({**values, "insecure": True})


def _tls() -> Any:
    from dynatops.kit.security.tls import Tls  # noqa: PLC0415

    return Tls(ca=pem("ca.crt"), cert=pem("broker.crt"), key=pem("broker.key"))
