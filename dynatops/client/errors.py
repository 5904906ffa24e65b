"""What can go wrong for an application, each with the facts as fields."""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.topics import TopicError

__all__ = [
    "AccessError",
    "ClosedError",
    "ConnectError",
    "DynatopsError",
    "PublishError",
    "SubscribeError",
    "TopicError",
]


class DynatopsError(Exception):
    """Anything that this client raises, but for TopicError (a ValueError)."""


class ConnectError(DynatopsError):
    """No broker could be reached, or none would have us."""

    def __init__(self, addresses: Iterable[str], reason: str) -> None:
        self.addresses = list(addresses)
        self.reason = reason
        super().__init__(f"cannot connect to {', '.join(self.addresses)}: {reason}")


class AccessError(DynatopsError):
    """The broker does not let this client in: its token is missing, unknown, or another's."""


class ClosedError(DynatopsError):
    """The client was closed, or its session ended for good."""


class PublishError(DynatopsError):
    """Events were not published; or not acknowledged in time, and may yet arrive."""

    def __init__(self, topic: str, reason: str, *, may_arrive: bool = False) -> None:
        self.topic = topic
        self.reason = reason
        self.may_arrive = may_arrive
        super().__init__(f"publishing on {topic!r}: {reason}")


class SubscribeError(DynatopsError):
    """The broker will not have these topics, or did not confirm them in time."""

    def __init__(self, topics: Iterable[str], reason: str) -> None:
        self.topics = list(topics)
        self.reason = reason
        super().__init__(f"subscribing to {', '.join(map(repr, self.topics))}: {reason}")
