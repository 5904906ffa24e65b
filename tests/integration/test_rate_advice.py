"""Publication rates that somebody else computed, by way of a real server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dynatops.kit.advice.keys import head_key, table_key
from dynatops.kit.advice.reader import AdviceReader
from reconfig_manager.service.process_settings import RateAdviceSettings
from reconfig_manager.service.rate_advice import AdvisedRates, rate_reader
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.redis_store import connect
from reconfig_manager.store.store_settings import StoreSettings


def redis_url(redis: Redis) -> str:
    return f"unix://{redis.connection_pool.connection_kwargs['path']}"


RATES_KEY = head_key("rates")
Taken = list[tuple[dict[str, float], float]]


@asynccontextmanager
async def reading(
    folder: Path, **settings: float
) -> AsyncIterator[tuple[Redis, AdviceReader[AdvisedRates], Taken]]:
    server = await EmbeddedServer.start(folder / "s")
    redis, taken = Redis.from_url(server.url), Taken()
    values = RateAdviceSettings.model_validate(settings)
    reader = rate_reader(
        connect(StoreSettings(), server.url),
        values,
        lambda rates, at_s, _: taken.append((rates, at_s)),
    )
    try:
        yield redis, reader, taken
    finally:
        await reader.close()
        await redis.aclose()
        await server.stop()


async def write(redis: Redis, version: str, rates: dict[str, float], **head: object) -> None:
    await redis.hset(
        table_key(RATES_KEY, version, "rates"), mapping={k: str(v) for k, v in rates.items()}
    )
    fields = {"version": version, "topics": len(rates), "computed_s": 1_000.0, **head}
    await redis.hset(RATES_KEY, mapping={k: str(v) for k, v in fields.items()})


def test_a_version_is_read_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            await reader.read_once()
            assert taken == []
            await write(redis, "1", {"quake/ca": 2.5, "quake/ny": 0.0})
            await reader.read_once()
            await reader.read_once()
            assert taken == 2 * [({"quake/ca": 2.5, "quake/ny": 0.0}, 1_000.0)]
            assert reader.counters.advice_versions == 1
            await write(redis, "2", {"quake/ca": 3.0})
            await reader.read_once()
            assert taken[-1] == ({"quake/ca": 3.0}, 1_000.0)
            assert reader.counters.advice_versions == 2

    asyncio.run(scenario())


def test_rates_are_fresh_until_they_are_too_old_or_redis_forgets_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        fresh: list[float] = []
        async with reading(tmp_path) as (redis, _, _):
            settings = RateAdviceSettings(ttl_s=500.0)
            host = connect(StoreSettings(), redis_url(redis))
            reader = rate_reader(host, settings, lambda rates, at_s, s: fresh.append(s))
            for version, age_s, expiry_s in (
                ("1", 100.0, None), ("2", 600.0, None), ("3", 100.0, 50), ("4", 100.0, 5_000),
                # By a clock that is ahead.
                ("5", -100.0, None),
            ):  # fmt: skip
                await write(redis, version, {"a": 1.0}, computed_s=time.time() - age_s)
                await redis.persist(RATES_KEY)
                if expiry_s is not None:
                    await redis.expire(RATES_KEY, expiry_s)
                await reader.read_once()
            assert fresh == pytest.approx([400.0, -100.0, 50.0, 400.0, 500.0], abs=5.0)
            await reader.close()

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
            assert reader.counters.advice_refused == 1

    asyncio.run(scenario())


def test_a_head_that_names_no_version_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            await redis.hset(RATES_KEY, mapping={"topics": "1"})
            await reader.read_once()
            await reader.read_once()
            assert reader.counters.advice_refused == 2
            await write(redis, "1", {"quake/ca": 2.5})
            await reader.read_once()
            # Without an expiry: rates are judged by when they were computed.
            assert taken == [({"quake/ca": 2.5}, 1_000.0)]
            assert reader.pause_s == 15.0

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    refused, back = [r for r in caplog.records if r.name == "reconfig_manager.service.rate_advice"]
    assert refused.getMessage().startswith("rates cannot be read: AdviceError: ")
    assert back.getMessage() == "rates can be read again"


def test_rates_that_are_none_are_not_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as (redis, reader, taken):
            for number, rate in enumerate(("nan", "-1", "inf", "much")):
                await redis.hset(table_key(RATES_KEY, str(number), "rates"), "quake/ca", rate)
                fields = {"version": number, "topics": 1, "computed_s": 1.0}
                await redis.hset(RATES_KEY, mapping={k: str(v) for k, v in fields.items()})
                await reader.read_once()
            assert taken == []
            assert reader.counters.advice_refused == 4

    asyncio.run(scenario())


def test_without_a_server_it_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        taken: Taken = []
        nobody = connect(StoreSettings(), f"unix://{tmp_path}/nobody")
        reader = rate_reader(
            nobody, RateAdviceSettings(), lambda r, at_s, _: taken.append((r, at_s))
        )
        await reader.read_once()
        assert reader.counters.advice_failures == 1
        assert taken == []

    asyncio.run(scenario())
