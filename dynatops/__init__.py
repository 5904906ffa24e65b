"""DYNATOPS: topic publish/subscribe on a broker network that rearranges itself.

    import dynatops

    async with dynatops.connect("127.0.0.1:7400") as client:
        await client.publish("quake/ca", b"M5.1")

Names are loaded when they are first used, so that importing a part of the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynatops.version import VERSION

if TYPE_CHECKING:
    from dynatops.client.aio import Client as Client
    from dynatops.client.core.publications import Ack as Ack
    from dynatops.client.cursors import Cursor as Cursor
    from dynatops.client.errors import AccessError as AccessError
    from dynatops.client.errors import AckError as AckError
    from dynatops.client.errors import ArgumentError as ArgumentError
    from dynatops.client.errors import ArgumentTypeError as ArgumentTypeError
    from dynatops.client.errors import ArgumentValueError as ArgumentValueError
    from dynatops.client.errors import CallbackError as CallbackError
    from dynatops.client.errors import ClientFailedError as ClientFailedError
    from dynatops.client.errors import ClosedError as ClosedError
    from dynatops.client.errors import ConnectError as ConnectError
    from dynatops.client.errors import DynatopsError as DynatopsError
    from dynatops.client.errors import HistoryError as HistoryError
    from dynatops.client.errors import PublishError as PublishError
    from dynatops.client.errors import SubscribeError as SubscribeError
    from dynatops.client.errors import WrongLoopError as WrongLoopError
    from dynatops.client.events import Batch as Batch
    from dynatops.client.events import Event as Event
    from dynatops.client.history import History as History
    from dynatops.client.opening import connect as connect
    from dynatops.client.subscription import Gap as Gap
    from dynatops.client.subscription import Subscription as Subscription
    from dynatops.client.sync import SyncClient as SyncClient
    from dynatops.client.sync import SyncHistory as SyncHistory
    from dynatops.client.sync import SyncSubscription as SyncSubscription
    from dynatops.client.sync import connect_sync as connect_sync
    from dynatops.kit.filters import AttributesError as AttributesError
    from dynatops.kit.filters import Filter as Filter
    from dynatops.kit.filters import FilterError as FilterError
    from dynatops.kit.security.tls import Tls as Tls
    from dynatops.kit.security.tls import TlsFileError as TlsFileError
    from dynatops.kit.topics import TopicError as TopicError

_HOMES = {
    "AccessError": "dynatops.client.errors",
    "Ack": "dynatops.client.core.publications",
    "AckError": "dynatops.client.errors",
    "ArgumentError": "dynatops.client.errors",
    "ArgumentTypeError": "dynatops.client.errors",
    "ArgumentValueError": "dynatops.client.errors",
    "AttributesError": "dynatops.kit.filters",
    "Batch": "dynatops.client.events",
    "CallbackError": "dynatops.client.errors",
    "Client": "dynatops.client.aio",
    "ClientFailedError": "dynatops.client.errors",
    "ClosedError": "dynatops.client.errors",
    "ConnectError": "dynatops.client.errors",
    "Cursor": "dynatops.client.cursors",
    "DynatopsError": "dynatops.client.errors",
    "Event": "dynatops.client.events",
    "Filter": "dynatops.kit.filters",
    "FilterError": "dynatops.kit.filters",
    "Gap": "dynatops.client.subscription",
    "History": "dynatops.client.history",
    "HistoryError": "dynatops.client.errors",
    "PublishError": "dynatops.client.errors",
    "SubscribeError": "dynatops.client.errors",
    "Subscription": "dynatops.client.subscription",
    "SyncClient": "dynatops.client.sync",
    "SyncHistory": "dynatops.client.sync",
    "SyncSubscription": "dynatops.client.sync",
    "Tls": "dynatops.kit.security.tls",
    "TlsFileError": "dynatops.kit.security.tls",
    "TopicError": "dynatops.kit.topics",
    "WrongLoopError": "dynatops.client.errors",
    "connect": "dynatops.client.opening",
    "connect_sync": "dynatops.client.sync",
}

_OF_EVERY_MODULE = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")

__version__ = VERSION
__all__ = sorted(_HOMES)  # noqa: PLE0605  # one list of names, not two


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dynatops' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not; not the parts of the package that happen to be loaded."""
    return [*__all__, *_OF_EVERY_MODULE]
