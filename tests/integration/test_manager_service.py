"""A manager with real connections: brokers come and are told where to go, plans run, parts fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dynatops.cli.main import main
from dynatops.peer_credentials import LinkCredentials
from dynatops.v1.manager_pb2 import (
    RCFG_INIT,
    AgentFrame,
    LoadReport,
    ManagerFrame,
    Registration,
    Step,
)
from dynatops.v1.overlay_pb2 import NodeRef
from reconfig_manager.agents import METHOD
from reconfig_manager.embedded import EmbeddedServer
from reconfig_manager.plan import Phase, PlanState
from reconfig_manager.ports import AgentId
from reconfig_manager.process_settings import ManagerProcessSettings
from reconfig_manager.service import ManagerService, ManagerStartError
from tests.support.agents import QUICK, FakeAgent, attending, managing
from tests.support.manager_store import executing, storing
from tests.support.security import ENCRYPTED, MUTUAL, SECRET, TRUSTING, pem
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")
TERMINAL = ("COMMITTED", "ROLLED_BACK", "REJECTED", "EXPIRED", "CANCELLED")
Scenario = Callable[[EmbeddedServer], Awaitable[None]]


def run(folder: Path, scenario: Scenario) -> None:
    async def all_of_it() -> None:
        async with storing(folder) as (server, _):
            await scenario(server)

    asyncio.run(all_of_it())


async def ask(service: ManagerService, path: str, body: object = None) -> Any:
    """Over HTTP, as people do."""

    def request() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(service.http_url + path, data, headers)  # noqa: S310
        with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(request)


async def attached(service: ManagerService) -> int:
    if not service.leads:
        return 0
    return sum(member.attached for member in service.driver.manager.office.members)


async def all_attached(service: ManagerService, brokers: int) -> None:
    async def there() -> bool:
        return await attached(service) == brokers

    await until(there)


@asynccontextmanager
async def call(
    service: ManagerService, *frames: bytes
) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """A stream as anybody might open it."""
    async with grpc.aio.insecure_channel(service.address) as channel:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
        for frame in frames:
            await stream.write(frame)
        yield stream
        stream.cancel()


async def last_words(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> str:
    """Why the manager ended it; frames before that are taken, as gRPC wants."""
    with contextlib.suppress(grpc.RpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return str(await stream.details())


async def is_attended(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> bool:
    raw = await stream.read()
    return isinstance(raw, bytes) and ManagerFrame.FromString(raw).HasField("attended")


def registration(name: str = "b1", **values: Any) -> bytes:
    node = NodeRef(node_id=7, broker_id=name, address="h:1", incarnation=1)
    given: dict[str, Any] = {"protocol_min": 1, "protocol_max": 1, "node": node, **values}
    return AgentFrame(registration=Registration(**given)).SerializeToString()


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
                    agent.uplink.look()
                    members = service.driver.manager.office.members
                    await until(lambda: members.epoch_max == 6)
                    # On the same stream.
                    assert agent.uplink.counters.manager_streams == 1

        run(tmp_path, scenario)

    def test_followers_say_who_leads(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url, "m1") as first:
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

    def test_a_broker_that_obeys_a_higher_fence(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agent = FakeAgent("b0", [service.address])
                agent.fence = 77
                async with attending([agent]):
                    leadership = service.driver.leadership
                    await until(lambda: (leadership.fence or 0) > 77)
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
        monkeypatch.setattr("reconfig_manager.agents.HELLO_TIMEOUT_S", 0.1)
        monkeypatch.setattr("reconfig_manager.agents.UNNAMED_MAX", 1)

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                async with call(service) as first, call(service) as second:
                    codes = {await first.code(), await second.code()}
                    assert grpc.StatusCode.DEADLINE_EXCEEDED in codes

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
                    assert agents[0].uplink.manager == service.address
                    await until(lambda: all(agent.uplink.problem for agent in agents[1:]))

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
    from dynatops.tls import Tls  # noqa: PLC0415

    return Tls(ca=pem("ca.crt"), cert=pem("broker.crt"), key=pem("broker.key"))


class TestPlans:
    def test_from_proposal_to_committed(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service, planning(service) as agents:
                plan = await ask(
                    service,
                    "/v1/reconfigurations",
                    {"reason": "a test", "execute": True, "budget_s": 0.2},
                )
                plan = await ended(service, plan["id"])
                assert plan["state"] == "COMMITTED", plan["note"]
                assert len(plan["moves"]) >= 2
                stored = await service.store.read_state()
                assert stored.placement.plan_id == plan["id"]
                hosts = {
                    placed.broker_id: int(placed.node, 16) for placed in stored.placement.hosts
                }
                assert {agent.name: agent.node_id for agent in agents} == hosts
                phases = [entry["phase"] for entry in plan["execution"]["journal"]]
                assert phases == [str(phase) for phase in Phase if phase is not Phase.ROLLING_BACK]

                async def audited() -> bool:
                    page = await ask(service, "/v1/audit")
                    return {e["action"] for e in page["items"]} == {"propose", "execute"}

                await until(audited)

        run(tmp_path, scenario)

    def test_the_next_leader_ends_what_the_first_began(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url, "m1") as first, planning(first) as agents:
                await until(lambda: first.leads)
                async with managing(server.url, "m2") as second:
                    for agent in agents:
                        agent.uplink._settings = agent.uplink._settings.model_copy(
                            update={"addresses": (first.address, second.address)}
                        )
                        # They freeze, and do not answer: the plan hangs before its commit point.
                        agent.mute = True
                    body = {"reason": "a test", "execute": True, "budget_s": 0.2}
                    plan = await ask(first, "/v1/reconfigurations", body)
                    await until(lambda: all(agent.steps for agent in agents))
                    await first.kill()
                    for agent in agents:
                        agent.mute = False
                        agent.frozen_by = plan["id"]
                    ended_as = (await ended(second, plan["id"]))["state"]
                    assert ended_as == "ROLLED_BACK"
                    fences = [step.fence for step in agents[0].steps]
                    assert fences == sorted(fences)
                    assert fences[-1] > fences[0]

        run(tmp_path, scenario)

    def test_the_store_is_away_for_a_while(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                agents = [FakeAgent(f"b{i}", [service.address]) for i in range(3)]
                async with attending(agents):
                    await all_attached(service, 3)
                    os.kill(server.pid, signal.SIGSTOP)
                    try:
                        await until(lambda: not service.leads)
                        await until(lambda: all(not agent.uplink.manager for agent in agents))
                        assert "store" in service.driver.problems()
                    finally:
                        os.kill(server.pid, signal.SIGCONT)
                    await all_attached(service, 3)
                    assert service.driver.problems() == {}

        run(tmp_path, scenario)

    def test_a_state_that_cannot_be_read(self, tmp_path: Path) -> None:
        """Nobody leads, and the manager goes on trying."""

        async def scenario(server: EmbeddedServer) -> None:
            from redis.asyncio import Redis  # noqa: PLC0415

            redis = Redis.from_url(server.url)
            await redis.set("dynatops:manager:placement", b"{}}")
            async with managing(server.url) as service:
                leadership = service.driver.leadership
                await until(lambda: leadership._fence_min > 0 and leadership.fence is None)
                assert not service.leads
                await redis.delete("dynatops:manager:placement")
                await until(lambda: service.leads)
            await redis.aclose()

        run(tmp_path, scenario)

    def test_a_plan_is_found_in_the_store(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)
                fence = service.driver.leadership.fence
                assert fence is not None
                from reconfig_manager.ports import Record  # noqa: PLC0415

                await service.store.write(fence, Record(1, executing("p0", Phase.FREEZING, 3)))
                await service.stop()
            async with managing(server.url) as service:
                # Nobody was ever asked: it is rolled back at once, or when it is too late.
                await until(lambda: service.leads)
                plan = service.driver.manager.office.plan("p0")
                assert plan.phase is Phase.ROLLING_BACK or plan.state is PlanState.ROLLED_BACK

        run(tmp_path, scenario)


@asynccontextmanager
async def planning(service: ManagerService, brokers: int = 8) -> AsyncIterator[list[FakeAgent]]:
    """Brokers whose interests are far from each other on the ring, and a manager that knows."""
    await until(lambda: service.leads)
    agents = [FakeAgent(f"b{i}", [service.address]) for i in range(brokers)]
    async with attending(agents):
        await all_attached(service, brokers)
        office = service.driver.manager.office
        await until(lambda: office.monitor.periods >= 2)
        await until(service.driver.solver.ready.is_set, timeout_s=60)
        yield agents


async def ended(service: ManagerService, plan_id: str) -> Any:
    plan: Any = {}

    async def over() -> bool:
        nonlocal plan
        if not service.leads:
            return False
        plan = await ask(service, f"/v1/reconfigurations/{plan_id}")
        return plan["state"] in TERMINAL

    await until(over, timeout_s=20, what=f"plan {plan_id} over")
    return plan


class TestFailing:
    def test_a_broken_core_ends_the_manager(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                await until(lambda: service.leads)

                def broken(*_: object) -> None:
                    raise RuntimeError("a bug")

                monkeypatch.setattr(service.driver.manager, "report", broken)
                agent = FakeAgent("b0", [service.address])
                async with attending([agent]):
                    with pytest.raises(RuntimeError, match="a bug"):
                        await asyncio.wait_for(service.run(), 10)

        run(tmp_path, scenario)

    def test_a_solver_that_dies_or_takes_too_long(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service, planning(service):
                solver = service.driver.solver
                body = {"reason": "a test", "budget_s": 30.0}
                plan = await ask(service, "/v1/reconfigurations", body)
                await until(lambda: solver._busy)
                os.kill(solver.pid, signal.SIGKILL)
                plan = await ended(service, plan["id"])
                assert plan["state"] == "REJECTED"
                assert "ended without an answer" in plan["note"]
                # The next one finds a solver again.
                await until(solver.ready.is_set, timeout_s=60)
                body["budget_s"] = 0.1
                plan = await ask(service, "/v1/reconfigurations", body)

                async def computed() -> bool:
                    found = await ask(service, f"/v1/reconfigurations/{plan['id']}")
                    return found["prediction"] is not None

                await until(computed, timeout_s=20)

        run(tmp_path, scenario)

    def test_ports_that_are_taken(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as first:
                http = first.http_url.removeprefix("http://")
                for values in (
                    {"listen": first.address},
                    {"rest": {"listen": http}},
                ):
                    settings = {**QUICK, **values, "store": {"redis_url": server.url}}
                    service = ManagerService(ManagerProcessSettings.model_validate(settings))
                    with pytest.raises(ManagerStartError, match="cannot "):
                        await service.start()

        run(tmp_path, scenario)

    def test_managers_need_a_place_for_the_state(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["manager"]) == 2
        assert "name one place for the state" in capsys.readouterr().err
        assert main(["manager", "--redis", "http://u:hush@h"]) == 2
        shown = capsys.readouterr().err
        assert "write redis://" in shown
        assert "hush" not in shown
        assert main(["manager", "--data-dir", str(tmp_path), "--set", "x=1"]) == 2
        assert main(["manager", "--data-dir", str(tmp_path), "--set", "leadership.ttl_s=1"]) == 2
        assert "must be shorter than ttl_s" in capsys.readouterr().err
        file = tmp_path / "file"
        file.touch()
        assert main(["manager", "--data-dir", str(file), "--listen", "127.0.0.1:0"]) == 1
        assert "cannot use the data folder" in capsys.readouterr().err


def test_two_managers_and_their_own_server(tmp_path: Path) -> None:
    """One has a server of its own, the other shares it."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            values = {**QUICK, "manager_id": "own", "data_dir": str(tmp_path)}
            own = ManagerService(ManagerProcessSettings.model_validate(values))
            await own.start()
            stack.push_async_callback(own.stop)
            assert own.embedded is not None
            await until(lambda: own.leads)
            guest = await stack.enter_async_context(managing(own.embedded.url, "guest"))
            own.driver.leadership.step_down()
            await until(lambda: guest.leads)
            # Its server is started again when it dies.
            own.embedded.kill()
            await until(lambda: own.embedded is not None and own.embedded.restarts == 1)
            await until(lambda: own.leads != guest.leads)

    asyncio.run(scenario())
