"""What makes a broker a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_agent.core.stores.log.log_requests import UnitExtent
from dynatops.kit.filters import Filter


@dataclass(frozen=True, slots=True)
class StoreOptions:
    # What it keeps.
    filters: Sequence[Filter]
    # What its log has, by unit.
    extents: Mapping[str, UnitExtent]
    # For how many units the log has room: topics on a ring, streams in a tree.
    units_max: int = 200_000
    # Whether the driver reads the log for others (`ReadPast`): only then it is advertised.
    serves: bool = False
