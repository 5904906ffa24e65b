"""Which broker of the cluster a user had better be on (DYNATOPS III-B, Algorithm 1).

    Util(b, u) = Sim(b, u) - w_l L_b        Sim(b, u) = |S_b ∩ s_u| / |s_u|

L_b is the broker's share of all subscriptions. Users with like interests come together; a broker's
own subscriptions then seldom change, whatever a single user does. Each broker knows the others by
their last summaries, sends a user on when that is worth it, and counts those it sent until it hears
of them. Whether to move is asked when a user comes and when its interests change, never otherwise.

A choice is the user's utility on both brokers with the user there: itself it is not counted as
company. Nothing here moves anybody; see `broker`.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from broker_agent.core.advice import Advice
from broker_agent.core.move_limits import MoveBucket, MovedLately
from broker_agent.core.selection_settings import SelectionSettings
from broker_agent.core.summaries import (
    Announcer,
    LocalTopics,
    Neighbour,
    Neighbours,
    SelectionCounters,
)
from dynatops.v1.selection_pb2 import BrokerSummary

_ROUNDING = 1e-9


class Reason(enum.StrEnum):
    # The user had better move.
    MORE_ALIKE = "more alike"
    LESS_LOADED = "less loaded"
    ADVISED = "advised"
    # It stays.
    OFF = "selection is off"
    NO_INTERESTS = "no interests"
    NO_OTHERS = "no other broker known"
    HERE_IS_BEST = "here is best"
    GAIN_BELOW_MARGIN = "gain below margin"
    MOVED_LATELY = "moved lately"
    TARGETS_FULL = "too many on their way there"
    MOVES_LIMITED = "too many moves"

    @property
    def moves(self) -> bool:
        return self in _MOVES


_MOVES = frozenset({Reason.MORE_ALIKE, Reason.LESS_LOADED, Reason.ADVISED})
_HELD_BACK = frozenset({Reason.MOVED_LATELY, Reason.TARGETS_FULL, Reason.MOVES_LIMITED})


@dataclass(frozen=True, slots=True)
class User:
    client_id: str
    # Keys of topics and patterns, without repeats.
    interests: Collection[int]
    # Whether they are part of this broker's own topics already. If not, the user has just come.
    counted: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the user should be, and why; utilities with the user there."""

    broker_id: str
    address: str
    reason: Reason
    utility: float = 0.0
    own_utility: float = 0.0

    @property
    def moves(self) -> bool:
        return self.reason.moves


@dataclass(frozen=True, slots=True)
class _Option:
    neighbour: Neighbour
    similarity: float
    utility: float
    advised: bool


class Selection:
    def __init__(
        self,
        broker_id: str,
        address: str,
        incarnation: int,
        settings: SelectionSettings,
        counters: SelectionCounters,
        rng: Random,
    ) -> None:
        self.local = LocalTopics()
        self.settings = settings
        self.counters = counters
        self.neighbours = Neighbours(settings, counters)
        self._broker_id = broker_id
        self._address = address
        self._rng = rng
        self._announcer = Announcer((broker_id, address, incarnation), settings, counters)
        self._bucket = MoveBucket(settings.moves_per_s, settings.moves_burst)
        self._moved = MovedLately(settings.min_stay_s, settings.remembered_max)
        self._advice: Advice | None = None

    # ---- what others tell -----------------------------------------------------------------------

    def on_summary(self, summary: BrokerSummary, now_s: float) -> None:
        if summary.broker_id == self._broker_id:
            return
        known = len(self.neighbours)
        missing = self.neighbours.take(summary, now_s)
        if missing or len(self.neighbours) > known:
            # Whoever is new to us does not know our topics either.
            self._announcer.send_keys_again()

    def summary(self, now_s: float) -> BrokerSummary | None:
        """What to tell the cluster, when it is time."""
        if not self.settings.enabled:
            return None
        return self._announcer.summary(self.local, len(self.neighbours.fresh(now_s)), now_s)

    def advise(self, advice: Advice | None) -> None:
        self._advice = advice

    def note_arrival(self, client_id: str, now_s: float) -> None:
        """Another broker has sent this user here: it stays for a while."""
        self._moved.note(client_id, now_s)

    # ---- choosing -------------------------------------------------------------------------------

    def choose(self, user: User, now_s: float) -> Choice:
        """Where the user had better be. If that is elsewhere, it counts as sent there."""
        if not self.settings.enabled:
            return self._stay(Reason.OFF)
        if not user.interests:
            return self._stay(Reason.NO_INTERESTS)
        others = self.neighbours.fresh(now_s)
        if not others:
            return self._stay(Reason.NO_OTHERS)
        self.counters.users_considered += 1
        sample = heapq.nsmallest(self.settings.interests_max, user.interests)
        advised = self._advised(user, sample, now_s)
        own = self._own_similarity(user, sample)
        loads = self._loads(user, others)
        own_utility = self._utility(own, loads[-1], advised == self._broker_id)
        options = []
        for neighbour, load in zip(others, loads, strict=False):
            similarity = neighbour.share_of(sample)
            named = advised == neighbour.broker_id
            options.append(
                _Option(neighbour, similarity, self._utility(similarity, load, named), named)
            )
        margin = self.settings.margin if user.counted else self.settings.join_margin
        best = max(option.utility for option in options)
        better = [o for o in options if o.utility > own_utility + margin + _ROUNDING]
        if not better:
            here = best <= own_utility + _ROUNDING
            reason = Reason.HERE_IS_BEST if here else Reason.GAIN_BELOW_MARGIN
            return self._stay(reason, own_utility)
        if self._moved.must_stay(user.client_id, now_s):
            return self._stay(Reason.MOVED_LATELY, own_utility)
        better = [o for o in better if o.neighbour.sent < self.settings.sent_per_update_max]
        if not better:
            return self._stay(Reason.TARGETS_FULL, own_utility)
        if not self._bucket.take(now_s):
            return self._stay(Reason.MOVES_LIMITED, own_utility)
        best = max(option.utility for option in better) - _ROUNDING
        option = self._rng.choice([o for o in better if o.utility >= best])
        return self._send(user, option, own, own_utility, now_s)

    def _own_similarity(self, user: User, sample: Collection[int]) -> float:
        """What of the user's topics is subscribed to here by others."""
        needed = 2 if user.counted else 1
        counts = self.local.counts
        return sum(1 for key in sample if counts.get(key, 0) >= needed) / len(sample)

    def _loads(self, user: User, others: Collection[Neighbour]) -> list[float]:
        """Of the others in turn, then here, each with the user there; 1.0 is the average."""
        size = len(user.interests)
        here = self.local.subscriptions + (0 if user.counted else size)
        total = sum(n.load for n in others) + here
        floor = self.settings.load_floor
        mean = total / (len(others) + 1) + floor
        return [*((n.load + size + floor) / mean for n in others), (here + floor) / mean]

    def _utility(self, similarity: float, load: float, advised: bool) -> float:
        bonus = self.settings.advice_weight if advised else 0.0
        return similarity + bonus - self.settings.load_weight * load

    def _advised(self, user: User, sample: Collection[int], now_s: float) -> str | None:
        if self._advice is None or now_s >= self._advice.expires_s:
            self._advice = None
            return None
        return self._advice.broker_for(user.client_id, sample)

    def _stay(self, reason: Reason, utility: float = 0.0) -> Choice:
        self.counters.redirects_held_back += reason in _HELD_BACK
        return Choice(self._broker_id, self._address, reason, utility, utility)

    def _send(
        self, user: User, option: _Option, own: float, own_utility: float, now_s: float
    ) -> Choice:
        neighbour = option.neighbour
        neighbour.expect(user.interests)
        self._moved.note(user.client_id, now_s)
        if option.advised:
            reason = Reason.ADVISED
            self.counters.redirects_advised += 1
        elif option.similarity > own:
            reason = Reason.MORE_ALIKE
            self.counters.redirects_similarity += 1
        else:
            reason = Reason.LESS_LOADED
            self.counters.redirects_load += 1
        return Choice(
            neighbour.broker_id, neighbour.address, reason, option.utility, own_utility
        )
