"""Stores over HTTP, and by the command line: who keeps what, and plans of who should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from dynatops.cli.main import main
from dynatops.cli.managers.plan_text import describe_plan
from reconfig_manager.rest.resources.reconfigurations import PlanView
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import is_problem, serving
from tests.support.rest_server import served
from tests.support.store_driver import StoreDriver, leading_stores

ASK = {"reason": "people came back", "replicas": 1}
KEY = {"Idempotency-Key": "monday-1"}
Test = Callable[[StoreDriver, httpx.AsyncClient], Awaitable[None]]


def with_stores(test: Test) -> None:
    async def run() -> None:
        driver = await leading_stores()
        async with serving(driver) as (_, client):
            await test(driver, client)

    asyncio.run(run())


class TestReading:
    def test_who_keeps_what(self) -> None:
        async def test(driver: StoreDriver, client: httpx.AsyncClient) -> None:
            page = (await client.get("/v1/stores?limit=2")).json()
            assert [item["broker_id"] for item in page["items"]] == ["b0", "b1"]
            store = page["items"][1]
            assert (store["capacity"], store["epoch"], store["failure"]) == (4, 0, "")
            assert store["keeps"][0] == {"topics": "news", "ready": True, "events": 100}
            rest = (await client.get(f"/v1/stores?cursor={page['next_cursor']}")).json()
            assert [item["broker_id"] for item in rest["items"]] == ["b2", "b3"]

        with_stores(test)


class TestPlans:
    def test_a_proposal_is_a_dry_run_that_may_be_approved(self) -> None:
        async def test(driver: StoreDriver, client: httpx.AsyncClient) -> None:
            answer = await client.post("/v1/stores/plans", json=ASK)
            assert answer.status_code == 202, answer.text
            location = answer.headers["location"]
            plan = (await client.get(location)).json()
            assert (plan["state"], plan["stores"]["prediction"]["accept"]) == ("PROPOSED", True)
            assert plan["actions"] == ["approve", "cancel"]
            assert driver.kept() == {"b1": {"quake/ca", "news"}}
            answer = await client.post(f"{location}/approve", json={"reason": "go"})
            assert answer.status_code == 202, answer.text
            for _ in range(3):
                await driver.report()
            (listed,) = (await client.get("/v1/reconfigurations")).json()["items"]
            assert (listed["kind"], listed["state"]) == ("stores", "COMMITTED")
            assert listed["benefit"] > listed["moving_cost"]
            assert driver.kept() != {"b1": {"quake/ca", "news"}}
            entries = (await client.get("/v1/audit")).json()["items"]
            actions = [entry["action"] for entry in entries]
            assert actions == ["execute", "approve", "propose_stores"]

        with_stores(test)

    def test_one_key_is_carried_out_once(self) -> None:
        async def test(driver: StoreDriver, client: httpx.AsyncClient) -> None:
            ids = set()
            for _ in range(2):
                answer = await client.post("/v1/stores/plans", json=ASK, headers=KEY)
                ids.add(answer.json()["id"])
            assert len(ids) == 1
            other = await client.post("/v1/reconfigurations", json={"reason": "r"}, headers=KEY)
            is_problem(other, 409, "idempotency_key_reused")

        with_stores(test)

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"reason": "r", "planner": "rnd"},
            {"reason": "r", "replicas": 0},
            {"reason": "r", "topics": 3},
            {"reason": "r", "period_s": True},
        ],
    )
    def test_what_is_wrong_is_said(self, body: dict[str, object]) -> None:
        async def test(driver: StoreDriver, client: httpx.AsyncClient) -> None:
            is_problem(await client.post("/v1/stores/plans", json=body), 422, "invalid")

        with_stores(test)

    def test_too_little_is_known(self) -> None:
        async def test(driver: StoreDriver, client: httpx.AsyncClient) -> None:
            for broker in driver.brokers.values():
                broker.capacity = 0
            await driver.report()
            answer = await client.post("/v1/stores/plans", json=ASK)
            document = is_problem(answer, 409, "model_too_thin")
            assert "store.capacity" in document["detail"]

        with_stores(test)


class TestCommands:
    def test_from_the_list_to_what_was_done(self, capsys: pytest.CaptureFixture[str]) -> None:
        driver = asyncio.run(leading_stores(RestSettings(listen="127.0.0.1:0")))
        with served(driver) as manager:

            def typed(*arguments: str, code: int = 0) -> str:
                assert main([*arguments, "--manager", manager.url]) == code
                return capsys.readouterr().out

            told = ("--reason", "people came back", "--replicas", "1")
            rows = [line.split() for line in typed("stores", "list").splitlines()]
            assert ["b1", "2", "4", "2", "-", "news,", "quake/ca"] in rows
            planned = typed("stores", "plan", *told)
            assert "plan p1-1: PROPOSED" in planned
            assert "requests x hops" in planned
            assert "dynatops approve p1-1 --reason TEXT" in planned
            assert "b1: -2 (quake/ca, news)" in planned
            assigned = typed("stores", "assign", "--no-wait", *told)
            assert "p1-2" in assigned
            for _ in range(3):
                manager.do(driver.report())
            history = typed("plans")
            assert "stores" in history
            assert "COMMITTED" in history
            again = typed("stores", "assign", *told)
            assert "every topic stays where it is" in again

    def test_what_was_measured_is_shown(self) -> None:
        async def go() -> str:
            driver = await leading_stores()
            await driver.answer(periods=3, hops=4)
            plan = await driver.propose(replicas=1, execute=True)
            await driver.answer(periods=7, hops=1)
            view = PlanView.of(driver.plan(plan.id))
            return "\n".join(describe_plan(view.model_dump(mode="json")))

        text = asyncio.run(go())
        assert "hops saved" in text
        assert "4.00" in text
