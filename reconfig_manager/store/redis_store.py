"""State in Redis or Valkey: plans with their journal, placement, policy, audit, keys, the lease.

    store = RedisStore(settings, url, plans_read=100)
    fence = await store.acquire("m1", ttl_s=4.0)
    await store.write(fence, Record(token, plan, placement))

Every operation ends within a bounded time: with an answer, or StoreAway. A write that was not
answered may have arrived. What is decided in the store is in `scripts.py`. One key for each
plan, so that a page of them costs what it shows; all keys have the prefix of the settings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from dynatops.kit.redis_access import RedisPasswordError, password_options
from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import (
    FENCE_MAX,
    AuditEntry,
    Constants,
    ManagerFacts,
    Page,
    Record,
    StoredState,
)
from reconfig_manager.store import scripts
from reconfig_manager.store.asking import NoAnswer, ask
from reconfig_manager.store.cursors import number_of, page_size
from reconfig_manager.store.opening import OpenedStore, StoreContext, StoreOpenError
from reconfig_manager.store.store_settings import StoreSettings

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Part = TypeVar("Part", bound=BaseModel)

# Whatever is kept may grow with the network; reading all of it may take this many times longer.
_LARGE = 5.0
_MANAGERS_MAX = 100
_KEPT_RATES_BYTES_MAX = 64 << 20
# An entry that was thought lost is looked for among so many.
_AUDIT_LOOK_BACK = 10_000


async def open_store(url: str, context: StoreContext) -> OpenedStore:
    """For `opening`. It need not be there yet. Raises StoreOpenError."""
    store = RedisStore(context.settings, url, plans_read=context.plans_read)
    return OpenedStore(store, store.close, store.durability_problem, redis_url=url)


class RedisStore:
    def __init__(self, settings: StoreSettings, url: str, *, plans_read: int = 100) -> None:
        """`plans_read`: finished plans that a new leader reads. Raises StoreOpenError."""
        self._settings = settings
        self._plans_read = plans_read
        self._timeout_s = settings.timeout_s
        self._redis = connect(settings, url)
        self.failures: int = 0
        script = self._redis.register_script
        self._acquire = script(scripts.ACQUIRE)
        self._renew = script(scripts.RENEW)
        self._release = script(scripts.RELEASE)
        self._write = script(scripts.WRITE)
        self._keep = script(scripts.KEEP)
        self._append = script(scripts.APPEND_AUDIT)
        self._remember = script(scripts.REMEMBER)

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    def _key(self, name: str) -> str:
        return f"{self._settings.key_prefix}{name}"

    def _keys(self, *names: str) -> list[str]:
        return [self._key(name) for name in names]

    async def _ask(self, question: Awaitable[Any], patience: float = 1.0) -> Any:
        """The answer, in time, or StoreAway."""
        try:
            return await ask(question, self._timeout_s * patience)
        except NoAnswer as error:
            self.failures += 1
            raise StoreAway(f"{type(error).__name__}: {error}") from error

    async def _fenced(self, fence: int, question: Awaitable[Any]) -> bytes:
        status, *rest = await self._ask(question)
        if status == b"deposed":
            raise Deposed(fence, int(rest[0]))
        return cast("bytes", status)

    # ---- leadership ------------------------------------------------------------------------------

    async def ping(self) -> None:
        await self._ask(self._redis.execute_command("PING"))  # type: ignore[no-untyped-call]

    async def acquire(self, me: str, ttl_s: float, fence_min: int = 0) -> int | None:
        if not 0 <= fence_min <= FENCE_MAX:
            raise ValueError(f"a fence of {fence_min} cannot be given out")
        arguments: list[str | int] = [me, _milliseconds(ttl_s), fence_min]
        fence = await self._ask(self._acquire(self._keys("fence", "lease"), arguments))
        return None if fence is None else int(fence)

    async def renew(self, me: str, fence: int, ttl_s: float) -> None:
        arguments: list[str | int] = [fence, me, _milliseconds(ttl_s)]
        await self._fenced(fence, self._renew(self._keys("fence", "lease"), arguments))

    async def release(self, me: str, fence: int) -> None:
        await self._ask(self._release(self._keys("fence", "lease"), [fence, me]))

    async def leader(self) -> tuple[str, int] | None:
        lease = await self._ask(self._redis.get(self._key("lease")))
        if lease is None:
            return None
        fence, _, name = lease.decode().partition(" ")
        return name, int(fence)

    async def announce(self, facts: ManagerFacts, ttl_s: float) -> None:
        """For `managers`, until the time is over."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            key = self._key(f"manager:{facts.manager_id}")
            pipeline.set(key, facts.model_dump_json(), px=_milliseconds(ttl_s))
            pipeline.sadd(self._key("managers"), facts.manager_id)
            await self._ask(pipeline.execute())

    async def managers(self) -> list[ManagerFacts]:
        """Those that live, by name."""
        names = sorted(await self._ask(self._redis.smembers(self._key("managers"))))
        if not names:
            return []
        keys = [self._key("manager:") + name.decode() for name in names]
        raw = await self._ask(self._redis.mget(keys))
        dead = [name for name, facts in zip(names, raw, strict=True) if facts is None]
        if dead:
            await self._ask(self._redis.srem(self._key("managers"), *dead))
        found = [_parse(ManagerFacts, facts) for facts in raw if facts is not None]
        return found[:_MANAGERS_MAX]

    # ---- the leader's state ----------------------------------------------------------------------

    async def read_state(self) -> StoredState:
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.smembers(self._key("open"))
            pipeline.zrevrange(self._key("order"), 0, self._plans_read - 1)
            for name in ("placement", "policy", "constants", "rates", "epoch"):
                pipeline.get(self._key(name))
            open_ids, newest, *parts = await self._ask(pipeline.execute(), _LARGE)
        placement, policy, constants, rates, epoch = parts
        # In the order that they were made, as far as that is known without asking.
        ids = [*sorted(open_ids - set(newest)), *reversed(newest)]
        raw_plans = await self._raw_plans(ids)

        def parse() -> StoredState:
            kept = _unpack(rates)
            return StoredState(
                plans=tuple(_parse(Plan, raw) for raw in raw_plans),
                placement=_parse(Placement, placement) if placement else Placement(),
                policy=_parse_policy(policy),
                constants=_parse(Constants, constants) if constants else Constants(),
                rates=kept["rates"],
                rates_at_s=kept["at_s"],
                epoch=int(epoch or 0),
            )

        # Plans of large networks are large: the lease is renewed meanwhile.
        return await asyncio.to_thread(parse)

    async def write(self, fence: int, record: Record) -> None:
        plan = record.plan
        arguments: list[str | int | bytes] = [fence]
        if plan is None:
            arguments += ["", 0, "", "0", 0]
        else:
            over = "1" if plan.state.over else "0"
            arguments += [plan.id, plan.version, plan.model_dump_json(), over, plan.epoch]
        arguments.append(self._settings.plans_max)
        policy = record.policy
        arguments.append(record.placement.model_dump_json() if record.placement else "")
        arguments.append(f"{policy.version} {policy.model_dump_json()}" if policy else "")
        arguments.append(record.constants.model_dump_json() if record.constants else "")
        keys = self._keys(
            "fence", "order", "versions", "open", "epoch", "number", "placement", "policy",
            "constants", "plan:",
        )  # fmt: skip
        if await self._fenced(fence, self._write(keys, arguments)) == b"overtaken":
            log.debug("a newer write of plan %s was there first", plan.id if plan else "")

    async def keep_rates(self, fence: int, rates: Mapping[str, float], at_s: float) -> None:
        packed = await asyncio.to_thread(_pack, dict(rates), at_s)
        await self._fenced(fence, self._keep(self._keys("fence", "rates"), [fence, packed]))

    # ---- what everyone may read ------------------------------------------------------------------

    async def placement(self) -> Placement:
        raw = await self._ask(self._redis.get(self._key("placement")))
        return _parse(Placement, raw) if raw else Placement()

    async def policy(self) -> VersionedPolicy:
        return _parse_policy(await self._ask(self._redis.get(self._key("policy"))))

    async def plan(self, plan_id: str) -> Plan | None:
        raw = await self._ask(self._redis.get(self._key(f"plan:{plan_id}")))
        return _parse(Plan, raw) if raw else None

    async def plans(self, cursor: str | None, limit: int) -> Page[Plan]:
        """The newest first. Raises StoreCursorError."""
        limit = page_size(limit)
        found = await self._ask(
            self._redis.zrevrangebyscore(
                self._key("order"),
                f"({number_of(cursor)}" if cursor is not None else "+inf",
                "-inf",
                start=0,
                num=limit + 1,
                withscores=True,
            )
        )
        found, more = found[:limit], len(found) > limit
        raw = await self._raw_plans([plan_id for plan_id, _ in found])
        items = await asyncio.to_thread(lambda: [_parse(Plan, one) for one in raw])
        return Page(items, str(int(found[-1][1])) if more else None)

    async def _raw_plans(self, ids: Sequence[bytes]) -> list[bytes]:
        if not ids:
            return []
        keys = [self._key("plan:") + plan_id.decode() for plan_id in ids]
        found: Iterable[bytes | None] = await self._ask(self._redis.mget(keys), _LARGE)
        return [raw for raw in found if raw is not None]

    async def append_audit(self, entry: AuditEntry, key: str = "", *, again: bool = False) -> None:
        raw = entry.model_dump_json(exclude={"number"})
        keys = self._keys("audit-number", "audit")
        look_back = _AUDIT_LOOK_BACK if again else 0
        await self._ask(self._append(keys, [raw, self._settings.audit_max, key, look_back]))

    async def audit(self, cursor: str | None, limit: int) -> Page[AuditEntry]:
        """The newest first. Raises StoreCursorError."""
        limit = page_size(limit)
        last = "+"
        if cursor is not None:
            last = str(max(number_of(cursor) - 1, 0))
        question = self._redis.xrevrange(self._key("audit"), max=last, min="-", count=limit + 1)
        found = await self._ask(question)
        found, more = found[:limit], len(found) > limit
        items: list[AuditEntry] = []
        for entry_id, fields in found:
            number = int(entry_id.split(b"-")[0])
            items.append(_parse(AuditEntry, fields[b"entry"]).model_copy(update={"number": number}))
        return Page(items, str(items[-1].number) if more else None)

    async def plan_for_key(self, key: str) -> str | None:
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hget(self._key("keys"), key)
            pipeline.zscore(self._key("keys-end"), key)
            holder, end_s = await self._ask(pipeline.execute())
        if holder is None or end_s is None or end_s <= time.time():
            return None
        return cast("bytes", holder).decode()

    async def remember_key(self, key: str, plan_id: str, ttl_s: float) -> str:
        now_s = time.time()
        keys = self._keys("keys", "keys-end")
        arguments: list[str | int | float] = [
            key,
            plan_id,
            now_s,
            now_s + ttl_s,
            self._settings.keys_max,
        ]
        holder: bytes = await self._ask(self._remember(keys, arguments))
        return holder.decode()

    async def durability_problem(self) -> str:
        """Why what the server confirms may be lost; empty if nothing is known against it."""
        try:
            values = await self._ask(self._redis.config_get("append*"))
        except StoreAway as error:
            if isinstance(error.__cause__, ResponseError):
                # Services often keep that to themselves.
                return ""
            raise
        if values.get("appendonly") == "no":
            return "appendonly is off: a restart of the server forgets plans under way"
        if values.get("appendfsync", "always") != "always":
            return "appendfsync is not `always`: a power failure may forget a plan's commit point"
        return ""


def connect(settings: StoreSettings, url: str) -> Redis:
    """A client that waits for nothing longer than the settings say. Raises StoreOpenError."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=settings.connections_max,
            timeout=settings.timeout_s,
            socket_timeout=settings.timeout_s,
            socket_connect_timeout=settings.timeout_s,
            # What is to be tried again is decided above, where it is known what it means.
            retry=Retry(NoBackoff(), 0),
            **password_options(url, settings.password),
        )
    except RedisPasswordError as error:
        raise StoreOpenError(str(error)) from None
    except ValueError:
        # Not what is wrong with it: there may be a password in that.
        raise StoreOpenError(
            "the URL of the server is none: write redis://host:port/0, or unix:///path"
        ) from None
    return Redis.from_pool(pool)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _parse(kind: type[Part], raw: bytes) -> Part:
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise StoreAway(
            f"what is stored as {kind.__name__} cannot be read: {error.errors()[0]['msg']}"
        ) from error


def _parse_policy(raw: bytes | None) -> VersionedPolicy:
    return _parse(VersionedPolicy, raw.partition(b" ")[2]) if raw else VersionedPolicy()


def _pack(rates: dict[str, float], at_s: float) -> bytes:
    document = {"rates": rates, "at_s": at_s}
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)


def _unpack(packed: bytes | None) -> dict[str, Any]:
    """Rates are worth keeping, no more: what cannot be read is none."""
    nothing: dict[str, Any] = {"rates": {}, "at_s": 0.0}
    if not packed:
        return nothing
    try:
        raw = zlib.decompressobj().decompress(packed, _KEPT_RATES_BYTES_MAX)
        kept = json.loads(raw)
        rates = {str(topic): float(rate) for topic, rate in kept["rates"].items()}
        return {"rates": rates, "at_s": float(kept["at_s"])}
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("rates of the leader before cannot be read: %s", error)
        return nothing
