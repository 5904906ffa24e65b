"""Which broker of the cluster a user had better be on (DYNATOPS III-B, Algorithm 1).

    Util(b, u) = Sim(b, u) - w_l L_b        Sim(b, u) = |S_b ∩ s_u| / |s_u|

L_b is the broker's share of all subscriptions. Users with like interests come together; then a
broker's own subscriptions seldom change, whatever a single user does. It is asked when a user comes
and when its interests change, *before* they are subscribed to: a broker that takes in topics of a
user who then moves has changed twice for nothing.

Each broker knows the others by their last summaries; whom it sent somewhere it counts there until
it hears from there again. Utilities are those with the user there; it is no company to itself.
Nothing here moves anybody.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.move_limits import MoveBucket, MovedLately
from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.selection.summaries import Announcer, Neighbour, Neighbours
from broker_agent.core.sessions.local_topics import LocalTopics
from dynatops.kit.advice.freshness import is_fresh
from dynatops.v1.selection_pb2 import BrokerSummary

# Utilities closer than this are equal.
_ROUNDING = 1e-9


class SelectionReason(enum.StrEnum):
    # The user had better move.
    MORE_ALIKE = "more_alike"
    LESS_LOADED = "less_loaded"
    ADVISED = "advised"
    # It stays.
    OFF = "off"
    NO_INTERESTS = "no_interests"
    NO_OTHERS = "no_others"
    HERE_IS_BEST = "here_is_best"
    GAIN_BELOW_MARGIN = "gain_below_margin"
    # It stays for now, though elsewhere is better.
    MOVED_LATELY = "moved_lately"
    TARGETS_BUSY = "targets_busy"
    MOVES_LIMITED = "moves_limited"


_MOVES = frozenset(
    {SelectionReason.MORE_ALIKE, SelectionReason.LESS_LOADED, SelectionReason.ADVISED}
)


@dataclass(frozen=True, slots=True)
class User:
    client_id: str
    # Keys of the topics and patterns that it is about to have, without repeats.
    interests: Collection[int]
    # Those of them that it has here already, as counted in `Selection.local`. A user who has just
    # come has none.
    held: Collection[int] = ()
    # Addresses that its client could not reach lately.
    avoided: Collection[str] = ()
    # The further door that its client came by, which says by which names it knows brokers; empty:
    # those that brokers know each other by.
    door: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the user should be, and why."""

    broker_id: str
    address: str
    reason: SelectionReason
    utility: float = 0.0
    own_utility: float = 0.0

    @property
    def moves(self) -> bool:
        return self.reason in _MOVES


@dataclass(frozen=True, slots=True)
class _Option:
    neighbour: Neighbour
    similarity: float
    utility: float
    advised: bool


class Selection:
    """Selection at one broker. The serving side keeps `local` up to date."""

    def __init__(
        self,
        broker_id: str,
        address: str,
        incarnation: int,
        settings: SelectionSettings,
        rng: Random,
        doors: Mapping[str, str] | None = None,
        local: LocalTopics | None = None,
    ) -> None:
        self.settings = settings
        self.counters = SelectionCounters()
        self.local = local if local is not None else LocalTopics()
        self.neighbours = Neighbours(settings, self.counters)
        self._broker_id = broker_id
        self._address = address
        self._rng = rng
        self._announcer = Announcer(broker_id, address, incarnation, settings, doors)
        self._bucket = MoveBucket(settings.moves_per_s, settings.moves_burst)
        self._moved = MovedLately(settings.min_stay_s, settings.remembered_max)
        self._advice: SelectionAdvice | None = None
        self._advice_until_s = 0.0

    # ---- the cluster ----------------------------------------------------------------------------

    def on_summary(self, summary: BrokerSummary, now_s: float) -> None:
        if summary.broker_id == self._broker_id or not self.settings.enabled:
            return
        is_new = self.neighbours.learn_summary(summary, now_s)
        if is_new or self._broker_id in summary.wants:
            # Whoever is new to us does not know our topics either.
            self._announcer.tell_keys_again()

    def summary(self, now_s: float) -> BrokerSummary | None:
        """What to tell the cluster, when it is time."""
        if not self.settings.enabled or not self._announcer.is_due(self.local, now_s):
            return None
        audience = self.neighbours.fresh(now_s)
        summary = self._announcer.summary(self.local, self.neighbours.keyless, now_s)
        self.counters.summaries_sent += 1
        self.counters.summary_messages += len(audience)
        self.counters.summary_keys_sent += len(summary.keys)
        return summary

    def farewell(self, now_s: float) -> BrokerSummary:
        """What to tell the cluster when this broker leaves."""
        self.counters.summaries_sent += 1
        self.counters.summary_messages += len(self.neighbours.fresh(now_s))
        return self._announcer.farewell()

    def lose(self, addresses: Collection[str]) -> None:
        """Brokers at these addresses are out of reach: nobody is sent there until they are heard
        again."""
        if addresses:
            self.neighbours.lose(addresses)

    def is_advised(self, now_s: float) -> bool:
        """Whether there is advice that is fresh."""
        return self._advice is not None and is_fresh(now_s, self._advice_until_s)

    def advise(self, advice: SelectionAdvice | None, now_s: float) -> None:
        """From now on this advice, while it is fresh."""
        self._advice = advice
        self._advice_until_s = now_s + advice.fresh_for_s if advice is not None else 0.0

    def note_arrival(self, client_id: str, now_s: float) -> None:
        """Another broker has sent this user here: it stays for a while."""
        self._moved.note_moved(client_id, now_s)

    # ---- users ----------------------------------------------------------------------------------

    def choose(self, user: User, now_s: float) -> Choice:
        """Where the user had better be. If that is elsewhere, it counts as sent there."""
        if not self.settings.enabled:
            return self._stay(SelectionReason.OFF)
        if not user.interests:
            return self._stay(SelectionReason.NO_INTERESTS)
        fresh = self.neighbours.fresh(now_s)
        others = fresh
        if user.avoided or user.door:
            unknown = frozenset(("", *user.avoided))
            others = [n for n in fresh if n.address_by(user.door) not in unknown]
        if not others:
            return self._stay(SelectionReason.NO_OTHERS)
        self.counters.users_considered += 1
        # As hashes, the lowest keys are a fair sample.
        sample = heapq.nsmallest(self.settings.interests_max, user.interests)
        advised = self._advised(user, sample, now_s)
        own_load, loads = self._loads(user, others)
        similarity = self._own_similarity(user, sample)
        own_utility = self._utility(similarity, own_load, advised == self._broker_id)
        options = self._options(others, loads, sample, advised)
        margin = self.settings.margin if user.held else self.settings.join_margin
        better = [o for o in options if o.utility > own_utility + margin + _ROUNDING]
        if not better:
            best = max(option.utility for option in options)
            is_best = best <= own_utility + _ROUNDING
            reason = SelectionReason.HERE_IS_BEST if is_best else SelectionReason.GAIN_BELOW_MARGIN
            return self._stay(reason, own_utility)
        option = self._admitted(user, better, now_s)
        if isinstance(option, SelectionReason):
            self.counters.redirects_held_back += 1
            return self._stay(option, own_utility)
        self._moved.note_moved(user.client_id, now_s)
        option.neighbour.expect(sample, len(user.interests))
        reason = self._count(option, similarity)
        there = option.neighbour
        address = there.address_by(user.door)
        return Choice(there.broker_id, address, reason, option.utility, own_utility)

    def _own_similarity(self, user: User, sample: Sequence[int]) -> float:
        """The share of the user's topics that others here subscribe to."""
        counts, held = self.local.counts, frozenset(user.held)
        common = sum(1 for key in sample if counts.get(key, 0) > (key in held))
        return common / len(sample)

    def _loads(self, user: User, others: Sequence[Neighbour]) -> tuple[float, list[float]]:
        """Here, and at each of the others, with the user there; 1.0 is the average.

        L_b times the number of brokers, so that its weight does not depend on that.
        """
        size, floor = len(user.interests), self.settings.load_floor
        here = self.local.subscriptions - len(user.held) + size
        total = here + sum(neighbour.load for neighbour in others)
        mean = total / (1 + len(others)) + floor
        return (here + floor) / mean, [(n.load + size + floor) / mean for n in others]

    def _options(
        self,
        others: Sequence[Neighbour],
        loads: Sequence[float],
        sample: Sequence[int],
        advised: str | None,
    ) -> list[_Option]:
        options = []
        for neighbour, load in zip(others, loads, strict=True):
            similarity = neighbour.share_of(sample)
            named = neighbour.broker_id == advised
            utility = self._utility(similarity, load, named)
            options.append(_Option(neighbour, similarity, utility, named))
        return options

    def _utility(self, similarity: float, load: float, advised: bool) -> float:
        bonus = self.settings.advice_weight if advised else 0.0
        return similarity + bonus - self.settings.load_weight * load

    def _advised(self, user: User, sample: Sequence[int], now_s: float) -> str | None:
        if not is_fresh(now_s, self._advice_until_s):
            self._advice = None
        return self._advice.broker_for(user.client_id, sample) if self._advice else None

    def _admitted(
        self, user: User, better: Sequence[_Option], now_s: float
    ) -> _Option | SelectionReason:
        """The best of these within the limits, or what forbids all of them."""
        if self._moved.must_stay(user.client_id, now_s):
            return SelectionReason.MOVED_LATELY
        free = [o for o in better if o.neighbour.sent < self.settings.sent_per_update_max]
        if not free:
            return SelectionReason.TARGETS_BUSY
        if not self._bucket.may_move(now_s):
            return SelectionReason.MOVES_LIMITED
        best = max(option.utility for option in free) - _ROUNDING
        return self._rng.choice([option for option in free if option.utility >= best])

    def _stay(self, reason: SelectionReason, utility: float = 0.0) -> Choice:
        return Choice(self._broker_id, self._address, reason, utility, utility)

    def _count(self, option: _Option, own_similarity: float) -> SelectionReason:
        if option.advised:
            self.counters.redirects_advised += 1
            return SelectionReason.ADVISED
        if option.similarity > own_similarity:
            self.counters.redirects_similarity += 1
            return SelectionReason.MORE_ALIKE
        self.counters.redirects_load += 1
        return SelectionReason.LESS_LOADED
