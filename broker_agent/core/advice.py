"""Which broker is advised for whom: what analytics worked out from all that brokers logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Advice:
    """One run's advice. It names brokers by id, and is good until `expires_s`."""

    version: str
    # On the clock of the core that is given it.
    expires_s: float
    # Client id -> broker.
    clients: Mapping[str, str] = field(default_factory=dict)
    # Key of a topic -> the broker that its followers had better gather at.
    topics: Mapping[int, str] = field(default_factory=dict)

    def broker_for(self, client_id: str, interests: Collection[int]) -> str | None:
        """The client's own if it has one, else the one that most of its topics name."""
        named = self.clients.get(client_id)
        if named is not None or not self.topics:
            return named
        votes = Counter(self.topics[key] for key in interests if key in self.topics)
        # The name breaks ties, so that all brokers advise alike.
        return min(votes, key=lambda name: (-votes[name], name)) if votes else None
