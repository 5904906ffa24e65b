"""Rules of what a store keeps, as people write them.

    quake/# age=7d bytes=10GB; devices/+/state last; prices last=symbol; # age=30d events=1000000

One rule after the other, and of each topic the first counts whose pattern matches. `last` keeps
only the last event of each topic, `last=NAME` of each value of that attribute.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from broker_agent.core.stores.log.retention import RetentionRule
from dynatops.kit.filters import Filter

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]*)")
_SECONDS = MappingProxyType({"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800})
_BYTES = MappingProxyType(
    {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
)
_ONE = MappingProxyType({"": 1})


def retention_rules(text: str) -> tuple[RetentionRule, ...]:
    """Raises ValueError, with what is wrong and where."""
    return tuple(_rule(part) for part in text.split(";") if part.strip())


def _rule(text: str) -> RetentionRule:
    pattern, *words = text.split()
    # A FilterError is a ValueError.
    Filter.parse(pattern)
    age_s, events_max, bytes_max, is_compacted, key = 0.0, 0, 0, False, ""
    if not words:
        raise ValueError(f"{pattern}: say what of it is kept: age=7d, events=1000, bytes=1GB, last")
    for word in words:
        name, _, value = word.partition("=")
        if name == "age":
            age_s = _amount(word, value, _SECONDS)
        elif name == "events":
            events_max = int(_amount(word, value, _ONE))
        elif name == "bytes":
            bytes_max = int(_amount(word, value, _BYTES))
        elif name == "last":
            is_compacted, key = True, value
        else:
            known = "age=7d, events=1000, bytes=1GB, last, last=ATTRIBUTE"
            raise ValueError(f"{pattern}: {word!r} is none of {known}")
    return RetentionRule(
        pattern=pattern,
        age_s=age_s,
        events_max=events_max,
        bytes_max=bytes_max,
        is_compacted=is_compacted,
        key=key,
    )


def _amount(word: str, value: str, units: MappingProxyType[str, int]) -> float:
    found = _NUMBER.fullmatch(value)
    factor = units.get(found[2]) if found is not None else None
    if found is None or factor is None:
        names = ", ".join(unit for unit in units if unit) or "no unit"
        raise ValueError(f"{word!r} needs a number, in {names}")
    return float(found[1]) * factor
