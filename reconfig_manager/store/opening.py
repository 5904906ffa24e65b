"""Which stores there are for a manager's state, and how one is opened: by a URL.

    opened = await open_store("redis://host:6379/0", StoreContext(settings, time.time))
    fence = await opened.store.acquire("m1", ttl_s=4.0)
    await opened.close()

This is their registry: a store is a module here, with `open_store(url, context)`, and an entry
below. What help, settings and the suite that all stores are held to
(`tests/integration/test_store_contract.py`) offer comes from it. A store's module is imported when
it is opened, as it may need packages that are not installed everywhere. The rest of the manager
knows `ports.Store`, and what is told of an opened one.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynatops.kit.background import Supervisor
    from reconfig_manager.ports import Store
    from reconfig_manager.store.store_settings import StoreSettings


@dataclass(frozen=True, slots=True)
class StoreKind:
    # In its URLs, before the colon.
    schemes: tuple[str, ...]
    module: str
    # For help: how its URLs are written, and what it is.
    url: str
    meaning: str


REDIS = StoreKind(
    ("redis", "rediss", "unix"),
    "redis_store",
    "redis://HOST:PORT/0 (or rediss://, unix:///PATH)",
    "a Redis or Valkey server that managers share",
)
STORES = (
    REDIS,
    StoreKind(
        ("embedded",),
        "embedded",
        "embedded:DIR",
        "a server of the manager's own, with its state in that folder",
    ),
    StoreKind(
        ("memory",),
        "memory",
        "memory:",
        "the manager's own memory, to try things out: one manager alone can use it, and all is "
        "lost when it ends",
    ),
)


class StoreOpenError(Exception):
    """The store cannot be used as it is set; the message says why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What stores are opened with."""

    settings: StoreSettings
    # Since 1970: for stores that have no clock of their own.
    now_s: Callable[[], float]
    # Finished plans that a new leader reads.
    plans_read: int = 100
    # Of work in the background, if the process has one.
    supervisor: Supervisor | None = None


async def _nothing_known() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    store: Store
    close: Callable[[], Awaitable[None]]
    # Why what the store has confirmed may be lost; empty if nothing is known against it. Raises
    # StoreAway.
    durability_problem: Callable[[], Awaitable[str]] = _nothing_known
    # Redis server that analytics may leave advice at; empty, if the store is none.
    redis_url: str = ""
    # Of what was started for the manager: another one that is given this URL shares its state.
    shared_url: str = ""


async def open_store(url: str, context: StoreContext) -> OpenedStore:
    """Raises StoreOpenError."""
    kind = kind_of(url)
    if kind is None:
        raise StoreOpenError(unknown_store())
    module = importlib.import_module(f"{__package__}.{kind.module}")
    opened: OpenedStore = await module.open_store(url, context)
    return opened


def kind_of(url: str) -> StoreKind | None:
    scheme, colon, _ = url.partition(":")
    return next((kind for kind in STORES if colon and scheme in kind.schemes), None)


def unknown_store() -> str:
    """What to write instead. Not the URL: there may be a password in it."""
    return f"there is no such store: write {', or '.join(kind.url for kind in STORES)}"


def describe_stores() -> str:
    """For help."""
    return "; ".join(f"{kind.url}, {kind.meaning}" for kind in STORES)
