"""What can be read over HTTP: views, pages, tags, problems; what a manager that follows does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from overlay.base.identifiers import key_of
from overlay.placement.geometry import RingGeometry
from reconfig_manager.rest import problems
from reconfig_manager.rest.app import OPEN_PATHS
from reconfig_manager.rest.resources import OPEN_RESOURCES, RESOURCES
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import (
    ManagerDriver,
    is_problem,
    leading,
    serving,
    with_manager,
)
from tests.support.security import table

PLANS = "/v1/reconfigurations"


async def pages(client: httpx.AsyncClient, path: str, limit: int) -> list[list[Any]]:
    """Following Link headers."""
    found: list[list[Any]] = []
    following = f"{path}{'&' if '?' in path else '?'}limit={limit}"
    while following:
        answer = await client.get(following)
        assert answer.status_code == 200
        found.append(answer.json()["items"])
        following = answer.links.get("next", {}).get("url", "")
        assert bool(following) == (answer.json()["next_cursor"] is not None)
    return found


class TestViews:
    def test_the_cluster(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            cluster = (await client.get("/v1/cluster")).json()
            assert cluster["manager"] == "m1"
            assert (cluster["brokers"], cluster["brokers_attached"]) == (8, 8)
            assert cluster["topics"] == 9
            assert cluster["sessions"] == 80
            assert cluster["events_per_s"] == pytest.approx(800)
            assert cluster["model"]["ready"]
            assert cluster["executing"] is None
            driver.hold_steps = True
            answer = await client.post(PLANS, json={"reason": "x", "execute": True})
            driver.clock_s += 5
            cluster = (await client.get("/v1/cluster")).json()
            assert cluster["executing"]["plan_id"] == answer.json()["id"]
            assert cluster["executing"]["phase"] == "FREEZING"

        with_manager(test)

    def test_a_broker_that_is_away(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            await driver.carry_out(driver.manager.gone(driver.agent("b3"), driver.clock_s))
            driver.clock_s += 1
            brokers = (await client.get("/v1/brokers")).json()["items"]
            assert [b["broker_id"] for b in brokers if not b["attached"]] == ["b3"]
            assert {b["silent_s"] for b in brokers} == {11.0}

        with_manager(test)

    @pytest.mark.parametrize("topic", ["news/1", "a/b//c"])
    def test_a_tree_is_that_of_the_geometry(self, topic: str) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            tree = (await client.get(f"/v1/topics/{topic}/tree")).json()
            assert tree["topic"] == topic
            geometry = RingGeometry(b.node_id for b in driver.brokers.values())
            hosts = {geometry.index_of(b.node_id): b.broker_id for b in driver.brokers.values()}
            subscribing = set(driver.manager.leader_state.monitor.subscribers(topic))
            shape = geometry.tree(
                geometry.successor_of(key_of(topic)),
                [node for node, broker in hosts.items() if broker in subscribing],
            )
            assert {n["broker_id"]: n["parent"] for n in tree["nodes"]} == {
                hosts[shape.root]: None,
                **{hosts[node]: hosts[parent] for node, parent in shape.parents.items()},
            }
            assert tree["relays"] == len(shape.relays)
            encoded = await client.get(f"/v1/topics/{topic.replace('/', '%2F')}/tree")
            assert encoded.json() == tree

        with_manager(test)

    def test_a_topic_of_nobodys(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for topic in ("nothing", "news", ""):
                answer = await client.get(f"/v1/topics/{topic}/tree")
                assert is_problem(answer, 404, "unknown_topic")

        with_manager(test)

    def test_the_cost_is_what_a_plan_begins_with(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            cost = (await client.get("/v1/cost")).json()
            plan_id = (await client.post(PLANS, json={"reason": "x"})).json()["id"]
            plan = (await client.get(f"{PLANS}/{plan_id}")).json()
            assert cost["cost"] == plan["prediction"]["cost_before"]
            assert cost["threshold"] == plan["prediction"]["threshold"]
            assert cost["reconfigurable"]
            # A policy with another T_free has another cost, at once.
            policy = {"policy": {"t_free_s": 7200}, "reason": "x"}
            await client.put("/v1/policy", json=policy, headers={"If-Match": "*"})
            doubled = (await client.get("/v1/cost")).json()["cost"]["total"]
            assert doubled == pytest.approx(2 * cost["cost"]["total"])

        with_manager(test)

    def test_figures_for_prometheus(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            await client.get("/v1/nothing")
            answer = await client.get("/v1/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            lines = answer.text.splitlines()
            for line in (
                "dynatops_leading 1",
                "dynatops_brokers 8",
                'dynatops_plans{state="committed"} 0',
                'dynatops_policy_mode{mode="manual"} 1',
                'dynatops_http_requests_total{method="GET",status="404"} 1',
                "dynatops_store_up 1",
            ):
                assert line in lines
            names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
            assert len(names) == len(set(names))
            samples = [line for line in lines if not line.startswith("#")]
            assert all(sample.split("{")[0].split()[0] in names for sample in samples)

        with_manager(test)


class TestPages:
    def test_every_item_is_on_one_page(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for number in range(5):
                await client.post(PLANS, json={"reason": f"plan {number}"})
            for path, count in (
                ("/v1/brokers", 8),
                ("/v1/topics", 9),
                ("/v1/topics?prefix=news/", 8),
                (PLANS, 5),
                ("/v1/audit", 5),
            ):
                whole = (await client.get(path)).json()["items"]
                assert len(whole) == count
                for limit in (1, 2, 3, count, count + 1):
                    found = await pages(client, path, limit)
                    assert [item for page in found for item in page] == whole
                    assert all(len(page) == limit for page in found[:-1])

        with_manager(test)

    def test_plans_and_audit_begin_with_the_newest(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for number in range(3):
                await client.post(PLANS, json={"reason": str(number)})
            for path in (PLANS, "/v1/audit"):
                items = (await client.get(path)).json()["items"]
                assert [item["reason"] for item in items] == ["2", "1", "0"]

        with_manager(test)

    @pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "cursor=xyz", "cursor=0"])
    def test_what_is_no_page(self, query: str) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            is_problem(await client.get(f"/v1/brokers?{query}"), 422, "invalid")

        with_manager(test)

    def test_a_cursor_that_was_never_given_out(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for path in (PLANS, "/v1/audit"):
                is_problem(await client.get(f"{path}?cursor=ff"), 404, "unknown_cursor")
            # Names go on after any text.
            assert (await client.get("/v1/topics?cursor=ff")).status_code == 200

        with_manager(test)


class TestTags:
    def test_what_is_known_is_not_sent_again(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.hold_solver = True
            plan_id = (await client.post(PLANS, json={"reason": "x"})).json()["id"]
            for path in (f"{PLANS}/{plan_id}", "/v1/policy", "/v1/placement"):
                tag = (await client.get(path)).headers["etag"]
                for known in (tag, f'"other", W/{tag}', "*"):
                    answer = await client.get(path, headers={"If-None-Match": known})
                    assert (answer.status_code, answer.content) == (304, b"")
                    assert answer.headers["etag"] == tag
                answer = await client.get(path, headers={"If-None-Match": '"other"'})
                assert answer.status_code == 200
            tag = (await client.get(f"{PLANS}/{plan_id}")).headers["etag"]
            await driver.let_go()
            answer = await client.get(f"{PLANS}/{plan_id}", headers={"If-None-Match": tag})
            assert answer.status_code == 200

        with_manager(test)


class TestProblems:
    def test_no_such_path(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for path in ("/", "/v1", "/v1/cluster/", "/v2/cluster", "/docs", "/v1/policy/x"):
                problem = is_problem(await client.get(path), 404, "not_found")
                assert problem["instance"] == path

        with_manager(test)

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("DELETE", "/v1/policy", "GET, PUT"),
            ("PUT", PLANS, "GET, POST"),
            ("GET", f"{PLANS}/p1/approve", "POST"),
            ("POST", "/v1/cluster", "GET"),
            ("QUERY", "/v1/cluster", "GET"),
        ],
    )
    def test_no_such_method(self, method: str, path: str, allowed: str) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            answer = await client.request(method, path)
            is_problem(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == allowed

        with_manager(test)

    def test_a_bug_is_a_problem_too(self) -> None:
        async def run() -> None:
            driver = await leading()
            async with serving(driver) as (app, _):
                transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
                app.state.facade = None
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://localhost"
                ) as client:
                    problem = is_problem(await client.get("/v1/policy"), 500, "internal_error")
                    assert "NoneType" not in problem["detail"]

        asyncio.run(run())


class TestFollowing:
    """A manager that does not lead."""

    LIVE = ("/v1/cluster", "/v1/brokers?limit=2", "/v1/cost", "/v1/topics/a%2Fb/tree", "/v1/events")

    def test_it_sends_on_what_only_the_leader_can_do(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            await driver.depose()
            driver.leader_url = "http://10.0.0.2:7480"
            for path in self.LIVE:
                answer = await client.get(path)
                assert answer.status_code == 307
                assert answer.headers["location"] == driver.leader_url + path
            for path in (PLANS, f"{PLANS}/p1-1/approve", f"{PLANS}/p1-1/cancel"):
                answer = await client.post(path, json={"reason": "x"})
                assert answer.headers["location"] == driver.leader_url + path
            body = {"policy": {}, "reason": "x"}
            answer = await client.put("/v1/policy", json=body, headers={"If-Match": "*"})
            assert answer.status_code == 307
            # The leader writes them down.
            assert (await client.get("/v1/audit")).json()["items"] == []
            assert (await client.get("/v1/readyz")).json() == {"status": "ready", "leads": False}

        with_manager(test)

    def test_it_answers_from_the_store(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = (await client.post(PLANS, json={"reason": "x", "execute": True})).json()["id"]
            live = (await client.get("/v1/placement")).json()
            policy = (await client.get("/v1/policy")).json()
            await driver.depose()
            assert (await client.get(f"{PLANS}/{plan_id}")).json()["state"] == "COMMITTED"
            assert [p["id"] for p in (await client.get(PLANS)).json()["items"]] == [plan_id]
            assert len((await client.get("/v1/audit")).json()["items"]) == 2
            assert (await client.get("/v1/policy")).json() == policy
            stored = (await client.get("/v1/placement")).json()
            assert not stored["live"]
            for name in ("epoch", "plan_id"):
                assert stored[name] == live[name]
            assert "dynatops_leading 0" in (await client.get("/v1/metrics")).text

        with_manager(test)

    def test_while_nobody_leads_one_is_to_come_again(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            await driver.depose()
            for path in self.LIVE:
                answer = await client.get(path)
                is_problem(answer, 503, "no_leader")
                assert int(answer.headers["retry-after"]) > 0
            answer = await client.post(PLANS, json={"reason": "x"})
            is_problem(answer, 503, "no_leader")
            assert is_problem(await client.get("/v1/readyz"), 503, "not_ready")
            assert (await client.get("/v1/healthz")).status_code == 200

        with_manager(test)


def test_every_code_of_a_problem_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "manager.md").read_text()
    codes = {
        *problems.CODES.values(),
        *(code for _, _, code in problems.REFUSALS),
        "not_ready",
        "late",
    }
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []


def test_there_are_so_many_watchers_at_most() -> None:
    async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
        with driver.facade.watch("", "viewer"):
            answer = await client.get("/v1/events")
            is_problem(answer, 503, "too_many_watchers")

    with_manager(test, RestSettings(watchers_max=1))


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/v1/cluster?x=1", "query.x: there are no parameters"),
        ("/v1/brokers?limt=5", "query.limt: no such parameter; there are: cursor, limit"),
        ("/v1/brokers?limit=5&limit=6", "query.limit: given twice"),
        ("/v1/topics?a=1&b=2&prefix=x", "query.a: no such parameter; there are: cursor, limit"),
        ("/v1/healthz?verbose", "query.verbose: there are no parameters"),
        ("/v1/metrics?name[]=x", "query.name[]: there are no parameters"),
    ],
)
def test_parameters_that_there_are_not_are_refused(path: str, detail: str) -> None:
    async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
        problem = is_problem(await client.get(path), 422, "invalid")
        assert problem["detail"].startswith(detail)

    with_manager(test)


@pytest.mark.parametrize("asks", [True, False])
def test_the_schema_says_what_asks_for_a_token(tmp_path: Path, *, asks: bool) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(table("ops", "t" * 20, role='"admin"'))
    settings = RestSettings(tokens=str(tokens) if asks else "")

    async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
        schema = (await client.get("/v1/openapi.json")).json()
        assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        wanted: list[dict[str, Any]] = [{"token": []}] if asks else [{"token": []}, {}]
        for path, operations in schema["paths"].items():
            is_open = path in OPEN_PATHS
            for operation in operations.values():
                assert operation.get("security") == (None if is_open else wanted), path

    with_manager(test, settings)


def test_each_resource_is_registered() -> None:
    registered = [Path(str(module.__file__)) for module in (*RESOURCES, *OPEN_RESOURCES)]
    there = set(registered[0].parent.glob("*.py")) - {registered[0].with_name("__init__.py")}
    assert set(registered) == there
    assert len(registered) == len(there)
