"""What fails behind the scenes ends the process, with a reason and a code."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dynatops
from broker_agent.core.clients.serving import Serving
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.sessions.session import Session
from dynatops.kit.background import EXIT_CODE, BackgroundError
from overlay.node import Node
from tests.support.security import running
from tests.support.waiting import until

# As soon as it has started, the next time it is called.
AT_ONCE = 1
BROKER = ("broker", "--listen", "127.0.0.1:0", "--broker-id", "b9", "--json")
PATIENCE_S = 30.0


def fail(*_: object) -> None:
    raise ZeroDivisionError


async def started(place: str, after: int, command: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.failing_process", place, str(after), *command,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Its exit code, and what it said on standard error."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        return None, "it went on"
    return process.returncode, errors.decode()


def failure_of(place: str, after: int, command: Sequence[str]) -> tuple[int | None, str]:
    async def scenario() -> tuple[int | None, str]:
        return await ended(await started(place, after, command))

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("place", "after", "name", "options"),
    [
        ("broker_agent.core.broker:Broker.tick", 20, "ticks", ()),
        (
            "broker_agent.core.broker:Broker.unsaved",
            2,
            "saving sessions",
            ("--data-dir", "{folder}", "--set", "runtime.session_flush_s=0.01"),
        ),
        (
            "broker_agent.core.reports.logbook:Logbook.take_page",
            AT_ONCE,
            "feeding the lake",
            ("--lake", "{folder}", "--set", "lake.window_s=1"),
        ),
        (
            "dynatops.kit.advice.reader:AdviceReader.read_once",
            AT_ONCE,
            "reading advice",
            ("--set", "advice.redis_url=redis://127.0.0.1:1"),
        ),
        (
            "broker_agent.runtime.manager.uplink:Uplink._next_address",
            AT_ONCE,
            "attending to managers",
            ("--manager", "127.0.0.1:1"),
        ),
    ],
)
def test_a_broker_ends_with_what_it_cannot_do_without(
    place: str, after: int, name: str, options: Sequence[str], tmp_path: Path
) -> None:
    shown = [option.format(folder=tmp_path) for option in options]
    code, errors = failure_of(place, after, (*BROKER, *shown))
    assert code == EXIT_CODE, errors
    assert "Traceback" in errors
    assert f"{name} failed: UnforeseenError(" in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("place", "after", "name"),
    [
        ("reconfig_manager.manager:Manager.tick", 5, "ticks"),
        (
            "reconfig_manager.service.solving:SolverProcess._start_process",
            AT_ONCE,
            "the solver's process",
        ),
        ("dynatops.kit.advice.reader:AdviceReader.read_once", AT_ONCE, "reading rates"),
    ],
)
def test_a_manager_ends_likewise(place: str, after: int, name: str, tmp_path: Path) -> None:
    command = ("manager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json",
               "--data-dir", str(tmp_path))  # fmt: skip
    code, errors = failure_of(place, after, command)
    assert code == EXIT_CODE, errors
    assert "Traceback" in errors
    assert f"{name} failed: UnforeseenError(" in errors.splitlines()[-1]


def test_clients_of_a_broker_that_fails_go_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running("b0") as one, running("b1", join=(one.address,)) as failing:
            ending = asyncio.create_task(failing.run_until_stopped())
            async with dynatops.connect(failing.address, client_id="ann", stay=True) as client:
                async with client.subscribe("t") as events:
                    monkeypatch.setattr(failing.core, "tick", fail)
                    with pytest.raises(BackgroundError, match="ticks failed"):
                        await ending
                    await until(lambda: client.broker == "b0")
                    await client.publish("t", b"on")
                    assert (await anext(events)).payload == b"on"

    asyncio.run(scenario())


def test_a_client_whose_frame_makes_the_broker_fail_is_the_only_one_to_suffer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running("b0", http={"listen": "127.0.0.1:0"}) as agent:
            async with (
                dynatops.connect(agent.address) as hostile,
                dynatops.connect(agent.address) as other,
                other.subscribe("t") as events,
            ):
                serve = Serving._serve

                def failing(self: Serving, session: Session, *rest: Any) -> None:
                    if session.client_id == hostile.client_id:
                        raise ZeroDivisionError
                    serve(self, session, *rest)

                lost: list[str] = []
                monkeypatch.setattr(Serving, "_serve", failing)
                hostile._engine._on_connection = lambda broker, why: lost.append(why)
                with contextlib.suppress(dynatops.PublishError):
                    await hostile.publish("t", b"x", timeout_s=0.5)
                assert lost
                await other.publish("t", b"on")
                assert (await anext(events)).payload == b"on"
                assert agent.core.counters.inputs_failed > 0
                assert agent.supervisor.failed is None
                monkeypatch.undo()
        assert "ZeroDivisionError" in caplog.text

    asyncio.run(scenario())


def test_a_broker_whose_frame_makes_another_fail_loses_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with running("b0") as one, running("b1", join=(one.address,)) as other:
            handle, failures = Node.handle, 3

            def failing(self: Node, *arguments: Any) -> Any:
                nonlocal failures
                if self is ring_of(one.core).node and failures:
                    failures -= 1
                    raise ZeroDivisionError
                return handle(self, *arguments)

            broken = one.links.counters.links_broken
            monkeypatch.setattr(Node, "handle", failing)
            await until(lambda: one.core.counters.inputs_failed == 3)
            assert one.links.counters.links_broken > broken
            await until(lambda: ring_of(other.core).node.ring.successors[0].broker_id == "b0")
            assert one.supervisor.failed is None

    asyncio.run(scenario())
