"""Who may do what over HTTP, what is refused at the door, and what of it is written down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import ValidationError

from dynatops.kit.security.tokens_file import TokensError
from reconfig_manager.rest.access import ANYONE, watching_caller
from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import ManagerDriver, is_problem, leading, serving, with_manager
from tests.support.security import table

ROLES = ("viewer", "operator", "admin")
PLAN = {"reason": "to see"}
POLICY = {"policy": {}, "reason": "back to defaults"}


@pytest.fixture
def settings(tmp_path: Path) -> RestSettings:
    path = tmp_path / "tokens.toml"
    tokens = [table(role, f"the-{role}", role=f'"{role}"') for role in ROLES]
    # A client of brokers: managers do not know it.
    path.write_text("\n".join([*tokens, table("sensor", "the-sensor", publish='["#"]')]))
    return RestSettings(tokens=str(path), body_bytes_max=2_000)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer the-{name}"}


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


class TestRoles:
    def test_viewers_look_operators_act_admins_rule(self, settings: RestSettings) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            for role, plan, policy in (
                ("viewer", 403, 403), ("operator", 202, 403), ("admin", 202, 200),
            ):  # fmt: skip
                headers = bearer(role)
                answer = await client.get("/v1/cluster", headers=headers)
                assert answer.status_code == 200
                answer = await client.post("/v1/reconfigurations", json=PLAN, headers=headers)
                assert answer.status_code == plan
                headers["If-Match"] = '"0"'
                answer = await client.put("/v1/policy", json=POLICY, headers=headers)
                assert answer.status_code == policy

        with_manager(test, settings)

    def test_a_viewer_cannot_execute_and_that_is_written_down(self, settings: RestSettings) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            asked = {"reason": "I would like to", "execute": True}
            refused = await client.post(
                "/v1/reconfigurations", json=asked, headers=bearer("viewer")
            )
            is_problem(refused, 403, "not_allowed")
            proposed = await client.post(
                "/v1/reconfigurations", json=PLAN, headers=bearer("operator")
            )
            plan_id = proposed.json()["id"]
            for action in ("approve", "cancel"):
                path = f"/v1/reconfigurations/{plan_id}/{action}"
                refused = await client.post(path, json=PLAN, headers=bearer("viewer"))
                is_problem(refused, 403, "not_allowed")
            assert [plan.state for plan in driver.plans] == ["PROPOSED"]
            answer = await client.get("/v1/audit", headers=bearer("viewer"))
            entries = [
                (e["actor"], e["role"], e["action"], e["subject"], e["reason"], e["outcome"])
                for e in reversed(answer.json()["items"])
            ]
            assert entries == [
                ("viewer", "viewer", "propose", "", "I would like to", "NotAllowed"),
                ("operator", "operator", "propose", plan_id, "to see", "accepted"),
                ("viewer", "viewer", "approve", plan_id, "to see", "NotAllowed"),
                ("viewer", "viewer", "cancel", plan_id, "to see", "NotAllowed"),
            ]

        with_manager(test, settings)

    @pytest.mark.parametrize("token", ["", "the-nobody", "the-sensor", "the-admin2"])
    def test_without_a_token_that_has_a_role_nothing_is_told(
        self, settings: RestSettings, token: str
    ) -> None:
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            for path in ("/v1/cluster", "/v1/audit", "/v1/metrics", "/v1/events", "/v1/nothing"):
                answer = await client.get(path, headers=headers)
                is_problem(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")
            answer = await client.post("/v1/reconfigurations", json=PLAN, headers=headers)
            is_problem(answer, 401, "unauthenticated")
            assert not driver.plans
            for path in ("/v1/healthz", "/v1/readyz", "/v1/openapi.json"):
                assert (await client.get(path, headers=headers)).status_code == 200

        with_manager(test, settings)

    def test_tokens_are_read_again(self, settings: RestSettings) -> None:
        async def run() -> None:
            driver = await leading(settings)
            async with serving(driver, **bearer("viewer")) as (app, client):
                write(settings.tokens, table("viewer", "another", role='"viewer"'))
                assert (await client.get("/v1/cluster")).status_code == 200
                app.state.tokens.reload()
                assert (await client.get("/v1/cluster")).status_code == 401
                write(settings.tokens, "[[token]]")
                with pytest.raises(TokensError):
                    app.state.tokens.reload()
                answer = await client.get(
                    "/v1/cluster", headers={"Authorization": "bearer another"}
                )
                assert answer.status_code == 200

        asyncio.run(run())

    def test_a_tokens_file_that_is_no_good_is_no_start(self, tmp_path: Path) -> None:
        driver = ManagerDriver()
        with pytest.raises(TokensError, match="cannot be read"):
            create_app(driver.facade, RestSettings(tokens=str(tmp_path / "missing")))


class TestTheDoor:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1:7480", 200),
            ("localhost", 200),
            ("[::1]:7480", 200),
            ("127.8.9.1", 200),
            ("evil.example", 421),
            ("evil.example:7480", 421),
            ("10.0.0.1:7480", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
        ],
    )
    def test_without_tokens_names_of_other_machines_are_not_served(
        self, host: str, status: int
    ) -> None:
        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            answer = await client.get("/v1/cluster", headers={"Host": host})
            assert answer.status_code == status
            if status == 421:
                is_problem(answer, 421, "wrong_host")

        with_manager(test)

    def test_bodies_are_bounded(self, settings: RestSettings) -> None:
        async def parts() -> Any:
            for _ in range(10):
                yield b" " * 1_000

        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            for content in (b" " * 2_001, parts()):
                answer = await client.post(
                    "/v1/reconfigurations",
                    content=content,
                    headers={**bearer("admin"), "Content-Type": "application/json"},
                )
                is_problem(answer, 413, "too_large")
            assert not driver.plans

        with_manager(test, settings)

    def test_a_body_must_come_in_time(self) -> None:
        async def never() -> Any:
            yield b"{"
            await asyncio.Event().wait()

        async def test(_: ManagerDriver, client: httpx.AsyncClient) -> None:
            answer = await client.post("/v1/reconfigurations", content=never())
            is_problem(answer, 408, "too_slow")

        with_manager(test, RestSettings(body_timeout_s=0.01))

    def test_a_body_without_its_type_is_not_read(self) -> None:
        # A web page cannot send JSON to another site without asking; other types it can.
        async def test(driver: ManagerDriver, client: httpx.AsyncClient) -> None:
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                headers = {"Content-Type": kind} if kind else {}
                answer = await client.post(
                    "/v1/reconfigurations", content=b'{"reason": "x"}', headers=headers
                )
                is_problem(answer, 415, "unsupported_media_type")
            assert not driver.plans

        with_manager(test)


class TestSettings:
    def test_beyond_loopback_it_wants_tokens_and_tls(self) -> None:
        with pytest.raises(ValidationError, match="tls_cert and tls_key and tokens"):
            RestSettings(listen="0.0.0.0:7480")
        with pytest.raises(ValidationError, match="tls_cert and tls_key; or"):
            RestSettings(listen="0.0.0.0:7480", tokens="tokens.toml")
        RestSettings(listen="0.0.0.0:7480", insecure=True)
        RestSettings(listen="[::1]:7480")
        RestSettings(listen="0.0.0.0:7480", tokens="t", tls_cert="c", tls_key="k")

    @pytest.mark.parametrize(
        "values", [{"listen": "7480"}, {"advertise": "host:1"}, {"tls_cert": "c"}, {"page": 1}]
    )
    def test_what_makes_no_sense_is_no_start(self, values: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            RestSettings.model_validate(values)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::4", "2001:db8:1:2::/64"),
    ],
)
def test_without_tokens_a_network_has_what_an_address_has(host: str, counted: str) -> None:
    scope = {"type": "http", "client": (host, 4711), "state": {"caller": ANYONE}}
    assert watching_caller(Request(scope)) == counted
