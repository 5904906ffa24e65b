"""What can go wrong for an application, each with the facts as fields."""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.kit.topics import TopicError

__all__ = [
    "AccessError",
    "AckError",
    "ArgumentError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "CallbackError",
    "ClientFailedError",
    "ClosedError",
    "ConnectError",
    "DynatopsError",
    "HistoryError",
    "PublishError",
    "SubscribeError",
    "TopicError",
    "WrongLoopError",
]


# Of the topics that an error is about, as many are said; it has them all.
_SHOWN_TOPICS = 10


class DynatopsError(Exception):
    """What this client raises, but for what is wrong with a topic, a filter, attributes or files of
    certificates: TopicError, FilterError, AttributesError and TlsFileError are ValueErrors."""


class ArgumentError(DynatopsError):
    """A call that could not be right: nothing has been done. `argument` is the one to blame."""

    def __init__(self, argument: str, message: str) -> None:
        self.argument = argument
        super().__init__(message)


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of a type that cannot be used there."""

    def __init__(self, argument: str, value: object, wanted: str, *, kind: str = "") -> None:
        self.wanted = wanted
        kind = kind or type(value).__name__
        super().__init__(argument, f"{argument} is {kind}; it should be {wanted}")


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a value that cannot be used there."""

    def __init__(self, argument: str, reason: str) -> None:
        self.reason = reason
        super().__init__(argument, f"{argument}: {reason}")


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


class AckError(DynatopsError):
    """This event cannot be acknowledged, or given back; the message says why."""

    def __init__(self, topic: str, term: int, seq: int, reason: str) -> None:
        self.topic = topic
        self.term = term
        self.seq = seq
        self.reason = reason
        super().__init__(f"event {term}/{seq} of {topic!r}: {reason}")


class ClientFailedError(ClosedError):
    """A fault in this library has ended the client; `__cause__` says which. Please report it."""


class WrongLoopError(DynatopsError, RuntimeError):
    """A client, or its subscription, was used outside the event loop in which it was opened."""

    def __init__(self, *, connected: bool) -> None:
        here = "this client belongs to another event loop; connect one in each, or use connect_sync"
        super().__init__(here if connected else "this client was never opened; use connect")


class CallbackError(DynatopsError, RuntimeError):
    """A callback of a synchronous client called that client, which would wait for itself."""

    def __init__(self) -> None:
        super().__init__(
            "a client cannot be called in a callback of its own (on_gap, on_connection): it would "
            "wait for itself; hand the work to another thread"
        )


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
        shown = ", ".join(map(repr, self.topics[:_SHOWN_TOPICS]))
        if len(self.topics) > _SHOWN_TOPICS:
            shown += f", … ({len(self.topics):,} in all)"
        super().__init__(f"subscribing to {shown}: {reason}")


class HistoryError(DynatopsError):
    """The past of these topics cannot be had, or not all of it.

    `code` says why in a word: "not_stored", "future", "expired", "forbidden", "overloaded",
    "damaged", "unavailable" or "invalid".
    """

    def __init__(self, pattern: str, code: str, reason: str) -> None:
        self.pattern = pattern
        self.code = code
        self.reason = reason
        super().__init__(f"the past of {pattern!r}: {reason}")
