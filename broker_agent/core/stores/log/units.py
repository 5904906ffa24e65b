"""Names of units beside those that routings give them."""

from __future__ import annotations

# In no topic.
_SIDE = "\0"


def side_unit(unit: str, term: int) -> str:
    """Where events of a term are kept that came when their unit was in a later one: of a branch of
    its history that is none of it any more."""
    return f"{unit}{_SIDE}{term:x}"


def is_side_unit(unit: str) -> bool:
    return _SIDE in unit


def base_unit(unit: str) -> str:
    """The unit that it is beside, or itself."""
    return unit.partition(_SIDE)[0]
