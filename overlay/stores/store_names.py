"""What a store is called among other stores: each is advertised by its own name, besides what it
keeps.

So every broker knows of all stores, and each can ask each other one for what its log lacks; even
one that may not be asked by clients yet, as it lacks something itself.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

# No topic of anybody's begins like this, and no filter of a client's is about it.
_PREFIX = "$store/"


def store_name(broker_id: str) -> str:
    return _PREFIX + quote(broker_id, safe="")


def store_of_name(unit: str) -> str | None:
    """The broker; None: it is not the name of a store."""
    return unquote(unit.removeprefix(_PREFIX)) if unit.startswith(_PREFIX) else None
