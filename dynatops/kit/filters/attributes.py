"""The attributes of an event, between the mapping that applications give and the wire.

Publishers are told what is wrong. Whoever reads keeps what is sound: what came through the network
cannot be refused any more, and an attribute that is left out makes filters false, no worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dynatops.kit.filters.conditions import NAME_QUOTE, Attributes, Value, is_control
from dynatops.kit.filters.grammar import NAME_BYTES_MAX, WHOLE_MAX, WHOLE_MIN
from dynatops.v1.overlay_pb2 import Attribute

ATTRIBUTES_MAX = 64
TEXT_BYTES_MAX = 1_024


class AttributesError(ValueError):
    """An event cannot have these attributes. `name` is the one to blame, if one is."""

    def __init__(self, name: str | None, reason: str) -> None:
        subject = "attributes:" if name is None else f"attribute {name[:40]!r}"
        super().__init__(f"{subject} {reason}")
        self.name = name
        self.reason = reason


def attributes_to_wire(attributes: Attributes) -> list[Attribute]:
    """Raise AttributesError unless every filter could ask about them."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise AttributesError(None, f"there are {len(attributes)}; the limit is {ATTRIBUTES_MAX}")
    return [_to_wire(name, value) for name, value in attributes.items()]


def attributes_of(message: Iterable[Attribute]) -> dict[str, Value]:
    """Without those that have no sound value. Of several with one name, the first."""
    attributes: dict[str, Value] = {}
    for attribute in message:
        name = attribute.name
        # Most are these, and what is not there reads as nothing.
        value: Value | None = attribute.text or attribute.whole or _value_of(attribute)
        if value is None or name in attributes:
            continue
        if len(attributes) == ATTRIBUTES_MAX:
            break
        attributes[name] = value
    return attributes


def _value_of(attribute: Attribute) -> Value | None:
    kind = attribute.WhichOneof("value")
    if kind is None or (kind == "number" and not math.isfinite(attribute.number)):
        return None
    value: Value = getattr(attribute, kind)
    return value


def _to_wire(name: str, value: Value) -> Attribute:
    _check_name(name)
    match value:
        # Truths are whole numbers to Python: they come first.
        case bool():
            return Attribute(name=name, truth=value)
        case int():
            if not WHOLE_MIN <= value <= WHOLE_MAX:
                raise AttributesError(name, "is a whole number beyond 64 bits")
            return Attribute(name=name, whole=value)
        case float():
            if not math.isfinite(value):
                raise AttributesError(name, f"is {value}, which cannot be compared")
            return Attribute(name=name, number=value)
        case str():
            size = _utf8_size(name, value)
            if size > TEXT_BYTES_MAX:
                raise AttributesError(name, f"has {size:,} bytes; the limit is {TEXT_BYTES_MAX:,}")
            return Attribute(name=name, text=value)
    raise AttributesError(name, f"is of type {type(value).__name__}; text, numbers, truths can be")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise AttributesError(None, f"a name is a text that is not empty, not {name!r}")
    if _utf8_size(name, name) > NAME_BYTES_MAX:
        raise AttributesError(name, f"has a name of more than {NAME_BYTES_MAX} bytes")
    if NAME_QUOTE in name or any(map(is_control, name)):
        raise AttributesError(name, "has a backquote or a control character in its name")


def _utf8_size(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise AttributesError(name, "cannot be written as UTF-8") from None
