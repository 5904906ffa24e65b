"""Brokers that are nothing but their Advertisement Tables, wired together in virtual time.

Each link leads one way: whoever is at its beginning tells whoever is at its end. Messages arrive in
order and at once, unless `fate` says otherwise of one. `nearest_stores` says what every table must
have once all has been said: a search over the links, from the stores on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import pairwise

from dynatops.v1.overlay_pb2 import NodeRef, PeerMessage
from overlay.forwarding.tables.held_filters import HERE
from overlay.stores.advertising import StoreAdvertising
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings

TICK_S = 0.5
Link = tuple[str, str]


class Fate(Enum):
    ARRIVES = "arrives"
    IS_LOST = "is lost"
    COMES_TWICE = "comes twice"
    IS_OVERTAKEN = "is overtaken"


class StoreNet:
    def __init__(self, links: Iterable[Link], settings: PastSettings | None = None) -> None:
        self.settings = settings or PastSettings()
        self.now_s = 0.0
        self.links = dict.fromkeys(links)
        self.brokers: dict[str, StoreAdvertising] = {}
        self.counters: dict[str, PastCounters] = {}
        # What each broker's store keeps.
        self.kept: dict[str, set[str]] = {}
        self.messages = 0
        # Whether a broken link is known to be at once, or only when nothing comes any more.
        self.notices_breaks = True
        self.fate: Callable[[], Fate] = lambda: Fate.ARRIVES
        # Called when a store has changed what it keeps, or a broker has noticed something by
        # itself; and after each message.
        self.on_change: Callable[[str], None] = lambda name: None
        self.on_message: Callable[[str, str, PeerMessage], None] = lambda *_: None
        self._lives: dict[str, int] = {}
        self._queue: deque[tuple[NodeRef, str, PeerMessage]] = deque()
        for name in sorted({name for link in self.links for name in link}):
            self.start(name)
        self.run()

    # ---- what happens ----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """It begins a life, and knows nothing; its store keeps nothing."""
        self._lives[name] = self._lives.get(name, 0) + 1
        self.counters[name] = PastCounters()
        self.brokers[name] = StoreAdvertising(name, self.settings, self.counters[name])
        self.kept[name] = set()

    def crash(self, name: str) -> None:
        del self.brokers[name]
        self.kept[name] = set()

    def keep(self, name: str, *units: str) -> None:
        self.kept[name] |= set(units)
        for unit in units:
            self.brokers[name].table.keep(unit)
        self.on_change(name)
        self.run()

    def give_up(self, name: str, *units: str) -> None:
        self.kept[name] -= set(units)
        for unit in units:
            self.brokers[name].table.give_up(unit)
        self.on_change(name)
        self.run()

    def break_link(self, one: str, other: str) -> None:
        self.links.pop((one, other), None)

    def add_link(self, one: str, other: str) -> None:
        self.links[one, other] = None

    # ---- time and messages -----------------------------------------------------------------------

    def run(self) -> None:
        """Until nobody has anything to say."""
        self._collect()
        while self._queue:
            self._deliver(*self._queue.popleft())
            self._collect()

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            self.tick_all()
            self.run()

    def tick_all(self) -> None:
        for name, broker in self.brokers.items():
            broker.tick(partial(self._is_gone, name), self.now_s)
            self.on_change(name)

    def settle(self) -> None:
        """Until all that is to be noticed has been."""
        self.pass_time(4 * self.settings.expiry_s)

    def _is_gone(self, me: str, other: str) -> bool:
        return self.notices_breaks and not self._leads(other, me)

    def _leads(self, one: str, other: str) -> bool:
        return (one, other) in self.links and one in self.brokers and other in self.brokers

    def _collect(self) -> None:
        for name, broker in self.brokers.items():
            ends = [other for one, other in self.links if one == name]
            if self.notices_breaks:
                ends = [other for other in ends if other in self.brokers]
            broker.meet({other: other for other in ends})
            me = NodeRef(broker_id=name, address=name, incarnation=self._lives[name])
            for address, message in broker.take_said(self.now_s):
                self._send(me, address, message)

    def _send(self, me: NodeRef, address: str, message: PeerMessage) -> None:
        fate = self.fate()
        self.messages += 1
        if fate is Fate.IS_OVERTAKEN and self._queue:
            self._queue.insert(len(self._queue) - 1, (me, address, message))
        elif fate is not Fate.IS_LOST:
            for _ in range(1 + (fate is Fate.COMES_TWICE)):
                self._queue.append((me, address, message))

    def _deliver(self, sender: NodeRef, address: str, message: PeerMessage) -> None:
        broker = self.brokers.get(address)
        kind = message.WhichOneof("body")
        there, back = (sender.broker_id, address), (address, sender.broker_id)
        way = back if kind == "want_store_advertisement" else there
        if broker is None or way not in self.links:
            return
        if kind == "store_advertisement":
            broker.on_advertisement(sender, message.store_advertisement, self.now_s)
        else:
            broker.on_want(sender, message.want_store_advertisement, self.now_s)
        self.on_message(sender.broker_id, address, message)


# ---- the reference -------------------------------------------------------------------------------


def nearest_stores(net: StoreNet, unit: str) -> dict[str, tuple[int, set[str]]]:
    """Of each broker that can reach a store of it: how far that is, and by whom."""
    distances = {name: 0 for name in net.brokers if unit in net.kept[name]}
    waiting = deque(distances)
    while waiting:
        name = waiting.popleft()
        for one, other in net.links:
            if one == name and other in net.brokers and other not in distances:
                distances[other] = distances[name] + 1
                waiting.append(other)
    return {
        name: (distance, _by_whom(net, distances, name)) for name, distance in distances.items()
    }


def _by_whom(net: StoreNet, distances: dict[str, int], name: str) -> set[str]:
    if not distances[name]:
        return {HERE}
    return {
        one
        for one, other in net.links
        if other == name and distances.get(one, -2) == distances[name] - 1
    }


def check_store_tables(net: StoreNet) -> None:
    """Each table has what the reference has, and ways that lead where they say."""
    units = sorted({unit for kept in net.kept.values() for unit in kept})
    expected = {unit: nearest_stores(net, unit) for unit in units}
    for name, broker in net.brokers.items():
        entries = {entry.unit: entry for entry in broker.table.entries()}
        found = {unit: (entry.distance, set(entry.nearest)) for unit, entry in entries.items()}
        assert found == {
            unit: reached[name] for unit, reached in expected.items() if name in reached
        }, name
        for entry in entries.values():
            for holder, way in (*entry.nearest.items(), *entry.aside.items()):
                assert not way or way[0] == holder
                stops = (*reversed(way), name)
                assert len(set(stops)) == len(stops)
                assert all(link in net.links for link in pairwise(stops))
                assert entry.unit in net.kept[stops[0]]
