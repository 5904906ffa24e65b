"""Messages that nobody in their right mind would send."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dynatops.v1.overlay_pb2 import Bundle

M = TypeVar("M", bound=Message)

_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_FIXED32: 32,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_FIXED64: 64,
}
_TEXTS = (
    "",
    "a",
    "news/1",
    "quake/ca",
    "+",
    "#",
    "$x",
    "a\0b",
    "é" * 600,
    "x" * 1_024,
    "x" * 2_000,
)


def random_message(rng: Random, kind: type[M], depth: int = 4) -> M:
    """Every field of it may be there, with anything that fits its type."""
    message = kind()
    # Stubs differ in what a descriptor is made of.
    descriptor: Any = kind.DESCRIPTOR
    chosen = {oneof.name: rng.choice(oneof.fields).name for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if rng.random() < 0.2 or (oneof is not None and chosen[oneof.name] != field.name):
            continue
        if field.message_type is not None:
            if depth:
                _fill_message(rng, message, field, depth)
        elif field.is_repeated:
            values = getattr(message, field.name)
            values.extend(_value(rng, field) for _ in range(rng.randint(0, 4)))
        else:
            setattr(message, field.name, _value(rng, field))
    if isinstance(message, Bundle) and rng.random() < 0.7:
        _align(rng, message)
    return message


def _align(rng: Random, bundle: Bundle) -> None:
    """Columns as they should be, now and then with numbers that cannot be."""
    count = len(bundle.topics) or 1
    low = rng.choice((0, 1, 1, 1, 2))
    for name, values in (
        ("topics", [*bundle.topics] or ["a"]),
        ("numbers", [rng.randint(low, 4) for _ in range(count)]),
        ("published_us", [rng.getrandbits(64) for _ in range(count)]),
        ("sizes", [rng.randint(0, 3) for _ in range(count)]),
    ):
        column = getattr(bundle, name)
        del column[:]
        column.extend(values)
    bundle.payloads = bytes(sum(bundle.sizes))
    for column in (bundle.pending, bundle.terms, bundle.seqs):
        del column[:]
    if rng.random() < 0.5:
        bundle.terms.extend([rng.choice((1, 1 << 24))] * count)
        bundle.seqs.extend(rng.randint(low + 1, 4) for _ in range(count))
    else:
        bundle.pending.extend([0] * count)


def _fill_message(rng: Random, message: Message, field: Any, depth: int) -> None:
    value = getattr(message, field.name)
    if field.is_repeated:
        for _ in range(rng.randint(0, 3)):
            value.add().CopyFrom(random_message(rng, type(value.add()), depth - 1))
    else:
        value.CopyFrom(random_message(rng, type(value), depth - 1))


def _value(rng: Random, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 100, 5_000)))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.randint(0, 20)
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e300, float("inf"), float("nan")))
    bits = _INTEGERS.get(field.type)
    if bits is None:
        return rng.choice((0, 1, -1, 2**31 - 1, -(2**31)))
    return rng.choice((0, 1, 2, rng.getrandbits(8), rng.getrandbits(bits), (1 << bits) - 1))


def mutated(rng: Random, raw: bytes) -> bytes:
    """Some bytes changed, inserted, removed or repeated."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(data))
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] = rng.getrandbits(8)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case _:
                data[at:at] = data[at : at + rng.randint(1, 16)]
    return bytes(data)
