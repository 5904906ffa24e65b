"""Probes, figures and the log of brokers that really run."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent, StartError
from dynatops.client.errors import DynatopsError
from tests.support.commands import COMMAND
from tests.support.http import ask
from tests.support.security import SECRET, running, table
from tests.support.waiting import until

HTTP = {"listen": "127.0.0.1:0"}


class TestProbes:
    def test_joining_member_leaving(self) -> None:
        async def scenario() -> None:
            async with running("b0") as first:
                agent = Agent(
                    BrokerSettings.model_validate(
                        {"broker_id": "b1", "listen": "127.0.0.1:0", "http": HTTP,
                         "join": ("127.0.0.1:1",)}
                    )
                )  # fmt: skip
                starting = asyncio.create_task(agent.start())
                await until(lambda: agent.http is not None and agent.http.address != "")
                assert agent.http is not None
                address = agent.http.address
                assert (await ask(address, "/livez"))[0] == 200
                status, text = await ask(address, "/readyz")
                assert (status, json.loads(text)["status"]) == (503, "unready")
                assert "not joined" in json.loads(text)["reason"]
                assert (await ask(address, "/metrics"))[0] == 200
                # The seed that it looks for has been at this address all the time.
                ring_of(agent.core).node.ring.seeds = [first.address]
                await starting

                async def is_ready() -> bool:
                    return (await ask(address, "/readyz"))[0] == 200

                await until(is_ready)
                agent.core.leave(asyncio.get_running_loop().time())
                status, text = await ask(address, "/readyz")
                assert status == 503
                assert "leaving" in text
                await agent.stop()
                with pytest.raises(OSError, match="refused"):
                    await ask(address, "/livez")

        asyncio.run(scenario())

    def test_a_broker_that_does_not_look_at_the_time_is_not_alive(self) -> None:
        async def scenario() -> None:
            async with running(http={**HTTP, "late_max_s": 0.5}) as agent:
                assert agent.http is not None
                assert (await ask(agent.http.address, "/livez"))[0] == 200
                address = agent.http.address
                # The loop turns, the ticks do not come.
                await agent.supervisor.stop()

                async def is_late() -> bool:
                    return (await ask(address, "/livez"))[0] == 503

                await until(is_late)
                status, text = await ask(address, "/livez")
                assert (status, json.loads(text)["status"]) == (503, "late")
                assert "has not looked at the time for" in json.loads(text)["reason"]

        asyncio.run(scenario())

    def test_a_port_that_is_taken(self) -> None:
        async def scenario() -> None:
            async with running(http=HTTP) as agent:
                assert agent.http is not None
                taken = {"listen": agent.http.address}
                with pytest.raises(StartError, match="cannot serve HTTP at"):
                    async with running("b1", http=taken):
                        pass

        asyncio.run(scenario())

    def test_nobody_is_answered_unless_asked_for(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                assert agent.http is None
                await until(lambda: agent.watch.lag_s.count > 2)
                assert agent.watch.census.last.queued_bytes == 0

        asyncio.run(scenario())

    def test_figures_of_many_topics_are_as_few(self) -> None:

        async def scenario() -> None:
            async with running(http=HTTP) as agent:
                topics = [f"t/{number}" for number in range(5_000)]
                async with dynatops.connect(agent.address) as client:
                    async with client.subscribe(*topics):
                        await until(lambda: agent.watch.census.last.node.member_trees >= 5_000)
                        assert agent.http is not None
                        status, text = await ask(agent.http.address, "/metrics")
                        assert status == 200
                        assert "dynatops_node_member_trees 500" in text
                        assert "dynatops_broker_subscriptions 5000\n" in text
                        assert len(text) < 60_000

        asyncio.run(scenario())


def operations(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [
        record.dynatops_values  # type: ignore[attr-defined]
        for record in caplog.records
        if getattr(record, "dynatops_operation", "") == name
    ]


class TestLog:
    def test_a_session_from_its_opening_to_its_end(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)

        async def scenario() -> None:
            async with running() as agent:
                async with (
                    dynatops.connect(agent.address, client_id="ann", keep_s=60) as client,
                    client.subscribe("a") as events,
                ):
                    await client.publish("a", b"x")
                    await events.__anext__()
                async with dynatops.connect(agent.address, client_id="bob"):
                    pass
                await until(lambda: len(operations(caplog, "session_ended")) >= 1)

        asyncio.run(scenario())
        (joined,) = operations(caplog, "ring_joined")
        assert (joined["broker"], joined["members"]) == ("b0", 1)
        opened = operations(caplog, "session_opened")
        assert [line["client"] for line in opened] == ["ann", "bob"]
        ended = operations(caplog, "session_ended")
        assert {line["client"] for line in ended} >= {"bob"}
        assert all(line["connected_s"] >= 0 for line in ended)
        assert operations(caplog, "ring_left")[0]["in_time"]
        # Events are counted, and not logged.
        assert len([r for r in caplog.records if r.name.startswith("broker_agent")]) < 12


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
class TestProcesses:
    def test_json_lines_without_secrets(self, tmp_path: Path) -> None:
        """A broker with tokens and a secret, which does all that it can wrong: none is told."""
        tokens, secret = tmp_path / "tokens.toml", tmp_path / "secret"
        tokens.write_text(table("app", "app-token", publish='["#"]', subscribe='["#"]'))
        secret.write_text(SECRET)
        options = (
            "broker", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--broker-id", "b0",
            "--log-format", "json", "--log-level", "debug",
            "--set", f"security.tokens={tokens}", "--set", f"security.peer_secret={secret}",
            "--set", "advice.redis_url=redis://ann:redis-password@127.0.0.1:1/0",
            "--set", "advice.period_s=0.1", "--manager", "127.0.0.1:1",
        )  # fmt: skip
        with started(*options) as (process, said):
            asyncio.run(self._use(said["address"]))
            status, figures = asyncio.run(ask(said["http"], "/metrics"))
            assert status == 200
            assert "dynatops_broker_authentication_refused_total 1" in figures
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        lines = [json.loads(line) for line in errors.splitlines()]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        assert {line.get("broker") for line in lines} == {"b0"}
        told = {line.get("operation") for line in lines}
        assert {"ring_joined", "session_opened", "session_ended", "ring_left"} <= told
        text = errors + figures
        file_hash = tokens.read_text().partition('sha256 = "')[2].partition('"')[0]
        for forbidden in (
            "app-token",
            "wrong-token",
            SECRET,
            file_hash,
            "redis-password",
            "what-is-published",
        ):
            assert forbidden not in text

    async def _use(self, address: str) -> None:
        async with dynatops.connect(address, token="app-token") as client:
            await client.publish("a", b"what-is-published")
        with pytest.raises(DynatopsError):
            async with dynatops.connect(address, token="wrong-token"):
                pass

    def test_a_manager_tells_no_secrets_either(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens.toml"
        tokens.write_text(table("ann", "ann-token", role='"operator"'))
        options = (
            "manager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--manager-id", "m0",
            "--redis", "redis://:redis-password@127.0.0.1:1/0", "--log-format", "json",
            "--log-level", "debug", "--set", f"rest.tokens={tokens}",
        )  # fmt: skip
        with started(*options) as (process, said):
            host = said["http"].removeprefix("http://")
            for token, status in (("ann-token", 200), ("wrong-token", 401)):
                headers = {"Authorization": f"Bearer {token}"}
                assert asyncio.run(ask(host, "/v1/metrics", headers))[0] == status
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        lines = [json.loads(line) for line in errors.splitlines()]
        assert {line.get("manager") for line in lines} == {"m0"}
        assert "store_away" in {line.get("operation") for line in lines}
        for forbidden in ("ann-token", "wrong-token", "redis-password"):
            assert forbidden not in errors

    def test_text_is_for_people(self) -> None:
        options = ("broker", "--listen", "127.0.0.1:0", "--log-level", "info")
        with started(*options) as (process, _):
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        first, *_, last = errors.splitlines()
        assert "is a member of the ring, at 127.0.0.1:" in first
        assert "INFO ring_left broker=" in last
