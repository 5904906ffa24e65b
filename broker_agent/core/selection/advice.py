"""Which broker is advised for whom: what analytics worked out from all that brokers logged.

Advice is a table, written to Redis by analytics and read from there by `runtime.advice`. It is one
opinion beside the broker's own, for as long as it is fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SelectionAdvice:
    """One version of the advice. It names brokers by id."""

    version: str
    # From when it was read.
    fresh_for_s: float
    # Client id -> broker.
    clients: Mapping[str, str] = field(default_factory=dict)
    # Key of a topic -> the broker at which its followers had better gather.
    topics: Mapping[int, str] = field(default_factory=dict)

    def broker_for(self, client_id: str, interests: Collection[int]) -> str | None:
        """The client's own if it has one, else the one that most of its topics name."""
        named = self.clients.get(client_id)
        if named is not None or not self.topics:
            return named
        votes = Counter(self.topics[key] for key in interests if key in self.topics)
        # The name decides between equals, so that all brokers advise alike.
        return min(votes, key=lambda name: (-votes[name], name)) if votes else None
