"""A request to subscribe, while some of its topics are not in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_agent.core.routing.confirming import UnconfirmedRequest
from broker_agent.core.routing.rendezvous.reading.feeds import CursorKey
from dynatops.kit.filters import Filter


@dataclass(slots=True, eq=False)
class TopicsRequest(UnconfirmedRequest):
    # By topic, if the client goes on where it stood elsewhere.
    cursors: Mapping[str, CursorKey] = field(default_factory=dict)
    # Topics without a position.
    missing: dict[str, None] = field(default_factory=dict)
    # Whether there are wildcards in it: then the client is told where the catalogue stands; with
    # that it is told, wherever it goes on, if names of topics were lost.
    is_wild: bool = False
    # Filters that wait for the catalogue: wildcards, and whatever a session says after it came
    # back with some, so that no topic begins later than they would have it.
    held: list[Filter] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.missing and not self.held
