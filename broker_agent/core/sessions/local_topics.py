"""What users of this broker subscribe to, by keys of topics and patterns; selection compares it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LocalTopics:
    """What users of this broker subscribe to, kept up to date by whoever serves them."""

    sessions: int = 0
    subscriptions: int = 0
    # Key -> how many sessions subscribe to it.
    counts: dict[int, int] = field(default_factory=dict)
    # Topics that the broker began or ceased to subscribe to: its subscription changes.
    changes: int = 0

    def add(self, keys: Iterable[int]) -> None:
        for key in keys:
            count = self.counts.get(key, 0)
            self.counts[key] = count + 1
            self.changes += not count
            self.subscriptions += 1

    def remove(self, keys: Iterable[int]) -> None:
        """The keys must have been added."""
        for key in keys:
            count = self.counts[key] - 1
            if count:
                self.counts[key] = count
            else:
                del self.counts[key]
                self.changes += 1
            self.subscriptions -= 1
