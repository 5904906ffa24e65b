"""What makes a broker a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_agent.core.stores.log.log_requests import UnitExtent
from dynatops.kit.filters import Filter


@dataclass(frozen=True, slots=True)
class StoreAssignment:
    """What a manager has said that a store keeps."""

    patterns: tuple[str, ...] = ()
    # Grows from one assignment to the next, whichever stores they are of; 0: there was none.
    epoch: int = 0
    # Of the manager that said so.
    fence: int = 0


@dataclass(frozen=True, slots=True)
class StoreOptions:
    # What it keeps when it starts.
    filters: Sequence[Filter]
    # What its log has, by unit.
    extents: Mapping[str, UnitExtent]
    # For how many units the log has room: topics on a ring, streams in a tree.
    units_max: int = 200_000
    # Whether the driver reads the log for others (`ReadPast`): only then it is advertised.
    serves: bool = False
    # How many topics or patterns a manager may have it keep; 0: its settings alone say what.
    capacity: int = 0
    # What a manager has said in a life before.
    assigned: StoreAssignment | None = None
