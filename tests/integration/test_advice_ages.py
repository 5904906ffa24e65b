"""Ages of advice, from a real store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dynatops.kit.advice.keys import head_key
from reconfig_manager.service.observing.advice_ages import AdviceAges, Head
from tests.support.manager_store import storing

pytestmark = pytest.mark.xdist_group("redis")


def test_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with storing(tmp_path) as (server, _):
            redis = Redis.from_url(server.url)
            ages = AdviceAges(Redis.from_url(server.url), 15.0)
            await ages.read_once()
            assert ages.heads == {}
            computed_s = time.time() - 100
            await redis.hset(
                head_key("rates"),
                mapping={
                    "version": "v",
                    "computed_s": f"{computed_s:.3f}",
                    "topics": "12",
                    "x": "9",
                },
            )
            await redis.hset(
                head_key("selection"),
                mapping={"computed_s": "7", "clients": "many", "topics": "9" * 30},
            )
            await redis.hset(head_key("clusters"), mapping={"computed_s": "soon"})
            await redis.hset(head_key("demand"), mapping={"computed_s": "inf"})
            await ages.read_once()
            assert set(ages.heads) == {"rates", "selection"}
            assert ages.heads["rates"].computed_s == pytest.approx(computed_s, abs=0.001)
            assert ages.heads["rates"].entries == {"topics": 12}
            assert ages.heads["selection"] == Head(7.0, {})
            # A head that runs out is advice no more.
            await redis.delete(head_key("rates"))
            await ages.read_once()
            assert set(ages.heads) == {"selection"}
            await server.stop()
            await ages.read_once()
            assert ages.failures == 1
            assert set(ages.heads) == {"selection"}
            await redis.aclose()
            await ages.close()

    asyncio.run(scenario())
