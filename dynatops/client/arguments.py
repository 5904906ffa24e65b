"""What applications hand in, checked where it enters, for both faces of the client.

Each check returns what the rest of the client works with, or raises an error that names the
argument, what it was, and what it should be. Nothing has happened by then: the next call is as good
as if this one had not been made. Topics, patterns, conditions and attributes have checks and errors
of their own (`dynatops.kit.topics`, `dynatops.kit.filters`); here they are only seen to be of the
right type.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from dynatops.client.core.publications import RUN_BYTES_MAX, RUN_EVENTS_MAX, Ack
from dynatops.client.core.work import AckMode, WorkLimits
from dynatops.client.errors import ArgumentTypeError, ArgumentValueError
from dynatops.kit.addresses import split_address
from dynatops.kit.filters import pattern_matches
from dynatops.kit.security.tls import Tls
from dynatops.kit.topics import check_topic

CLIENT_ID_BYTES_MAX = 256
# Events that one subscription may have in hand; how often one may be handed out.
IN_FLIGHT_MAX = 10_000
DELIVERIES_MAX = 1_000_000
KEEP_S_MAX = (1 << 32) - 1
_PORT_MAX = 65_535
# Topics found right that a client knows.
_RIGHT_TOPICS_MAX = 65_536
# How long events are gathered that are made one by one.
_CHUNK_S = 0.001
_BINARY = (bytes, bytearray, memoryview)
_ACKS = {ack.name.lower(): ack for ack in Ack}


# ---- publishing ----------------------------------------------------------------------------------


def checked_payload(payload: object, name: str = "payload") -> bytes:
    """A copy if it could be changed, or is a view of something else."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, _BINARY):
        return bytes(payload)
    if isinstance(payload, str):
        raise ArgumentTypeError(name, payload, "bytes: call .encode() on a text")
    raise ArgumentTypeError(name, payload, "bytes, bytearray or memoryview")


def check_payloads(payloads: object) -> None:
    """That it can be gone through; all of a list at once, what makes its items later as it does."""
    wanted = "a list of payloads, or anything else to go through with `for`"
    if isinstance(payloads, (str, *_BINARY)) or not isinstance(payloads, Iterable):
        raise ArgumentTypeError("payloads", payloads, wanted)
    if isinstance(payloads, (list, tuple)):
        for index, payload in enumerate(payloads):
            if type(payload) is not bytes:
                checked_payload(payload, f"payloads[{index}]")


class PublishingLimits:
    """What the present broker takes; and topics that have been found right by that, lately: most
    are published on again and again."""

    def __init__(self, topic_bytes_max: int, payload_bytes_max: int) -> None:
        self.payload_bytes_max = payload_bytes_max
        self.right_topics: set[str] = set()
        self._topic_bytes_max = topic_bytes_max

    def fitting(self, payloads: Sequence[bytes]) -> int:
        """How many go before the first that is too large."""
        limit = self.payload_bytes_max
        if max(map(len, payloads), default=0) <= limit:
            return len(payloads)
        return next(i for i, payload in enumerate(payloads) if len(payload) > limit)

    def check_topic(self, topic: object, name: str = "topic") -> None:
        """Needed of those only that are not among `right_topics`."""
        if not isinstance(topic, str):
            raise ArgumentTypeError(name, topic, "a text")
        check_topic(topic, self._topic_bytes_max)
        if len(self.right_topics) >= _RIGHT_TOPICS_MAX:
            self.right_topics.clear()
        self.right_topics.add(topic)


def check_events(events: object) -> None:
    """That it can be gone through."""
    wanted = "a list of pairs, topic and payload, or anything else to go through with `for`"
    if isinstance(events, Mapping):
        raise ArgumentTypeError("events", events, f"{wanted}: call .items() on a mapping")
    if isinstance(events, _BINARY) or not isinstance(events, Iterable):
        raise ArgumentTypeError("events", events, wanted)


def event_chunks(
    events: Iterable[object], limits: PublishingLimits
) -> Iterator[tuple[list[str], list[bytes]]]:
    """Topics and payloads that may be taken in at once, in order. Of a list all are checked before
    there is any. What makes its items when it is asked may take its time, or fail: what it has made
    is gathered for a millisecond, and is not lost."""
    topics: list[str] = []
    payloads: list[bytes] = []
    nbytes = 0
    is_list = isinstance(events, (list, tuple))
    until_s = time.monotonic() + _CHUNK_S
    try:
        for index, pair in enumerate(events):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ArgumentTypeError(f"events[{index}]", pair, "a pair: a topic, a payload")
            topic, payload = pair
            if type(topic) is not str or topic not in limits.right_topics:
                limits.check_topic(topic, f"events[{index}][0]")
            if type(payload) is not bytes:
                payload = checked_payload(payload, f"events[{index}][1]")
            topics.append(topic)
            payloads.append(payload)
            if is_list:
                continue
            nbytes += len(payload)
            if (
                len(topics) < RUN_EVENTS_MAX
                and nbytes < RUN_BYTES_MAX
                and time.monotonic() < until_s
            ):
                continue
            yield topics, payloads
            topics, payloads, nbytes = [], [], 0
            until_s = time.monotonic() + _CHUNK_S
    except Exception:
        if topics and not is_list:
            yield topics, payloads
        raise
    first = 0
    while first < len(topics):
        count = RUN_EVENTS_MAX
        while count > 1 and sum(map(len, payloads[first : first + count])) > RUN_BYTES_MAX:
            count //= 2
        yield topics[first : first + count], payloads[first : first + count]
        first += count


def chunks_of(payloads: Iterable[object]) -> Iterator[Sequence[bytes]]:
    """What may be taken in at once, in order: as many of a list as a publication holds. What makes
    its items when it is asked may take its time, or fail, so that each is a chunk."""
    if not isinstance(payloads, (list, tuple)):
        for payload in payloads:
            yield (checked_payload(payload),)
        return
    chunk: list[bytes] = []
    nbytes = 0
    for payload in payloads:
        data = payload if type(payload) is bytes else checked_payload(payload)
        chunk.append(data)
        nbytes += len(data)
        if len(chunk) == RUN_EVENTS_MAX or nbytes >= RUN_BYTES_MAX:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


def checked_ack(ack: object) -> Ack:
    if isinstance(ack, Ack):
        return ack
    if not isinstance(ack, str):
        raise ArgumentTypeError("ack", ack, f"an Ack, or its name ({', '.join(_ACKS)})")
    if ack not in _ACKS:
        raise ArgumentValueError("ack", f"{_shown(ack)} is none of {', '.join(_ACKS)}")
    return _ACKS[ack]


def check_attributes(attributes: object) -> None:
    if attributes is not None and not isinstance(attributes, Mapping):
        raise ArgumentTypeError("attributes", attributes, "a mapping of names to values")


def check_timeout(timeout_s: object, name: str = "timeout_s") -> None:
    if type(timeout_s) is float and timeout_s > 0:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise ArgumentTypeError(name, timeout_s, "a number of seconds")
    if not timeout_s > 0:
        raise ArgumentValueError(name, f"a number of seconds above 0, not {timeout_s}")


# ---- subscribing ---------------------------------------------------------------------------------


def check_patterns(patterns: Sequence[object]) -> None:
    for pattern in patterns:
        if isinstance(pattern, (list, tuple, set, frozenset)):
            hint = "a text; spread several with a star: subscribe(*patterns)"
            raise ArgumentTypeError("pattern", pattern, hint)
        check_text(pattern, "pattern")


def check_pattern_list(patterns: object, name: str) -> None:
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise ArgumentTypeError(name, patterns, "a list of patterns")
    check_patterns(list(patterns))


def check_callback(callback: object, name: str) -> None:
    if callback is None:
        return
    if not callable(callback):
        raise ArgumentTypeError(name, callback, "a function")
    if inspect.iscoroutinefunction(callback):
        hint = "a plain function: it is called, and is not awaited"
        raise ArgumentTypeError(name, callback, hint)


def check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise ArgumentTypeError(name, text, "a text")


def check_work(
    patterns: Sequence[str], ack: object, limits: WorkLimits, dead_letter: object
) -> None:
    """What a subscription is told of acknowledging."""
    if ack not in get_args(AckMode):
        raise ArgumentValueError("ack", f'"auto" or "manual", not {ack!r}')
    _check_count(limits.max_in_flight, "max_in_flight", range(1, IN_FLIGHT_MAX + 1))
    _check_count(limits.max_deliver, "max_deliver", range(DELIVERIES_MAX + 1))
    if not _is_number(limits.ack_wait_s):
        raise ArgumentTypeError("ack_wait_s", limits.ack_wait_s, "a number of seconds, or 0")
    if not 0 <= limits.ack_wait_s < math.inf:
        raise ArgumentValueError("ack_wait_s", f"seconds, or 0, not {limits.ack_wait_s}")
    check_text(dead_letter, "dead_letter")
    if ack == "auto" and (limits != WorkLimits() or dead_letter):
        raise ArgumentValueError("ack", 'limits of work need ack="manual"')
    if dead_letter and not limits.max_deliver:
        raise ArgumentValueError("max_deliver", "say after how many times it is a dead letter")
    if dead_letter and any(pattern_matches(pattern, str(dead_letter)) for pattern in patterns):
        hint = f"{dead_letter!r} is among the topics subscribed to"
        raise ArgumentValueError("dead_letter", hint)


def check_delay(delay_s: object) -> None:
    if not _is_number(delay_s):
        raise ArgumentTypeError("delay_s", delay_s, "a number of seconds")
    if not 0 <= float(str(delay_s)) < math.inf:
        raise ArgumentValueError("delay_s", f"seconds, or 0, not {delay_s}")


def _check_count(count: object, name: str, allowed: range) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise ArgumentTypeError(name, count, "a whole number")
    if count not in allowed:
        hint = f"from {allowed.start} to {allowed.stop - 1:,}, not {count}"
        raise ArgumentValueError(name, hint)


# ---- connecting ----------------------------------------------------------------------------------


def checked_addresses(addresses: object) -> list[str]:
    if isinstance(addresses, _BINARY) or not isinstance(addresses, Iterable):
        raise ArgumentTypeError("addresses", addresses, "host:port, one or several")
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    for part in parts:
        if not isinstance(part, str):
            kind = f"{type(addresses).__name__} of {type(part).__name__}"
            raise ArgumentTypeError("addresses", addresses, "texts, host:port", kind=kind)
    seeds = [part.strip() for part in parts if part.strip()]
    if not seeds:
        raise ArgumentValueError("addresses", "no address given")
    for seed in seeds:
        _check_address(seed)
    return seeds


def _check_address(address: str) -> None:
    scheme, separator, rest = address.partition("://")
    if separator:
        hint = f"{_shown(address)}: write it without {scheme}://, {_shown(rest.strip('/'))}"
        raise ArgumentValueError("addresses", hint)
    try:
        host, port = split_address(address)
    except ValueError:
        host, port = "", -1
    if port == 0 or (port < 0 and address.rpartition(":")[2].isdigit() and ":" in address):
        hint = f"{_shown(address)} has no port of 1 to {_PORT_MAX}; write host:port"
        raise ArgumentValueError("addresses", hint)
    if not host or any(c.isspace() or c in "/?#@" for c in host):
        raise ArgumentValueError("addresses", f"{_shown(address)} is no address; write host:port")


def check_connect(
    *,
    client_id: object,
    keep_s: object,
    clean: object,
    stay: object,
    token: object,
    tls: object,
    timeout_s: object,
    disconnect_when_slow: object,
    on_connection: object,
) -> None:
    _check_sendable(client_id, "client_id", CLIENT_ID_BYTES_MAX)
    _check_sendable(token, "token", None)
    _check_keep(keep_s)
    if keep_s and not client_id:
        raise ArgumentValueError(
            "keep_s", "a session to be kept needs a client_id to come back with"
        )
    flags = {"clean": clean, "stay": stay, "disconnect_when_slow": disconnect_when_slow}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ArgumentTypeError(name, flag, "True or False")
    if tls is not None and not isinstance(tls, Tls):
        raise ArgumentTypeError("tls", tls, "a Tls, such as Tls(ca='ca.crt'), or None")
    check_timeout(timeout_s)
    check_callback(on_connection, "on_connection")


def _check_sendable(text: object, name: str, bytes_max: int | None) -> None:
    check_text(text, name)
    try:
        size = len(str(text).encode())
    except UnicodeEncodeError:
        raise ArgumentValueError(name, "cannot be written as UTF-8") from None
    if bytes_max is not None and size > bytes_max:
        raise ArgumentValueError(name, f"has {size:,} bytes; the limit is {bytes_max:,}")


def _check_keep(keep_s: object) -> None:
    if isinstance(keep_s, bool) or not isinstance(keep_s, (int, float)):
        raise ArgumentTypeError("keep_s", keep_s, "a number of whole seconds")
    if keep_s != int(keep_s) if math.isfinite(keep_s) else True:
        raise ArgumentValueError("keep_s", f"a number of whole seconds, not {keep_s}")
    if not 0 <= keep_s <= KEEP_S_MAX:
        raise ArgumentValueError("keep_s", f"from 0 to {KEEP_S_MAX:,} seconds, not {keep_s}")


def checked_place(place: object) -> tuple[float, float] | None:
    if place is None:
        return None
    if not isinstance(place, (tuple, list)) or len(place) != 2 or not all(map(_is_number, place)):
        raise ArgumentTypeError("place", place, "a pair of numbers: latitude, longitude")
    latitude, longitude = place
    if not (abs(latitude) <= 90.0 and abs(longitude) <= 180.0):
        raise ArgumentValueError("place", f"{place} is no latitude and longitude in degrees")
    return float(latitude), float(longitude)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(text: str, characters_max: int = 60) -> str:
    return repr(text if len(text) <= characters_max else text[:characters_max] + "…")
