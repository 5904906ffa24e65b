"""What neighbours tell each other of stores, and when that does not hold any more.

    keep, give_up    --> table --news--> StoreAdvertisement --> neighbours
    neighbours --StoreAdvertisement--> table --news--> ... to the others

Messages may be lost, doubled, or overtaken. Each with something new has the next number, and all is
renewed now and then by a message that says the last one: whoever misses something asks for all of
it (`WantStoreAdvertisement`). What is not renewed expires. Who has nothing to tell says nothing.
Other ways, for those who are on the nearest themselves, are told when it is time to renew.

Whom this broker tells need not be whoever tells it: a neighbour that offers a store has said where
it is itself, and that is where requests are sent. So links that lead one way only, such as fingers
on a ring, are as good as others; distances are those along them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PeerMessage,
    StoreAdvertisement,
    StoreOffer,
    WantStoreAdvertisement,
)
from overlay.forwarding.tables.held_filters import BrokerId
from overlay.stores.advertisement_table import AdvertisementTable, Way
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings


@dataclass(slots=True)
class _ToldNeighbour:
    """A neighbour that this broker tells."""

    address: str
    session: int
    version: int = 0
    # What it has been told of units, and those of which there is more to tell with the renewal.
    ways: dict[str, Way] = field(default_factory=dict)
    postponed: dict[str, None] = field(default_factory=dict)
    # Whether it is to be told everything from the beginning; and though that be nothing.
    is_new: bool = True
    is_wanted: bool = False
    renew_due_s: float = 0.0
    # When it was last told something; it is renewed for as long as that matters.
    said_s: float = 0.0


@dataclass(slots=True)
class _TellingBroker:
    """A broker that tells this one."""

    address: str
    life: int
    session: int
    version: int
    heard_s: float
    # What it has named so far of everything that it offers; None once it has named all.
    naming: set[str] | None = field(default_factory=set)
    ask_due_s: float = 0.0


# Address, and what to say there.
Said = tuple[str, PeerMessage]


class StoreAdvertising:
    def __init__(self, me: BrokerId, settings: PastSettings, counters: PastCounters) -> None:
        self.table = AdvertisementTable(me, settings, counters)
        self._me = me
        self._settings = settings
        self._counters = counters
        self._sessions = 0
        self._told: dict[BrokerId, _ToldNeighbour] = {}
        self._tellers: BoundedTable[BrokerId, _TellingBroker] = BoundedTable(
            settings.advertising_brokers_max,
            counters,
            "advertising_brokers_dropped",
            on_drop=lambda gone, _: self.table.lose(gone),
        )
        self._said: list[Said] = []

    # ---- inputs ----------------------------------------------------------------------------------

    def on_advertisement(self, sender: NodeRef, message: StoreAdvertisement, now_s: float) -> None:
        name, counters = sender.broker_id, self._counters
        if not name or name == self._me:
            counters.offers_malformed += 1
            return
        teller = self._tellers.get(name)
        told = sender.incarnation, message.session
        known = (teller.life, teller.session) if teller is not None else (-1, 0)
        if told < known:
            return
        if teller is None or told > known:
            teller = _TellingBroker(sender.address, *told, 0, now_s)
            self._tellers[name] = teller
        teller.heard_s = now_s
        teller.address = sender.address
        if message.version <= teller.version:
            return
        if message.renewal or message.version != teller.version + 1:
            self._ask(teller, now_s)
            return
        teller.version = message.version
        self._take(name, teller, message)

    def _take(self, name: BrokerId, teller: _TellingBroker, message: StoreAdvertisement) -> None:
        table, naming = self.table, teller.naming
        for offer in message.offers:
            way: Way = tuple(offer.way)
            for unit in offer.units:
                if table.offer(name, unit, way) is not None and naming is not None:
                    naming.add(unit)
        for unit in message.withdrawn:
            table.withdraw(name, unit)
            if naming is not None:
                naming.discard(unit)
        if naming is not None and not message.more:
            teller.naming = None
            table.withdraw_all_but(name, naming)

    def _ask(self, teller: _TellingBroker, now_s: float) -> None:
        if now_s < teller.ask_due_s:
            return
        teller.ask_due_s = now_s + self._settings.ask_again_s
        self._counters.advertisements_missed += 1
        want = PeerMessage(want_store_advertisement=WantStoreAdvertisement())
        self._said.append((teller.address, want))

    def on_want(self, sender: NodeRef, message: WantStoreAdvertisement, now_s: float) -> None:
        told = self._told.get(sender.broker_id)
        if told is not None and not told.is_new:
            self._begin(sender.broker_id, told.address, is_wanted=True)

    def meet(self, neighbours: Mapping[BrokerId, str]) -> None:
        """These are told from now on, each at its address, and no others."""
        told = self._told
        for name in [name for name in told if name not in neighbours]:
            self._part(told.pop(name))
        for name, address in neighbours.items():
            known = told.get(name)
            if known is None:
                self._begin(name, address)
            elif known.address != address:
                known.address = address

    def tick(self, is_gone: Callable[[BrokerId], bool], now_s: float) -> None:
        """`is_gone`: whether a broker is known to be, however lately it has told something."""
        for name, teller in list(self._tellers.items()):
            if is_gone(name) or now_s - teller.heard_s >= self._settings.expiry_s:
                del self._tellers[name]
                self.table.lose(name)

    def address_of(self, broker: BrokerId) -> str:
        """Where the broker is that has told of stores; empty if it is not known."""
        teller = self._tellers.get(broker)
        return teller.address if teller is not None else ""

    # ---- what is said ----------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether something is to be said before the next tick."""
        return bool(self._said) or self.table.is_stirred

    def take_said(self, now_s: float) -> list[Said]:
        """What is to be said because of the input, or the time."""
        self._tell(self.table.take_stirred(), now_s)
        said, self._said = self._said, []
        return said

    def _begin(self, name: BrokerId, address: str, *, is_wanted: bool = False) -> None:
        self._sessions += 1
        self._told[name] = _ToldNeighbour(address, self._sessions, is_wanted=is_wanted)

    def _part(self, told: _ToldNeighbour) -> None:
        """It is no neighbour any more: what it was told does not hold."""
        if told.ways:
            self._sessions += 1
            empty = StoreAdvertisement(session=self._sessions, version=1)
            self._said.append((told.address, PeerMessage(store_advertisement=empty)))

    def _tell(self, stirred: Sequence[str], now_s: float) -> None:
        for name, told in self._told.items():
            units = self.table.units() if told.is_new else stirred
            if told.is_new:
                told.is_new = False
                told.renew_due_s = now_s + self._settings.renew_s
            self._say_ways(told, self._news(name, told, units), now_s)
            if told.is_wanted and not told.version:
                self._say_news(told, StoreAdvertisement(), now_s)
            if now_s >= told.renew_due_s:
                self._renew(name, told, now_s)

    def _news(
        self, name: BrokerId, told: _ToldNeighbour, units: Iterable[str]
    ) -> dict[str, Way | None]:
        """What is to be said at once. Another way, for a neighbour that is on the nearest itself,
        waits for the next renewal, unless what it was told does not lead there any more."""
        table = self.table
        news: dict[str, Way | None] = {}
        for unit in units:
            way = table.way_for(name, unit)
            if way is None:
                way = table.other_way_for(name, unit)
                former = told.ways.get(unit)
                if way is not None and (former is None or table.still_leads(unit, former)):
                    told.postponed[unit] = None
                    continue
            news[unit] = way
        return news

    def _renew(self, name: BrokerId, told: _ToldNeighbour, now_s: float) -> None:
        postponed, told.postponed = told.postponed, {}
        ways = {unit: self._any_way_for(name, unit) for unit in postponed}
        told.renew_due_s = now_s + self._settings.renew_s
        # Whoever was told that there is nothing left may have missed that.
        matters = told.ways or now_s - told.said_s < self._settings.expiry_s
        if not self._say_ways(told, ways, now_s) and told.version and matters:
            self._counters.advertisements_renewed += 1
            self._say(told, StoreAdvertisement(renewal=True))

    def _any_way_for(self, name: BrokerId, unit: str) -> Way | None:
        way = self.table.way_for(name, unit)
        return way if way is not None else self.table.other_way_for(name, unit)

    def _say_ways(self, told: _ToldNeighbour, ways: Mapping[str, Way | None], now_s: float) -> bool:
        """Whether any of it was new."""
        offered: list[tuple[str, Way]] = []
        withdrawn: list[str] = []
        for unit, way in ways.items():
            if told.ways.get(unit) == way:
                continue
            if way is None:
                withdrawn.append(unit)
                del told.ways[unit]
            else:
                offered.append((unit, way))
                told.ways[unit] = way
        parts = list(self._parts(offered, withdrawn))
        is_beginning = not told.version
        for place, part in enumerate(parts):
            part.more = is_beginning and place + 1 < len(parts)
            self._say_news(told, part, now_s)
        return bool(parts)

    def _parts(
        self, offered: Iterable[tuple[str, Way]], withdrawn: Iterable[str]
    ) -> Iterator[StoreAdvertisement]:
        """Of messages, each with a bounded number of units."""
        part, room = StoreAdvertisement(), self._settings.units_per_message
        offers: dict[Way, StoreOffer] = {}
        for unit, way in offered:
            if not room:
                yield part
                part, room, offers = StoreAdvertisement(), self._settings.units_per_message, {}
            offer = offers.get(way)
            if offer is None:
                offer = offers[way] = part.offers.add(way=(self._me, *way))
            offer.units.append(unit)
            room -= 1
        for unit in withdrawn:
            if not room:
                yield part
                part, room = StoreAdvertisement(), self._settings.units_per_message
            part.withdrawn.append(unit)
            room -= 1
        if part.offers or part.withdrawn:
            yield part

    def _say_news(self, told: _ToldNeighbour, message: StoreAdvertisement, now_s: float) -> None:
        told.version += 1
        told.said_s = now_s
        self._counters.advertisements_sent += 1
        self._say(told, message)

    def _say(self, told: _ToldNeighbour, message: StoreAdvertisement) -> None:
        message.session, message.version = told.session, told.version
        self._said.append((told.address, PeerMessage(store_advertisement=message)))
