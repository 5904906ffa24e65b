"""A manager with real connections: plans run, parts fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dynatops.cli.main import main
from dynatops.kit.background import BackgroundError
from dynatops.v1.manager_pb2 import (
    RCFG_INIT,
    ManagerFrame,
    NotLeader,
    Step,
)
from reconfig_manager.model.plan import Phase, PlanState
from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.ports import Audit, AuditEntry
from reconfig_manager.service.agents import METHOD
from reconfig_manager.service.manager_service import ManagerService, ManagerStartError
from reconfig_manager.service.process_settings import ManagerProcessSettings
from reconfig_manager.store.embedded import EmbeddedServer
from tests.support.agents import QUICK, FakeAgent, attending, managing
from tests.support.manager_store import executing, server_pid
from tests.support.services import (
    TERMINAL,
    all_attached,
    ask,
    run,
)
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")


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
                stored = await service.driver.store.read_state()
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

                await service.driver.store.write(
                    fence, Record(1, executing("p0", Phase.FREEZING, 3))
                )
                await service.stop()
            async with managing(server.url) as service:
                # Nobody was ever asked: it is rolled back at once, or when it is too late.
                await until(lambda: service.leads)
                plan = service.driver.manager.leader_state.plan("p0")
                assert plan.phase is Phase.ROLLING_BACK or plan.state is PlanState.ROLLED_BACK

        run(tmp_path, scenario)


@asynccontextmanager
async def planning(service: ManagerService, brokers: int = 8) -> AsyncIterator[list[FakeAgent]]:
    """Brokers whose interests are far from each other on the ring, and a manager that knows."""
    await until(lambda: service.leads)
    agents = [FakeAgent(f"b{i}", [service.address]) for i in range(brokers)]
    async with attending(agents):
        await all_attached(service, brokers)
        state = service.driver.manager.leader_state
        await until(lambda: state.monitor.periods >= 2)
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
                    with pytest.raises(BackgroundError, match="a bug"):
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
        assert main(["manager", "--store", "sqlite:/tmp/x"]) == 2
        shown = capsys.readouterr().err
        assert "there is no such store: write redis://" in shown
        assert "or memory:" in shown
        assert main(["manager", "--store", "memory:x", "--listen", "127.0.0.1:0"]) == 1
        assert "a store in memory has no place" in capsys.readouterr().err
        assert main(["manager", "--store", "memory:", "--set", "store.redis_url=redis://h"]) == 2
        assert "name one place for the state" in capsys.readouterr().err
        assert main(["manager", "--data-dir", str(tmp_path), "--set", "x=1"]) == 2
        assert main(["manager", "--data-dir", str(tmp_path), "--set", "leadership.ttl_s=1"]) == 2
        assert "must be shorter than ttl_s" in capsys.readouterr().err
        former = "manager.monitor.advice_ttl_s"
        assert main(["manager", "--data-dir", str(tmp_path), "--set", f"{former}=9"]) == 2
        assert f"{former} is called advice.ttl_s now" in capsys.readouterr().err
        file = tmp_path / "file"
        file.touch()
        assert main(["manager", "--data-dir", str(file), "--listen", "127.0.0.1:0"]) == 1
        assert "cannot use the data folder" in capsys.readouterr().err


def test_a_manager_with_its_state_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It wants no folder and no Redis: there is no advice then, and metrics say so."""

    async def scenario() -> None:
        values = {**QUICK, "manager_id": "m1", "store": {"url": "memory:"}}
        service = ManagerService(ManagerProcessSettings.model_validate(values))
        await service.start()
        try:
            await until(lambda: service.leads)
            async with planning(service):
                reason = {"reason": "a test", "execute": True, "budget_s": 0.2}
                plan = await ask(service, "/v1/reconfigurations", reason)
                plan = await ended(service, plan["id"])
                assert plan["state"] == "COMMITTED", plan["note"]
            metrics = {family.name: family for family in service.driver.metrics()}
            assert {s.value for s in metrics["dynatops_advice_present"].samples} == {0.0}
            assert metrics["dynatops_advice_failures_total"].samples[0].value == 0.0
            assert "the store may forget what it has confirmed" in caplog.text
        finally:
            await service.stop()

    asyncio.run(scenario())


def test_two_managers_and_their_own_server(tmp_path: Path) -> None:
    """One has a server of its own, the other shares it."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            values = {**QUICK, "manager_id": "own", "data_dir": str(tmp_path)}
            own = ManagerService(ManagerProcessSettings.model_validate(values))
            await own.start()
            stack.push_async_callback(own.stop)
            assert own.opened is not None
            shared_url = own.opened.shared_url
            await until(lambda: own.leads)
            guest = await stack.enter_async_context(managing(shared_url, "guest"))
            own.driver.leadership.step_down()
            await until(lambda: guest.leads)
            # Its server is started again when it dies.
            pid = server_pid(shared_url)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: server_pid(shared_url) != pid)
            await until(lambda: own.leads != guest.leads)

    asyncio.run(scenario())


class TestUplink:
    def test_managers_that_send_a_broker_to_each_other(self) -> None:
        """It asks no more than some times in a row, then with pauses."""

        async def scenario() -> None:
            asked = [0, 0]
            servers: list[grpc.aio.Server] = []
            addresses: list[str] = []
            for number in range(2):

                async def attend(_: object, context: Any, number: int = number) -> None:
                    await context.read()
                    asked[number] += 1
                    frame = ManagerFrame(not_leader=NotLeader(leader=addresses[1 - number]))
                    await context.write(frame.SerializeToString())

                server = grpc.aio.server()
                handler: Any = grpc.stream_stream_rpc_method_handler(attend)
                method = METHOD.rpartition("/")
                handlers = grpc.method_handlers_generic_handler(
                    method[0].strip("/"), {method[2]: handler}
                )
                server.add_generic_rpc_handlers((handlers,))
                addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
                await server.start()
                servers.append(server)
            agent = FakeAgent("b0", addresses[:1])
            paused: list[float] = []
            sleep = asyncio.sleep

            async def pause(seconds: float) -> None:
                paused.append(sum(asked))
                await sleep(min(seconds, 0.01))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("broker_agent.runtime.manager.uplink.asyncio.sleep", pause)
                running = asyncio.create_task(agent.uplink.run())
                while len(paused) < 2:
                    await sleep(0.01)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            assert paused[:2] == [4, 8]
            for server in servers:
                await server.stop(None)

        asyncio.run(scenario())

    def test_without_any_manager_replies_are_dropped(self) -> None:
        async def scenario() -> None:
            agent = FakeAgent("b0", ["127.0.0.1:1"])
            async with attending([agent]):
                await until(lambda: "nobody listens there" in agent.uplink.problem)
                agent.on_step(Step(plan="p", kind=RCFG_INIT))
                assert agent.uplink.counters.manager_replies_dropped == 1
                assert agent.uplink.counters.manager_failures >= 1

        asyncio.run(scenario())


class TestAudit:
    @pytest.mark.parametrize("is_lost", [False, True])
    def test_an_entry_under_way_at_the_end_is_written_once(
        self, tmp_path: Path, *, is_lost: bool
    ) -> None:
        """It has arrived, and the answer comes late, or not at all."""

        async def scenario(server: EmbeddedServer) -> None:
            async with managing(server.url) as service:
                store, arrived, answered = service.driver.store, asyncio.Event(), asyncio.Event()
                append = store.append_audit

                async def slow(*arguments: Any, **options: Any) -> None:
                    await append(*arguments, **options)
                    if not arrived.is_set():
                        arrived.set()
                        await answered.wait()
                        if is_lost:
                            raise StoreAway("no answer")

                store.append_audit = slow  # type: ignore[method-assign]
                entry = AuditEntry(at_s=1.0, actor="ann", action="approve", subject="p1")
                await service.driver.carry_out([Audit(entry)])
                await arrived.wait()
                stopping = asyncio.create_task(service.driver.stop())
                await asyncio.sleep(0)
                answered.set()
                await stopping
                found = await store.audit(None, 10)
                assert [e.subject for e in found.items if e.subject] == ["p1"]

        run(tmp_path, scenario)
