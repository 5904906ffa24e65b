"""Commands over HTTP: plans from proposal to end, what is refused and why, the policy, keys."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.manager_driver import ManagerDriver, is_problem, with_manager

PLANS = "/v1/reconfigurations"
ASK = {"reason": "mornings are slow"}
GO = {"reason": "go"}
KEY = {"Idempotency-Key": "monday-1"}


async def propose(client: httpx.AsyncClient, **more: Any) -> str:
    answer = await client.post(PLANS, json={**ASK, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def get(client: httpx.AsyncClient, plan_id: str) -> dict[str, Any]:
    answer = await client.get(f"{PLANS}/{plan_id}")
    assert answer.status_code == 200
    document: dict[str, Any] = answer.json()
    return document


async def audited(client: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    """(action, subject, outcome), the oldest first."""
    items = (await client.get("/v1/audit")).json()["items"]
    return [(e["action"], e["subject"], e["outcome"]) for e in reversed(items)]


class TestPlans:
    def test_a_proposal_is_a_dry_run(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.hold_solver = True
            answer = await client.post(PLANS, json={**ASK, "max_moves": 3, "weights": {"delay": 2}})
            assert answer.status_code == 202
            plan = answer.json()
            assert answer.headers["location"] == f"{PLANS}/{plan['id']}"
            assert (plan["state"], plan["prediction"]) == ("PROPOSED", None)
            assert plan["actions"] == ["cancel"]
            assert plan["options"]["max_moves"] == 3
            assert plan["options"]["delay_weight"] == 2
            await driver.let_go()
            plan = await get(client, plan["id"])
            assert plan["state"] == "PROPOSED"
            assert plan["prediction"]["accept"]
            assert 0 < len(plan["moves"]) <= 3
            assert plan["actions"] == ["approve", "cancel"]
            assert {broker.epoch for broker in driver.brokers.values()} == {0}

        with_manager(test)

    def test_approving_executes(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = await propose(client)
            answer = await client.post(f"{PLANS}/{plan_id}/approve", json=GO)
            assert answer.status_code == 202
            plan = await get(client, plan_id)
            assert plan["state"] == "COMMITTED"
            assert plan["approved_by"] == "anonymous"
            assert plan["actions"] == []
            assert plan["execution"]["epoch"] == 1
            placement = (await client.get("/v1/placement")).json()
            hosts = {host["broker_id"]: host["node"] for host in placement["hosts"]}
            assert placement["epoch"] == 1
            for move in plan["moves"]:
                assert hosts[move["broker_id"]] == move["to_node"]

        with_manager(test)

    def test_execute_goes_all_the_way(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = await propose(client, execute=True)
            assert (await get(client, plan_id))["state"] == "COMMITTED"
            assert await audited(client) == [
                ("propose", plan_id, "accepted"),
                ("execute", plan_id, "COMMITTED"),
            ]

        with_manager(test)

    def test_what_was_measured_is_beside_what_was_predicted(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            await driver.report()
            plan_id = await propose(client, execute=True)
            assert (await get(client, plan_id))["measurement"] is None
            for _ in range(5):
                await driver.report()
            measured = (await get(client, plan_id))["measurement"]
            assert measured["predicted_benefit"] > 0
            assert measured["before"]["hops_per_event"] == 3
            assert measured["after"]["hops_per_event"] == 2
            listed = (await client.get(PLANS)).json()["items"][0]
            assert listed["measured_benefit"] == measured["measured_benefit"]

        with_manager(test)

    def test_cancelling_drops_a_proposal_and_rolls_an_execution_back(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = await propose(client)
            answer = await client.post(f"{PLANS}/{plan_id}/cancel", json=GO)
            assert (answer.status_code, answer.json()["state"]) == (202, "CANCELLED")
            driver.hold_steps = True
            plan_id = await propose(client, execute=True)
            plan = await get(client, plan_id)
            assert (plan["state"], plan["phase"]) == ("EXECUTING", "FREEZING")
            assert plan["actions"] == ["cancel"]
            answer = await client.post(f"{PLANS}/{plan_id}/cancel", json=GO)
            assert answer.json()["phase"] == "ROLLING_BACK"
            assert answer.json()["actions"] == []
            await driver.let_go()
            plan = await get(client, plan_id)
            assert plan["state"] == "ROLLED_BACK"
            assert "anonymous" in plan["execution"]["failure"]

        with_manager(test)


class TestRefusals:
    def test_a_stale_plan(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            old = await propose(client, max_moves=2)
            newer = await propose(client, max_moves=4)
            await client.post(f"{PLANS}/{newer}/approve", json=GO)
            answer = await client.post(f"{PLANS}/{old}/approve", json=GO)
            problem = is_problem(answer, 409, "stale_plan")
            assert "propose again" in problem["detail"]
            assert (await get(client, old))["state"] == "PROPOSED"
            assert (await audited(client))[-1] == ("approve", old, "StalePlan")

        with_manager(test)

    def test_of_two_executions_at_once_one_is_refused(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.hold_steps = True
            plans = [await propose(client, max_moves=2), await propose(client, max_moves=4)]
            answers = await asyncio.gather(
                *(client.post(f"{PLANS}/{plan_id}/approve", json=GO) for plan_id in plans)
            )
            accepted, refused = sorted(answers, key=lambda answer: answer.status_code)
            assert accepted.status_code == 202
            is_problem(refused, 409, "busy")
            assert sorted(outcome for _, _, outcome in (await audited(client))[-2:]) == [
                "Busy",
                "accepted",
            ]

        with_manager(test)

    def test_of_two_proposals_to_execute_at_once_one_is_refused(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.hold_solver = driver.hold_steps = True
            ask = {**ASK, "execute": True}
            answers = await asyncio.gather(*(client.post(PLANS, json=ask) for _ in range(2)))
            accepted, refused = sorted(answers, key=lambda answer: answer.status_code)
            assert accepted.status_code == 202
            is_problem(refused, 409, "busy")
            assert {outcome for _, _, outcome in await audited(client)} == {"accepted", "Busy"}

        with_manager(test)

    def test_what_is_over_cannot_be_approved(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = await propose(client)
            await client.post(f"{PLANS}/{plan_id}/cancel", json=GO)
            for action in ("approve", "cancel"):
                answer = await client.post(f"{PLANS}/{plan_id}/{action}", json=GO)
                problem = is_problem(answer, 409, "illegal_transition")
                assert "CANCELLED" in problem["detail"]

        with_manager(test)

    def test_a_plan_that_is_not_there(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            is_problem(await client.get(f"{PLANS}/p9-9"), 404, "unknown_plan")
            answer = await client.post(f"{PLANS}/p9-9/approve", json=GO)
            is_problem(answer, 404, "unknown_plan")
            assert await audited(client) == [("approve", "p9-9", "UnknownPlan")]

        with_manager(test)

    def test_a_model_that_is_too_thin(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.clock_s += 60
            problem = is_problem(await client.post(PLANS, json=ASK), 409, "model_too_thin")
            assert "0 of 8 brokers" in problem["detail"]
            cluster = (await client.get("/v1/cluster")).json()
            assert cluster["model"] == {
                "ready": False, "problem": problem["detail"], "completeness": 0.0, "periods": 2,
            }  # fmt: skip
            is_problem(await client.get("/v1/cost"), 409, "model_too_thin")

        with_manager(test)

    @pytest.mark.parametrize(
        ("body", "location"),
        [
            ({}, "body.reason"),
            ({"reason": ""}, "body.reason"),
            ({"reason": "  "}, "body.reason"),
            ({"reason": "x", "algorithm": "magic"}, "body.algorithm"),
            ({"reason": "x", "budget_s": 0}, "body.budget_s"),
            ({"reason": "x", "budget_s": True}, "body"),
            ({"reason": "x", "max_moves": "7"}, "body"),
            ({"reason": "x", "execute": "yes"}, "body.execute"),
            ({"reason": "x", "weights": {"relays": 2}}, "body.weights.relays"),
            ({"reason": "x", "algorithm": "lsap", "max_moves": 3}, "body"),
            ({"reason": "x", "speed": 9}, "body.speed"),
            ([], "body"),
        ],
    )
    def test_what_makes_no_sense(self, body: Any, location: str) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            problem = is_problem(await client.post(PLANS, json=body), 422, "invalid")
            assert location in [error["location"] for error in problem["errors"]]
            assert await audited(client) == [("propose", "", "Invalid")]
            assert not driver.plans

        with_manager(test)

    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"\xff\xfe",
            b"[" * 30_000,
            b'{"reason": "x", "weights": {"delay": NaN}}',
            b'{"reason": "x", "budget_s": Infinity}',
            b'{"reason": "x", "budget_s": 1e999}',
            b'{"reason": "x", "reason": "y"}',
        ],
    )
    def test_what_is_no_json(self, content: bytes) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            headers = {"Content-Type": "application/json"}
            answer = await client.post(PLANS, content=content, headers=headers)
            problem = is_problem(answer, 400, "malformed")
            assert problem["detail"].startswith("the body is no JSON: ")
            assert await audited(client) == [("propose", "", "Malformed")]

        with_manager(test)

    def test_no_body_at_all(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            is_problem(await client.post(PLANS), 422, "invalid")

        with_manager(test)

    @pytest.mark.parametrize("kind", ["Application/JSON", "application/json; charset=utf-8"])
    def test_other_ways_to_say_json(self, kind: str) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            headers = {"Content-Type": kind}
            answer = await client.post(PLANS, content=b'{"reason": "x"}', headers=headers)
            assert answer.status_code == 202

        with_manager(test)

    def test_a_parameter_that_there_is_not(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            answer = await client.post(f"{PLANS}?execute=true", json=ASK)
            is_problem(answer, 422, "invalid")
            assert not driver.plans
            assert await audited(client) == [("propose", "", "Invalid")]

        with_manager(test)

    def test_options_that_do_not_go_with_the_policys(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            policy = {"policy": {"solver": {"algorithm": "lsap"}}, "reason": "simple"}
            answer = await client.put("/v1/policy", json=policy, headers={"If-Match": "*"})
            assert answer.status_code == 200
            answer = await client.post(PLANS, json={**ASK, "max_moves": 3})
            is_problem(answer, 409, "conflicting_options")
            assert (await audited(client))[-1] == ("propose", "", "ConflictingOptionsError")

        with_manager(test)

    def test_while_the_policy_is_off_nothing_is_executed(self) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            policy = {"policy": {"mode": "off"}, "reason": "holidays"}
            await client.put("/v1/policy", json=policy, headers={"If-Match": "*"})
            plan_id = await propose(client)
            is_problem(await client.post(f"{PLANS}/{plan_id}/approve", json=GO), 409, "refused")
            answer = await client.post(PLANS, json={**ASK, "execute": True})
            is_problem(answer, 409, "refused")

        with_manager(test)

    def test_without_its_store_nothing_is_promised(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            plan_id = await propose(client)
            driver.store.away = True
            answer = await client.post(PLANS, json=ASK)
            is_problem(answer, 503, "store_away")
            assert answer.headers["retry-after"]
            is_problem(await client.post(PLANS, json={"reason": ""}), 422, "invalid")
            # What the leader has at hand it shows.
            assert (await get(client, plan_id))["state"] == "PROPOSED"
            is_problem(await client.get(PLANS), 503, "store_away")
            answer = await client.get("/v1/readyz")
            assert is_problem(answer, 503, "not_ready")["checks"] == {"store": "no answer"}
            assert "dynatops_audit_failures_total 1" in (await client.get("/v1/metrics")).text

        with_manager(test)


class TestKeys:
    def test_the_same_request_twice_is_one_plan(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            answers = [await client.post(PLANS, json=ASK, headers=KEY) for _ in range(3)]
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert len(driver.plans) == 1

        with_manager(test)

    def test_also_at_the_same_time(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            answers = await asyncio.gather(
                *(client.post(PLANS, json=ASK, headers=KEY) for _ in range(5))
            )
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert len(driver.plans) == 1

        with_manager(test)

    def test_another_request_with_the_key_is_refused(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            await client.post(PLANS, json=ASK, headers=KEY)
            answer = await client.post(PLANS, json={**ASK, "execute": True}, headers=KEY)
            is_problem(answer, 409, "idempotency_key_reused")
            assert len(driver.plans) == 1

        with_manager(test)

    def test_a_refused_request_does_not_use_the_key_up(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            driver.clock_s += 60
            answer = await client.post(PLANS, json=ASK, headers=KEY)
            is_problem(answer, 409, "model_too_thin")
            await driver.report()
            answer = await client.post(PLANS, json=ASK, headers=KEY)
            assert answer.status_code == 202

        with_manager(test)


class TestPolicy:
    def test_it_is_replaced_if_it_is_the_one_that_was_read(self) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            read = await client.get("/v1/policy")
            tag = read.headers["etag"]
            policy = {**read.json()["policy"], "mode": "auto", "t_free_s": 1800}
            body = {"policy": policy, "reason": "evenings"}
            answer = await client.put("/v1/policy", json=body, headers={"If-Match": tag})
            assert answer.status_code == 200
            assert answer.json()["policy"]["mode"] == "auto"
            assert answer.json()["version"] == 1
            assert driver.manager.leader_state.rules.t_free_s == 1800
            again = await client.put("/v1/policy", json=body, headers={"If-Match": tag})
            assert "version 1, not 0" in is_problem(again, 412, "stale_policy")["detail"]
            read = await client.get("/v1/policy")
            assert read.headers["etag"] == answer.headers["etag"]
            assert await audited(client) == [
                ("set_policy", "policy", "accepted"),
                ("set_policy", "policy", "StalePolicy"),
            ]

        with_manager(test)

    @pytest.mark.parametrize(
        ("if_match", "status", "code"),
        [
            (None, 428, "if_match_required"),
            ('"7"', 412, "stale_policy"),
            ('W/"0"', 412, "stale_policy"),
            ("0", 412, "stale_policy"),
            ('"' + "9" * 30 + '"', 412, "stale_policy"),
        ],
    )
    def test_otherwise_not(self, if_match: str | None, status: int, code: str) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            headers = {} if if_match is None else {"If-Match": if_match}
            body = {"policy": {"mode": "off"}, "reason": "x"}
            answer = await client.put("/v1/policy", json=body, headers=headers)
            is_problem(answer, status, code)
            assert (await client.get("/v1/policy")).json()["version"] == 0
            assert len(await audited(client)) == 1

        with_manager(test)

    @pytest.mark.parametrize(
        "policy",
        [
            {"mode": "maybe"},
            {"t_free_s": 0},
            {"t_free_s": True},
            {"solver": {"budget_s": 4_000}},
            {"windows": [{"days": ["someday"]}]},
            {"solver": {"algorithm": "exact"}},
        ],
    )
    def test_it_must_make_sense(self, policy: dict[str, Any]) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            body = {"policy": policy, "reason": "x"}
            answer = await client.put("/v1/policy", json=body, headers={"If-Match": "*"})
            is_problem(answer, 422, "invalid")

        with_manager(test)
