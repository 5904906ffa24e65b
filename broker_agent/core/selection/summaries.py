"""What brokers of a cluster know of each other: topics and load, as of the last summary.

Topics and patterns are their keys, 64 bits of a hash. Where there are too many the lowest are told:
of hashes these are a fair sample, and compared is what lies below the highest key told. Nothing
here decides anything; see `selection`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.sessions.local_topics import LocalTopics
from dynatops.v1.selection_pb2 import BrokerSummary
from overlay.base.identifiers import RING_MASK

NAME_CHARACTERS_MAX = 1_024
# Further doors that a broker may tell of.
DOORS_MAX = 16
# Fewer changes than this are no reason for a summary before its time.
_EARLY_CHANGES_MIN = 3
# How often those that have been silent for too long are looked for, while summaries come.
_FORGET_PERIOD_S = 1.0


@dataclass(slots=True)
class Neighbour:
    """Another broker of the cluster as it last told, and who was sent there since."""

    broker_id: str
    address: str
    # Incarnation, and number within it.
    life: tuple[int, int]
    heard_s: float
    subscriptions: int
    digest: int
    keys: frozenset[int]
    # Keys above this were not told.
    horizon: int
    # Where clients that come by a further door reach it, by the door's name.
    doors: Mapping[str, str] = field(default_factory=dict)
    # It is shutting down, and takes nobody in.
    leaving: bool = False
    sent: int = 0
    sent_subscriptions: int = 0
    sent_keys: set[int] = field(default_factory=set)

    @property
    def load(self) -> int:
        return self.subscriptions + self.sent_subscriptions

    def address_by(self, door: str) -> str:
        """Where clients reach it that come by this door; empty: not at all, as far as is known."""
        return self.doors.get(door, "") if door else self.address

    def share_of(self, interests: Collection[int]) -> float:
        """|S_b ∩ s_u| / |s_u|, of what can be compared."""
        if self.horizon < RING_MASK:
            interests = [key for key in interests if key <= self.horizon]
        common = sum(1 for key in interests if key in self.keys or key in self.sent_keys)
        return common / len(interests) if interests else 0.0

    def expect(self, sample: Collection[int], subscriptions: int) -> None:
        """A user with these topics is on the way there."""
        self.sent += 1
        self.sent_subscriptions += subscriptions
        self.sent_keys.update(sample)


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
        # Brokers heard without their keys -> when.
        self._keyless: dict[str, float] = {}
        self._forgotten_s = float("-inf")

    def __len__(self) -> int:
        return len(self._known)

    def fresh(self, now_s: float) -> list[Neighbour]:
        """Those that may be chosen. Whoever is silent for too long is forgotten.

        One that leaves is known until then, so that an older word of its is not believed."""
        self._forgotten_s = float("-inf")
        self._forget_silent(now_s)
        return [neighbour for neighbour in self._known.values() if not neighbour.leaving]

    def _forget_silent(self, now_s: float) -> None:
        """Looked at now and then: in a large cluster, summaries come all the time."""
        if now_s < self._forgotten_s + _FORGET_PERIOD_S:
            return
        self._forgotten_s = now_s
        oldest_s = now_s - self._settings.stale_after_s
        for name in [name for name, n in self._known.items() if n.heard_s < oldest_s]:
            del self._known[name]
        for name in [name for name, heard_s in self._keyless.items() if heard_s < oldest_s]:
            del self._keyless[name]

    def named_by(self, door: str) -> dict[str, str]:
        """Where clients that come by this door reach the others; by the addresses that brokers know
        them by."""
        named = {n.address: n.address_by(door) for n in self._known.values() if not n.leaving}
        return {address: name for address, name in named.items() if name}

    def address_of(self, broker_id: str) -> str:
        """What brokers know it by; empty if it has not been heard."""
        known = self._known.get(broker_id)
        return known.address if known is not None else ""

    def lose(self, addresses: Collection[str]) -> None:
        """Forget those at these addresses until they say something again."""
        for name in [name for name, n in self._known.items() if n.address in addresses]:
            del self._known[name]
            self._counters.neighbours_lost += 1

    @property
    def keyless(self) -> list[str]:
        return sorted(self._keyless)

    def learn_summary(self, summary: BrokerSummary, now_s: float) -> bool:
        """Take in a summary; whether it is from a broker that was unknown."""
        self._forget_silent(now_s)
        name = summary.broker_id
        known = self._known.get(name)
        if not self._is_sound(summary, known):
            self._counters.summaries_ignored += 1
            return False
        self._counters.summaries_received += 1
        is_new = known is None and name not in self._keyless
        if summary.leaving:
            self._leaves(summary, now_s)
            return False
        if summary.full:
            keys = frozenset(summary.keys)
            horizon = max(keys, default=0) if summary.truncated else RING_MASK
        elif known is not None and known.digest == summary.digest:
            keys, horizon = known.keys, known.horizon
        else:
            # Nobody is sent to a broker whose topics are not known; the old ones are not right.
            self._known.pop(name, None)
            self._keyless[name] = now_s
            return is_new
        self._keyless.pop(name, None)
        self._known[name] = Neighbour(
            name,
            summary.address,
            (summary.incarnation, summary.number),
            now_s,
            summary.subscriptions,
            summary.digest,
            keys,
            horizon,
            dict(summary.doors),
        )
        return is_new

    def _leaves(self, summary: BrokerSummary, now_s: float) -> None:
        self._keyless.pop(summary.broker_id, None)
        self._known[summary.broker_id] = Neighbour(
            summary.broker_id,
            summary.address,
            (summary.incarnation, summary.number),
            now_s,
            subscriptions=0,
            digest=0,
            keys=frozenset(),
            horizon=RING_MASK,
            leaving=True,
        )

    def _is_sound(self, summary: BrokerSummary, known: Neighbour | None) -> bool:
        if not 0 < len(summary.broker_id) <= NAME_CHARACTERS_MAX:
            return False
        if not 0 < len(summary.address) <= NAME_CHARACTERS_MAX:
            return False
        if len(summary.keys) > self._settings.summary_keys_max or len(summary.doors) > DOORS_MAX:
            return False
        if any(len(word) > NAME_CHARACTERS_MAX for door in summary.doors.items() for word in door):
            return False
        if known is not None:
            return (summary.incarnation, summary.number) > known.life
        heard = len(self._known) + len(self._keyless)
        return summary.broker_id in self._keyless or heard < self._settings.cluster_size_max


class Announcer:
    """Makes this broker's own summaries: when one is due, and whether the keys go with it."""

    def __init__(
        self,
        broker_id: str,
        address: str,
        incarnation: int,
        settings: SelectionSettings,
        doors: Mapping[str, str] | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._address = address
        self._incarnation = incarnation
        self._settings = settings
        self._doors = dict(doors or {})
        self._number = 0
        self._told_s = float("-inf")
        self._told_changes = 0
        # Of the keys told last; None: somebody does not know them.
        self._digest: int | None = None

    def tell_keys_again(self) -> None:
        self._digest = None

    def is_due(self, local: LocalTopics, now_s: float) -> bool:
        settings = self._settings
        if now_s >= self._told_s + settings.update_period_s:
            return True
        changed = local.changes - self._told_changes
        enough = max(_EARLY_CHANGES_MIN, settings.early_share * len(local.counts))
        return (
            settings.early_share > 0
            and changed >= enough
            and now_s >= self._told_s + settings.early_period_s
        )

    def farewell(self) -> BrokerSummary:
        self._number += 1
        return BrokerSummary(
            broker_id=self._broker_id,
            address=self._address,
            incarnation=self._incarnation,
            number=self._number,
            leaving=True,
            doors=self._doors,
        )

    def summary(self, local: LocalTopics, wants: Iterable[str], now_s: float) -> BrokerSummary:
        self._number += 1
        self._told_s = now_s
        self._told_changes = local.changes
        keys = heapq.nsmallest(self._settings.summary_keys_max, local.counts)
        digest = digest_of(keys)
        full = digest != self._digest
        self._digest = digest
        return BrokerSummary(
            broker_id=self._broker_id,
            address=self._address,
            incarnation=self._incarnation,
            number=self._number,
            subscriptions=local.subscriptions,
            sessions=local.sessions,
            full=full,
            digest=digest,
            keys=keys if full else (),
            truncated=len(local.counts) > len(keys),
            wants=wants,
            doors=self._doors,
        )
