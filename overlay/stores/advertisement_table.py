"""The Advertisement Table: of each unit that stores keep, how far the nearest is, and by whom.

    3:  2:top_a,1  5:top_a,1        whoever asks for top_a here is sent on to broker 2 or 5, and
                                    finds a store one hop away

A unit is a topic or a pattern of topics. A neighbour offers it with the way that leads from it to
the store; the way has as many brokers as the store is hops away. As Storing, section III-A, has it,
an offer that is

    equal     to the nearest known is noted beside it, and goes no further
    closer    takes the place of what there was, and goes on
    farther   goes no further, and does not change the entry

so each unit of an advertisement goes on or stops by itself. What the papers leave out is what
happens when the nearest store goes. So farther offers are set aside where they stopped; once what
is closer is withdrawn or lost, the nearest of them is the entry, and goes on from here. Nobody
takes an offer whose way leads through itself, and nobody is told of a way that leads through it:
that is why distances do not count up without end when a store is gone.

What is told is one of the nearest ways, the same for as long as it is one of them. Whoever is on
that way itself is told of the nearest that it is not on, later, and always finds it farther: so
the broker of a store that can not answer knows where another one is. Messages, sessions with
neighbours, and time are the business of `advertising.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dynatops.kit.bounded import BoundedTable, Past
from dynatops.kit.filters import (
    FilterError,
    PatternTree,
    check_pattern,
    is_wildcard,
    pattern_covers,
)
from dynatops.kit.topics import TOPIC_BYTES_MAX
from overlay.forwarding.tables.held_filters import HERE, BrokerId
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.store_names import store_of_name

# From a neighbour to the broker that has the store, both included; empty: the store is here.
Way = tuple[BrokerId, ...]


class OfferStanding(Enum):
    CLOSER = "closer"
    EQUAL = "equal"
    FARTHER = "farther"


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """What is known of one unit, for whoever looks at the table."""

    unit: str
    distance: int
    # By holder: neighbours, and HERE for a store of this broker. Those at that distance, and
    # those that are set aside.
    nearest: Mapping[BrokerId, Way]
    aside: Mapping[BrokerId, Way]


class NextHop(NamedTuple):
    # HERE: the store of this broker.
    broker: BrokerId
    # Where the way leads that this broker offers; it may send a request elsewhere.
    store: BrokerId


class _UnitOffers:
    __slots__ = ("chosen", "offers", "turn", "way")

    def __init__(self) -> None:
        self.offers: dict[BrokerId, Way] = {}
        # The nearest offer that is told further on.
        self.chosen: BrokerId | None = None
        self.way: Way | None = None
        # Requests that were sent on, for the load to be shared.
        self.turn = 0

    def choose(self) -> None:
        offers = self.offers
        if not offers:
            self.chosen = self.way = None
            return
        least = min(map(len, offers.values()))
        if self.chosen not in offers or len(offers[self.chosen]) > least:
            self.chosen = min(holder for holder, way in offers.items() if len(way) == least)
        self.way = offers[self.chosen]


class AdvertisementTable:
    def __init__(self, me: BrokerId, settings: PastSettings, counters: PastCounters) -> None:
        self._me = me
        self._hops_max = settings.hops_max
        self._counters = counters
        self._entries: BoundedTable[str, _UnitOffers] = BoundedTable(
            settings.units_max, counters, "units_refused", past=Past.NEWEST
        )
        self._patterns: PatternTree[str] = PatternTree()
        # Names of stores among them: nobody asks for those as for topics.
        self._stores: dict[str, None] = {}
        # Units of which any offer has changed since that was asked for.
        self._stirred: dict[str, None] = {}

    def __len__(self) -> int:
        """Topics and patterns."""
        return len(self._entries) - len(self._stores)

    # ---- stores of this broker ------------------------------------------------------------------

    def keep(self, unit: str) -> None:
        """The store here has it from now on, and can serve it. Raises FilterError if it is none."""
        if store_of_name(unit) is None:
            check_pattern(unit)
        self._put(unit, HERE, ())

    def give_up(self, unit: str) -> None:
        self._take_out(unit, HERE)

    @property
    def kept_here(self) -> list[str]:
        """Topics and patterns."""
        here = (unit for unit, entry in self._entries.items() if HERE in entry.offers)
        return [unit for unit in here if unit not in self._stores]

    # ---- what neighbours say --------------------------------------------------------------------

    def offer(self, neighbour: BrokerId, unit: str, way: Way) -> OfferStanding | None:
        """It offers this; None if the offer cannot be taken, and then no former one holds."""
        counters = self._counters
        if not self._is_sound(neighbour, unit, way):
            counters.offers_malformed += 1
            self._take_out(unit, neighbour)
            return None
        standing = self._standing(neighbour, unit, way)
        if not self._put(unit, neighbour, way):
            return None
        counters.offers_closer += standing is OfferStanding.CLOSER
        counters.offers_equal += standing is OfferStanding.EQUAL
        counters.offers_farther += standing is OfferStanding.FARTHER
        return standing

    def withdraw(self, neighbour: BrokerId, unit: str) -> None:
        self._counters.offers_withdrawn += self._take_out(unit, neighbour)

    def withdraw_all_but(self, neighbour: BrokerId, units: Collection[str]) -> None:
        """It has told everything that it offers: these."""
        for unit in [unit for unit in self.offered_by(neighbour) if unit not in units]:
            self.withdraw(neighbour, unit)

    def lose(self, neighbour: BrokerId) -> None:
        """It is gone, or has not renewed what it told."""
        for unit in list(self.offered_by(neighbour)):
            self._counters.offers_expired += self._take_out(unit, neighbour)

    def offered_by(self, neighbour: BrokerId) -> Iterator[str]:
        return (unit for unit, entry in self._entries.items() if neighbour in entry.offers)

    def _is_sound(self, neighbour: BrokerId, unit: str, way: Way) -> bool:
        if not way or way[0] != neighbour or len(way) > self._hops_max or self._me in way:
            return False
        if unit in self._entries:
            return True
        if store_of_name(unit) is not None:
            return len(unit) <= TOPIC_BYTES_MAX
        try:
            check_pattern(unit)
        except FilterError:
            return False
        return True

    def _standing(self, neighbour: BrokerId, unit: str, way: Way) -> OfferStanding:
        entry = self._entries.get(unit)
        others = [] if entry is None else [w for n, w in entry.offers.items() if n != neighbour]
        least = min(map(len, others), default=self._hops_max + 1)
        if len(way) < least:
            return OfferStanding.CLOSER
        return OfferStanding.EQUAL if len(way) == least else OfferStanding.FARTHER

    # ---- entries --------------------------------------------------------------------------------

    def _put(self, unit: str, holder: BrokerId, way: Way) -> bool:
        """Whether there was room for it."""
        entry = self._entries.get(unit)
        if entry is None:
            entry = _UnitOffers()
            if not self._entries.put(unit, entry):
                return False
            if store_of_name(unit) is None:
                self._patterns.put(unit, unit)
            else:
                self._stores[unit] = None
        entry.offers[holder] = way
        self._review(unit, entry)
        return True

    def _take_out(self, unit: str, holder: BrokerId) -> bool:
        """Whether it was there."""
        entry = self._entries.get(unit)
        if entry is None or entry.offers.pop(holder, None) is None:
            return False
        self._review(unit, entry)
        if not entry.offers:
            del self._entries[unit]
            if unit in self._stores:
                del self._stores[unit]
            else:
                self._patterns.remove(unit)
        return True

    def _review(self, unit: str, entry: _UnitOffers) -> None:
        entry.choose()
        self._stirred[unit] = None

    # ---- what is to be told ---------------------------------------------------------------------

    @property
    def is_stirred(self) -> bool:
        return bool(self._stirred)

    def take_stirred(self) -> list[str]:
        """Units of which something else may be to be told than when this was last asked."""
        stirred, self._stirred = list(self._stirred), {}
        return stirred

    def units(self) -> list[str]:
        return list(self._entries)

    def way_for(self, neighbour: BrokerId, unit: str) -> Way | None:
        """What the neighbour is to be told of it; None: nothing."""
        entry = self._entries.get(unit)
        way = entry.way if entry is not None else None
        return None if way is None or not self._may_tell(neighbour, way) else way

    def other_way_for(self, neighbour: BrokerId, unit: str) -> Way | None:
        """What a neighbour that is on the way itself is to be told later: the nearest that it is
        not on."""
        entry = self._entries.get(unit)
        if entry is None or entry.way is None or neighbour not in entry.way:
            return None
        others = [way for way in entry.offers.values() if self._may_tell(neighbour, way)]
        return min(others, key=lambda way: (len(way), way)) if others else None

    def still_leads(self, unit: str, way: Way) -> bool:
        """Whether somebody offers this way to it."""
        entry = self._entries.get(unit)
        return entry is not None and way in entry.offers.values()

    def _may_tell(self, neighbour: BrokerId, way: Way) -> bool:
        return neighbour not in way and len(way) < self._hops_max

    # ---- requests -------------------------------------------------------------------------------

    def units_of(self, pattern: str) -> list[str]:
        """Units that have a topic in common with it; one that has all of it, alone, if there is
        one. None of them has less than another one of them."""
        units = sorted(self._patterns.intersecting(pattern), key=self._by_distance)
        whole = next((unit for unit in units if pattern_covers(unit, pattern)), None)
        if whole is not None:
            return [whole]
        needless: set[str] = set()
        for unit in units:
            if is_wildcard(unit):
                needless.update(self._made_needless_by(unit))
        return [unit for unit in units if unit not in needless]

    def _made_needless_by(self, unit: str) -> Iterator[str]:
        for other in self._patterns.covered(unit):
            # Of two that are the same, written differently, one stays.
            if other != unit and (unit < other or not pattern_covers(other, unit)):
                yield other

    def _by_distance(self, unit: str) -> tuple[int, str]:
        return len(self._entries[unit].way or ()), unit

    def next_hop(
        self, unit: str, passed: Collection[BrokerId], avoided: Collection[BrokerId]
    ) -> NextHop | None:
        """Where a request for it goes: to a nearest store, each of several in its turn. Never back
        to a broker that it has passed; and where `avoided` stores are only if there is no other
        way, as whoever is there may know of another store."""
        entry = self._entries.get(unit)
        if entry is None:
            return None
        ranks: dict[NextHop, tuple[bool, int]] = {}
        for holder, way in entry.offers.items():
            store = way[-1] if way else self._me
            if holder == HERE and store in avoided:
                continue
            if holder not in passed:
                leads_back = store in avoided or any(broker in passed for broker in way)
                ranks[NextHop(holder, store)] = leads_back, len(way)
        if not ranks:
            return None
        best = min(ranks.values())
        nearest = sorted(hop for hop, rank in ranks.items() if rank == best)
        entry.turn += 1
        return nearest[entry.turn % len(nearest)]

    def stores(self) -> list[BrokerId]:
        """All that are known, and can be asked by each other."""
        return sorted(filter(None, map(store_of_name, self._stores)))

    # ---- for whoever looks at it ----------------------------------------------------------------

    def entry(self, unit: str) -> StoreEntry | None:
        entry = self._entries.get(unit)
        if entry is None or entry.way is None:
            return None
        distance = len(entry.way)
        nearest = {h: way for h, way in entry.offers.items() if len(way) == distance}
        aside = {h: way for h, way in entry.offers.items() if len(way) > distance}
        return StoreEntry(unit, distance, nearest, aside)

    def entries(self) -> Iterator[StoreEntry]:
        for unit in sorted(self._entries):
            entry = self.entry(unit)
            if entry is not None:
                yield entry
