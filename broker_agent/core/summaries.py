"""What brokers of a cluster know of each other: topics and load, as of the last summary.

Topics and patterns are their keys, 64 bits of a hash. Where there are too many of them the lowest
are kept: as hashes they are a fair sample, and a sample of both sides is compared below the highest
key that both would show. Nothing here decides anything; see `selection`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from broker_agent.core.selection_settings import SelectionSettings
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.counters import counter
from overlay.identifiers import RING_MASK


@dataclass(slots=True)
class SelectionCounters:
    summaries_sent: int = counter("Summaries published to the cluster.")
    summaries_received: int = counter("Summaries taken in from other brokers of the cluster.")
    summaries_ignored: int = counter(
        "Summaries ignored: late, malformed, or from more brokers than a cluster may have."
    )
    summary_messages: int = counter(
        "Messages for exchanging summaries as DYNATOPS counts them: one to each other broker."
    )
    summary_keys_sent: int = counter("Topic keys in published summaries.")
    users_considered: int = counter("Times the best broker for a user was looked for.")
    redirects_similarity: int = counter("Users sent to a broker with more of their topics.")
    redirects_load: int = counter("Users sent to a broker with less load.")
    redirects_advised: int = counter("Users sent to the broker that advice names.")
    redirects_held_back: int = counter(
        "Users who would be better off elsewhere, but stay: moved lately, or too many at once."
    )


@dataclass(slots=True)
class LocalTopics:
    """What users of this broker subscribe to, kept up to date by whoever serves them."""

    sessions: int = 0
    subscriptions: int = 0
    # Key -> how many sessions subscribe to it.
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.counts[key] = self.counts.get(key, 0) + 1
            self.subscriptions += 1

    def remove(self, keys: Iterable[int]) -> None:
        """The keys must have been added."""
        for key in keys:
            left = self.counts[key] - 1
            if left:
                self.counts[key] = left
            else:
                del self.counts[key]
            self.subscriptions -= 1


@dataclass(slots=True)
class Neighbour:
    """Another broker of the cluster, as it last told, and what was done to it since."""

    broker_id: str
    address: str
    incarnation: int
    number: int
    heard_s: float
    subscriptions: int
    digest: int
    keys: frozenset[int]
    # Keys above this were not told.
    horizon: int
    # Users sent there since, who are not in the summary yet.
    sent: int = 0
    sent_subscriptions: int = 0
    sent_keys: set[int] = field(default_factory=set)

    @property
    def load(self) -> int:
        return self.subscriptions + self.sent_subscriptions

    def share_of(self, interests: Collection[int]) -> float:
        """|S_b ∩ s_u| / |s_u|, of what can be compared."""
        if self.horizon < RING_MASK:
            interests = [key for key in interests if key <= self.horizon]
        common = sum(1 for key in interests if key in self.keys or key in self.sent_keys)
        return common / len(interests) if interests else 0.0

    def expect(self, interests: Collection[int]) -> None:
        """A user with these interests is on the way there."""
        self.sent += 1
        self.sent_subscriptions += len(interests)
        self.sent_keys.update(interests)


def digest_of(keys: Iterable[int]) -> int:
    """Of ascending keys: equal for equal keys, on any machine."""
    joined = b"".join(key.to_bytes(8, "big") for key in keys)
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big")


class Neighbours:
    """The other brokers of the cluster."""

    def __init__(self, settings: SelectionSettings, counters: SelectionCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._known: dict[str, Neighbour] = {}

    def __len__(self) -> int:
        return len(self._known)

    def fresh(self, now_s: float) -> list[Neighbour]:
        """Those that may be chosen; the others are forgotten."""
        oldest_s = now_s - self._settings.stale_after_s
        for name in [n.broker_id for n in self._known.values() if n.heard_s < oldest_s]:
            del self._known[name]
        return list(self._known.values())

    def take(self, summary: BrokerSummary, now_s: float) -> bool:
        """Take in a summary; whether its keys are missing here."""
        known = self._known.get(summary.broker_id)
        life = (summary.incarnation, summary.number)
        if (
            not summary.broker_id
            or not summary.address
            or len(summary.keys) > self._settings.summary_keys_max
            or (known is not None and life <= (known.incarnation, known.number))
            or (known is None and len(self._known) >= self._settings.cluster_size_max)
        ):
            self._counters.summaries_ignored += 1
            return False
        self._counters.summaries_received += 1
        if summary.full:
            keys = frozenset(summary.keys)
            horizon = max(keys, default=0) if summary.truncated else RING_MASK
        elif known is not None and known.digest == summary.digest:
            keys, horizon = known.keys, known.horizon
        else:
            # Nobody is sent to a broker whose topics are unknown; what is known of it is too old.
            self._known.pop(summary.broker_id, None)
            return True
        self._known[summary.broker_id] = Neighbour(
            summary.broker_id,
            summary.address,
            summary.incarnation,
            summary.number,
            now_s,
            summary.subscriptions,
            summary.digest,
            keys,
            horizon,
        )
        return False

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self._known.values())


class Announcer:
    """Makes this broker's own summaries: when one is due, and with its keys or without."""

    def __init__(
        self, identity: tuple[str, str, int], settings: SelectionSettings, counters: SelectionCounters
    ) -> None:
        self._broker_id, self._address, self._incarnation = identity
        self._settings = settings
        self._counters = counters
        self._number = 0
        self._due_s: float | None = None
        self._digest: int | None = None
        self._short = 0

    def send_keys_again(self) -> None:
        """Somebody has come who does not know them."""
        self._digest = None

    def summary(self, local: LocalTopics, audience: int, now_s: float) -> BrokerSummary | None:
        """The next summary if it is due; `audience` is how many other brokers it goes to."""
        if self._due_s is not None and now_s < self._due_s:
            return None
        period_s = self._settings.update_period_s
        # In step with the first one; a broker that was asleep does not catch up.
        self._due_s = max((self._due_s or now_s) + period_s, now_s + period_s / 2)
        self._number += 1
        keys = heapq.nsmallest(self._settings.summary_keys_max, local.counts)
        digest = digest_of(keys)
        full = digest != self._digest or self._short + 1 >= self._settings.full_every
        self._digest = digest
        self._short = 0 if full else self._short + 1
        self._counters.summaries_sent += 1
        self._counters.summary_messages += audience
        self._counters.summary_keys_sent += len(keys) if full else 0
        return BrokerSummary(
            broker_id=self._broker_id,
            address=self._address,
            incarnation=self._incarnation,
            number=self._number,
            subscriptions=local.subscriptions,
            sessions=local.sessions,
            keys=keys if full else (),
            digest=digest,
            full=full,
            truncated=len(local.counts) > len(keys),
        )
