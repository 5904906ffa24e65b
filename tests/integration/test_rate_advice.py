"""Publication rates that somebody else computed, by way of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dynatops.kit.advice_keys import RATES_KEY, rates_key
from reconfig_manager.service.process_settings import RateAdviceSettings
from reconfig_manager.service.rate_advice import RateReader
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.redis_store import connect
from reconfig_manager.store.store_settings import StoreSettings

Taken = list[tuple[dict[str, float], float]]


@asynccontextmanager
async def reading(
    folder: Path, **settings: float
) -> AsyncIterator[tuple[Redis, RateReader, Taken]]:
    server = await EmbeddedServer.start(folder / "s")
    redis, taken = Redis.from_url(server.url), Taken()
    values = RateAdviceSettings.model_validate(settings)
    reader = RateReader(
        connect(StoreSettings(), server.url),
        values,
        lambda rates, at_s: taken.append((rates, at_s)),
    )
    try:
        yield redis, reader, taken
    finally:
        await reader._redis.aclose()
        await redis.aclose()
        await server.stop()


async def write(redis: Redis, version: str, rates: dict[str, float], **head: object) -> None:
    await redis.hset(rates_key(version), mapping={k: str(v) for k, v in rates.items()})
    fields = {"version": version, "topics": len(rates), "computed_s": 1_000.0, **head}
    await redis.hset(RATES_KEY, mapping={k: str(v) for k, v in fields.items()})


def test_a_version_is_taken_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            await reader.read_once()
            assert taken == []
            await write(redis, "1", {"quake/ca": 2.5, "quake/ny": 0.0})
            await reader.read_once()
            await reader.read_once()
            assert taken == [({"quake/ca": 2.5, "quake/ny": 0.0}, 1_000.0)]
            await write(redis, "2", {"quake/ca": 3.0})
            await reader.read_once()
            assert taken[-1] == ({"quake/ca": 3.0}, 1_000.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "head",
    [{"topics": 3}, {"topics": 1}, {"computed_s": "soon"}, {"topics": -1}, {"topics": 10**7}],
)
def test_what_is_not_whole_is_not_taken(tmp_path: Path, head: dict[str, object]) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            await write(redis, "1", {"quake/ca": 2.5, "quake/ny": 1.0}, **head)
            await reader.read_once()
            assert taken == []
            assert reader.failures == 1

    asyncio.run(scenario())


def test_rates_that_are_none_are_not_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            for number, rate in enumerate(("nan", "-1", "inf", "much")):
                await redis.hset(rates_key(str(number)), "quake/ca", rate)
                fields = {"version": number, "topics": 1, "computed_s": 1.0}
                await redis.hset(RATES_KEY, mapping={k: str(v) for k, v in fields.items()})
                await reader.read_once()
            assert taken == []
            assert reader.failures == 4

    asyncio.run(scenario())


def test_without_a_server_it_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        taken: Taken = []
        nobody = connect(StoreSettings(), f"unix://{tmp_path}/nobody")
        reader = RateReader(nobody, RateAdviceSettings(), lambda r, at_s: taken.append((r, at_s)))
        await reader.read_once()
        assert reader.failures == 1
        assert taken == []

    asyncio.run(scenario())
