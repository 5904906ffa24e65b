"""The advice that a broker follows: which broker is best for whom, read from Redis.

    reader = selection_reader(settings, take)
    await reader.run()              # until cancelled

What is handed to the core is fresh for as long as Redis keeps its head, so that no two clocks need
to agree. How it is read, and what happens while it cannot be: `dynatops.kit.advice.reader`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection_settings import AdviceSettings
from broker_agent.core.selection.summaries import NAME_CHARACTERS_MAX
from dynatops.kit.advice.reader import (
    AdviceError,
    AdviceKind,
    AdviceReader,
    AdviceVersion,
    Advised,
)
from dynatops.kit.redis_access import password_options

log = logging.getLogger(__name__)

# Client id -> broker, and key of a topic -> broker.
SelectionTables = tuple[dict[str, str], dict[int, str]]


def selection_kind(entries_max: int) -> AdviceKind[SelectionTables]:
    """More entries of a table than this are left out, and counted."""

    async def read(version: AdviceVersion) -> SelectionTables:
        clients = await _table(version, "clients", entries_max)
        topics = await _table(version, "topics", entries_max)
        by_key = {_topic_key(name): broker for name, broker in topics.items()}
        version.counters.advice_entries += len(clients) + len(topics)
        return clients, by_key

    return AdviceKind(job="selection", what="advice", log=log, complaint=_complaint, read=read)


def selection_reader(
    settings: AdviceSettings, take: Callable[[SelectionAdvice | None], None]
) -> AdviceReader[SelectionTables]:
    """`take` is given the advice at each look, and None once when there is none any more. Raises
    ValueError."""

    def hand_over(advised: Advised[SelectionTables] | None) -> None:
        if advised is None:
            take(None)
        else:
            take(SelectionAdvice(advised.version, advised.fresh_for_s, *advised.content))

    redis = Redis.from_url(
        settings.redis_url,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        # The next look is the retry.
        retry=Retry(NoBackoff(), 0),
        **password_options(settings.redis_url, settings.password),
    )
    return AdviceReader(
        selection_kind(settings.entries_max),
        redis,
        hand_over,
        period_s=settings.period_s,
        backoff_max_s=settings.backoff_max_s,
    )


def _complaint(error: Exception) -> str:
    if isinstance(error, AdviceError):
        return f"advice refused: {error}"
    return f"Redis cannot be asked for advice: {type(error).__name__}: {error}"


async def _table(version: AdviceVersion, table: str, entries_max: int) -> dict[str, str]:
    """A hash, up to the bound."""
    promised = version.head.count(table)
    wanted = min(promised, entries_max)
    found: dict[str, str] = {}
    if wanted:
        async for name, broker in version.entries(table):
            found[_short(name)] = _short(broker)
            if len(found) == wanted:
                break
    if len(found) < wanted:
        key = version.key_of(table)
        raise AdviceError(f"{key} has {len(found):,} entries, not the {promised:,} promised")
    version.counters.advice_left_out += promised - wanted
    return found


def _short(name: str) -> str:
    if len(name) > NAME_CHARACTERS_MAX:
        raise AdviceError(f"the name {name[:40]!r}… is longer than {NAME_CHARACTERS_MAX:,}")
    return name


def _topic_key(name: str) -> int:
    if len(name) == 16:
        try:
            return int(name, 16)
        except ValueError:
            pass
    raise AdviceError(f"{name[:40]!r} is no topic key of 16 hexadecimal digits")
