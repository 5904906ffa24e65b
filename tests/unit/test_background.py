"""Work behind the scenes: one way to start it, and nothing that ends unheard."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynatops.kit.background import BackgroundError, Supervisor, finish, until_one_ends

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "analytics",
    "broker_agent",
    "dynatops",
    "overlay",
    "reconfig_manager",
    "simulator",
    "experiments",
)
STARTING = {"create_task", "ensure_future", "Thread", "Timer", "run_coroutine_threadsafe"}
# What is started otherwise, by file and function, and why nothing of it is lost.
AWAITED = "awaited where it is made, and what it raised is raised or logged there"
KNOWN = {
    "broker_agent/runtime/connections.py:serve": AWAITED,
    "broker_agent/runtime/peers/namesakes.py:_ask_all": AWAITED,
    "dynatops/kit/serving/accepting.py:_begin": "what it raised is logged, and ends it",
    "dynatops/kit/background.py:end_within": "the end itself",
    "dynatops/kit/background.py:finish": "the way itself",
    "dynatops/kit/background.py:start": "the way itself",
    "dynatops/kit/background.py:until_one_ends": "the way itself",
    "dynatops/cli/brokers/broker.py:_serve_until": AWAITED,
    "dynatops/cli/managers/manager.py:_serve": AWAITED,
    "dynatops/client/aio.py:_bury": "what it raised is logged, and the event stays untaken",
    "dynatops/client/engine.py:_stay_connected": AWAITED,
    "dynatops/client/joined.py:begin": "an error is raised there, told as a gap, or logged",
    "dynatops/client/engine.py:open": "its death is told by every call of the client",
    "dynatops/client/sync.py:__init__": "the loop of the client, which calls wait for",
    "dynatops/client/sync.py:_run": "the caller waits for the outcome",
    "dynatops/lake/writer.py:__init__": "the feed looks whether it is alive",
    "reconfig_manager/service/agents.py:_serve": AWAITED,
    "reconfig_manager/store/leadership.py:_is_woken_within": AWAITED,
}
# Not parts of a broker or a manager: they end with whoever looks at them.
ELSEWHERE = ("dynatops/local/bench/", "dynatops/cli/managers/watch.py", "analytics/command.py")
DEMOS = (
    "dynatops/local/demos/publish_demo.py",
    "dynatops/local/demos/churn_demo.py",
    "dynatops/local/demos/reconfigure_demo.py",
)


def started(path: Path) -> Iterator[str]:
    """The functions in which a task or a thread is started."""
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else ""
                name = called.id if isinstance(called, ast.Name) else name
                if name in STARTING:
                    yield function.name


def test_all_work_behind_the_scenes_is_supervised() -> None:
    found = {
        f"{relative}:{function}"
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
        if not (relative := str(path.relative_to(ROOT))).startswith((*ELSEWHERE, *DEMOS))
        for function in started(path)
    }
    assert found - KNOWN.keys() == set(), "start it with a Supervisor (dynatops/kit/background.py)"
    assert KNOWN.keys() - found == set(), "these are gone"


async def fail() -> None:
    raise ZeroDivisionError


async def end() -> None:
    pass


async def go_on() -> None:
    await asyncio.Event().wait()


def test_what_raises_is_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        supervisor.start("ticks", fail())
        failure = await supervisor.failure()
        assert failure.name == "ticks"
        assert isinstance(failure.__cause__, ZeroDivisionError)
        assert str(failure) == "ticks failed: ZeroDivisionError()"
        await supervisor.stop()

    asyncio.run(scenario())
    assert "ticks failed: ZeroDivisionError(); this process ends" in caplog.text
    assert "Traceback" in caplog.text


def test_what_ends_although_it_should_go_on_is_a_failure() -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        supervisor.start("ticks", end())
        assert "was to go on" in str(await supervisor.failure())

    asyncio.run(scenario())


def test_what_may_end_and_what_is_cancelled_are_none() -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        await supervisor.start("once", end(), may_end=True)
        task = supervisor.start("ticks", go_on())
        task.cancel()
        await asyncio.wait((task,))
        going_on = supervisor.start("more ticks", go_on())
        await supervisor.stop()
        assert going_on.cancelled()
        assert supervisor.failed is None

    asyncio.run(scenario())


def test_what_is_to_be_closed_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        finish("closing", fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert "closing failed" in caplog.text


def test_side_by_side_all_end_with_the_first() -> None:
    async def scenario() -> None:
        await until_one_ends(go_on(), end())
        with pytest.raises(ZeroDivisionError):
            await until_one_ends(go_on(), fail(), go_on())
        assert len(asyncio.all_tasks()) == 1
        supervisor = Supervisor()
        supervisor.fail(BackgroundError("ticks"))
        # An error that is an answer.
        await until_one_ends(supervisor.failure())

    asyncio.run(scenario())


def test_the_first_failure_is_the_one_that_is_told() -> None:
    supervisor = Supervisor()
    supervisor.fail(BackgroundError("one"))
    supervisor.fail(BackgroundError("two"))
    assert supervisor.failed is not None
    assert supervisor.failed.name == "one"
