"""Who asks for the past, as somebody else computed it, by way of a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dynatops.kit.advice.keys import head_key, table_key
from reconfig_manager.service.demand_advice import demand_reader
from reconfig_manager.service.process_settings import RateAdviceSettings
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.redis_store import connect
from reconfig_manager.store.store_settings import StoreSettings
from reconfig_manager.storing.demand import AdvisedDemand

KEY = head_key("demand")
CA = {"rate": 2.5, "popularity": 0.8, "locality": 0.5, "brokers": {"b1": 0.75, "b2": 0.25}}


async def write(redis: Redis, version: str, topics: dict[str, str], **head: object) -> None:
    await redis.hset(
        table_key(KEY, version, "topics"), mapping={str(k): str(v) for k, v in topics.items()}
    )
    fields = {"version": version, "topics": len(topics), "computed_s": time.time(), **head}
    await redis.hset(KEY, mapping={k: str(v) for k, v in fields.items()})


def test_it_is_taken_as_the_job_leaves_it_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server = await EmbeddedServer.start(tmp_path / "s")
        redis, taken = Redis.from_url(server.url), list[dict[str, AdvisedDemand]]()
        reader = demand_reader(
            connect(StoreSettings(), server.url),
            RateAdviceSettings(topics_max=2),
            lambda topics, at_s, fresh_s: taken.append(topics),
        )
        try:
            await write(redis, "1", {"quake/ca": json.dumps(CA)})
            await reader.read_once()
            expected = {"quake/ca": AdvisedDemand(2.5, {"b1": 0.75, "b2": 0.25})}
            assert taken == [expected]
            wrong: list[dict[str, str]] = [
                {"a": "no JSON"},
                {"a": "[]"},
                {"a": '{"rate": -1, "brokers": {}}'},
                {"a": '{"rate": true, "brokers": {}}'},
                {"a": '{"rate": 1}'},
                {"a": json.dumps(CA), "b": json.dumps(CA), "c": json.dumps(CA)},
            ]
            with caplog.at_level(logging.WARNING):
                for number, topics in enumerate(wrong):
                    await write(redis, f"w{number}", topics)
                    await reader.read_once()
            assert all(each == expected for each in taken)
            assert "demand cannot be read" in caplog.text
        finally:
            await reader.close()
            await redis.aclose()
            await server.stop()

    asyncio.run(scenario())
