"""A manager over real HTTP: streams of events, TLS, redirects, and its end."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest

from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.rest.serving.server import RestServer, ServeError
from tests.support.manager_driver import ManagerDriver, leading
from tests.support.rest_server import Served, served
from tests.support.security import ENCRYPTED, pem, table

PLANS = "/v1/reconfigurations"


def settings(**values: Any) -> RestSettings:
    return RestSettings(listen="127.0.0.1:0", **values)


@pytest.fixture
def manager() -> Iterator[Served]:
    with served(asyncio.run(leading(settings(keepalive_s=0.05)))) as running:
        yield running


def blocks(response: httpx.Response) -> Iterator[dict[str, str]]:
    """Events as they came, comments too."""
    block: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(":")
        if line:
            block[name or "comment"] = value.strip()
        else:
            yield block
            block = {}


class Watch:
    """A stream of events that is read in a thread."""

    def __init__(self, url: str, last_id: str = "") -> None:
        self.blocks: Queue[dict[str, str] | None] = Queue()
        self._headers = {"Last-Event-ID": last_id} if last_id else {}
        self._client = httpx.Client(base_url=url, timeout=30)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        # It has begun: what happens from now on is in it.
        assert "retry" in self.next("retry")

    def _read(self) -> None:
        with self._client.stream("GET", "/v1/events", headers=self._headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            for block in blocks(response):
                self.blocks.put(block)
        self.blocks.put(None)

    def next(self, name: str) -> dict[str, str]:
        """The next block that has it."""
        while True:
            block = self.blocks.get(timeout=30)
            assert block is not None, "the stream has ended"
            if name in block:
                return block

    def until_its_end(self) -> list[dict[str, str]]:
        found = []
        while (block := self.blocks.get(timeout=30)) is not None:
            found.append(block)
        self._thread.join(30)
        self._client.close()
        return found


class TestEvents:
    def test_a_plan_is_seen_from_its_beginning_to_its_end(self, manager: Served) -> None:
        watch = Watch(manager.url)
        answer = httpx.post(
            manager.url + PLANS, json={"reason": "now", "execute": True}, timeout=30
        )
        plan_id = answer.json()["id"]
        seen: list[tuple[str, str | None]] = []
        while not seen or seen[-1][0] != "COMMITTED":
            event = watch.next("event")
            data = json.loads(event["data"])
            if data["type"] == "plan":
                assert event["event"] == "plan"
                assert data["plan"] == plan_id
                seen.append((data["state"], data["phase"]))
        assert seen[0] == ("PROPOSED", None)
        phases = [phase for state, phase in seen if state == "EXECUTING"]
        assert phases == ["FREEZING", "MOVING", "RESTORING", "REPAIRING", "FINISHING"]
        manager.do(manager.stop())
        assert watch.until_its_end()[-1]["event"] == "ended"

    def test_a_quiet_stream_says_that_it_is_there(self, manager: Served) -> None:
        watch = Watch(manager.url)
        assert watch.next("comment")
        manager.do(manager.stop())
        watch.until_its_end()

    def test_after_a_break_it_goes_on_where_it_was(self, manager: Served) -> None:
        watch = Watch(manager.url)
        broadcast = manager.driver.broadcast

        async def go_on() -> None:
            broadcast.end("for this test")
            for number in range(3):
                broadcast.publish({"type": "check", "number": number})

        manager.do(go_on())
        watch.until_its_end()
        last = f"m1-{broadcast.published - 2}"
        again = Watch(manager.url, last)
        numbers = [json.loads(again.next("event")["data"])["number"] for _ in range(2)]
        assert numbers == [1, 2]
        gone = Watch(manager.url, "m0-17")
        assert gone.next("event")["event"] == "reset"
        manager.do(manager.stop())
        again.until_its_end()
        gone.until_its_end()

    def test_whoever_goes_makes_room(self) -> None:
        rest = settings(keepalive_s=0.02, watchers_max=1)
        with served(asyncio.run(leading(rest))) as manager:
            with httpx.Client(base_url=manager.url, timeout=30) as client:
                with client.stream("GET", "/v1/events") as stream:
                    lines = stream.iter_lines()
                    assert next(lines) == "retry: 2000"
                    assert client.get("/v1/events").status_code == 503
                # The server notices by its next word.
                while (answer := _first_line(client)) != "retry: 2000":
                    assert answer == "503"


def _first_line(client: httpx.Client) -> str:
    with client.stream("GET", "/v1/events") as stream:
        if stream.status_code != 200:
            return str(stream.status_code)
        return next(stream.iter_lines())


def test_a_follower_redirects_to_the_leader(manager: Served) -> None:
    follower = ManagerDriver(settings(), name="m2")
    follower.leader_url = manager.url
    with served(follower) as running, httpx.Client(follow_redirects=True, timeout=30) as client:
        answer = client.post(running.url + PLANS, json={"reason": "anywhere"})
        assert answer.status_code == 202
        assert str(answer.url).startswith(manager.url)
        assert client.get(running.url + "/v1/cluster").json()["manager"] == "m1"


class TestForwarding:
    """A manager that follows, and that clients know alone."""

    @pytest.fixture
    def follower(self, manager: Served) -> Iterator[Served]:
        follower = ManagerDriver(settings(forward=True), name="m2")
        follower.leader_url = manager.url
        with served(follower) as running:
            yield running

    def test_the_client_notices_nothing(self, manager: Served, follower: Served) -> None:
        with httpx.Client(base_url=follower.url, timeout=30) as client:
            key = {"Idempotency-Key": "once"}
            answer = client.post(PLANS, json={"reason": "anywhere"}, headers=key)
            assert answer.status_code == 202
            again = client.post(PLANS, json={"reason": "anywhere"}, headers=key)
            assert again.json()["id"] == answer.json()["id"]
            assert client.get("/v1/cluster").json()["manager"] == "m1"
            assert client.get("/v1/brokers?limit=2").json()["next_cursor"] is not None
            problem = client.post(PLANS, json={"reason": ""})
            assert problem.status_code == 422
            assert problem.headers["content-type"] == "application/problem+json"

    def test_streams_are_streams(self, manager: Served, follower: Served) -> None:
        watch = Watch(follower.url)
        answer = httpx.post(f"{manager.url}{PLANS}", json={"reason": "look"}, timeout=30)
        assert answer.status_code == 202
        assert watch.next("event")["event"] == "plan"
        manager.loop.call_soon_threadsafe(manager.driver.broadcast.close)
        watch.until_its_end()

    def test_nothing_goes_round_in_circles(self, follower: Served) -> None:
        follower.driver.leader_url = follower.url
        answer = httpx.get(f"{follower.url}/v1/cluster", timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_leader")
        assert "retry-after" in answer.headers

    def test_a_leader_that_is_gone(self, follower: Served) -> None:
        follower.driver.leader_url = "http://127.0.0.1:1"
        answer = httpx.get(f"{follower.url}/v1/cluster", timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_leader")

    def test_by_a_name_that_is_not_in_the_url(self, tmp_path: Path) -> None:
        """Its certificate is for localhost and 127.0.0.1; what it says it is reached at is not."""
        tokens = tmp_path / "tokens.toml"
        tokens.write_text(table("ops", "t1", role='"viewer"'))
        files = {"tls_cert": ENCRYPTED["tls_cert"], "tls_key": ENCRYPTED["tls_key"]}
        rest = RestSettings(listen="127.1.2.3:0", tokens=str(tokens), **files)
        trusting = ssl.create_default_context(cafile=pem("ca.crt"))
        with served(asyncio.run(leading(rest))) as leader:
            for name, status in (("localhost", 200), ("elsewhere", 503)):
                follower = ManagerDriver(
                    settings(
                        forward=True, tokens=str(tokens), leader_ca=pem("ca.crt"),
                        leader_name=name, **files,
                    ),
                    name="m2",
                )  # fmt: skip
                follower.leader_url = leader.url
                with served(follower) as running:
                    answer = httpx.get(
                        f"{running.url}/v1/cluster", verify=trusting, timeout=30,
                        headers={"Authorization": "Bearer t1"},
                    )  # fmt: skip
                    assert answer.status_code == status


def test_it_speaks_tls_and_takes_renewed_files(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(table("ops", "t1", role='"viewer"'))
    files = {"tls_cert": ENCRYPTED["tls_cert"], "tls_key": ENCRYPTED["tls_key"]}
    rest = settings(tokens=str(tokens), **files)
    with served(asyncio.run(leading(rest))) as manager:
        assert manager.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=pem("ca.crt"))

        def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(verify=trusting, headers=headers, timeout=30) as client:
                return client.get(manager.url + "/v1/cluster").status_code

        assert (status("t1"), status("t2")) == (200, 401)
        tokens.write_text(table("ops", "t2", role='"viewer"'))
        manager.server.reload()
        assert (status("t1"), status("t2")) == (401, 200)


@pytest.mark.parametrize(
    "values",
    [
        {"listen": "192.0.2.1:1", "insecure": True},
        {"listen": "127.0.0.1:0", "tls_cert": "missing.pem", "tls_key": "missing.pem"},
    ],
)
def test_an_address_or_files_that_cannot_be_used_are_no_start(values: dict[str, Any]) -> None:
    driver = ManagerDriver()
    rest = RestSettings(**values)
    server = RestServer(create_app(driver.facade, rest), rest)
    with pytest.raises(ServeError, match="cannot serve HTTP at"):
        asyncio.run(server.start())


def test_a_port_that_is_taken_is_no_start(manager: Served) -> None:
    rest = RestSettings(listen=manager.server.address)
    server = RestServer(create_app(ManagerDriver().facade, rest), rest)
    with pytest.raises(ServeError, match="in use"):
        asyncio.run(server.start())
