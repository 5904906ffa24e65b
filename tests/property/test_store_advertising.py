"""Advertisement Tables: whatever stores, links and brokers come and go, and whatever messages are
lost, once it is quiet each table has the nearest stores."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.stores.past_settings import PastSettings
from tests.support.store_net import Fate, StoreNet, check_store_tables

UNITS = ("a", "b", "c/#", "c/d")
SMALL = PastSettings(units_per_message=2)


def _links(rng: Random, brokers: int, *, one_way: bool) -> list[tuple[str, str]]:
    """A tree, and some links beside it; of some graphs one way only."""
    names = [str(number) for number in range(brokers)]
    pairs = [(names[rng.randrange(place)], names[place]) for place in range(1, brokers)]
    extra = rng.randrange(2 * brokers)
    pairs += [(a, b) for a, b in ((rng.choice(names), rng.choice(names)) for _ in range(extra))]
    links = [(a, b) for a, b in pairs if a != b]
    return links if one_way else [*links, *((b, a) for a, b in links)]


class _Happenings:
    """Things that happen to a network, drawn from one seed."""

    def __init__(self, rng: Random, net: StoreNet) -> None:
        self.rng = rng
        self.net = net
        self.names = sorted(net.brokers)
        self.broken: list[tuple[str, str]] = []

    def happen(self) -> None:
        rng, net = self.rng, self.net
        match rng.randrange(6):
            case 0 | 1:
                name = rng.choice(self.names)
                if name in net.brokers:
                    net.keep(name, *rng.sample(UNITS, rng.randint(1, 3)))
            case 2:
                name = rng.choice(self.names)
                if name in net.brokers and net.kept[name]:
                    net.give_up(name, rng.choice(sorted(net.kept[name])))
            case 3:
                name = rng.choice(self.names)
                if name in net.brokers:
                    net.crash(name)
                else:
                    net.start(name)
            case 4 if net.links:
                link = rng.choice(list(net.links))
                net.break_link(*link)
                self.broken.append(link)
            case _ if self.broken:
                net.add_link(*self.broken.pop())
        if rng.random() < 0.5:
            net.pass_time(rng.choice([0.5, 1.0, 3.0]))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), one_way=st.booleans(), notices=st.booleans())
def test_tables_have_the_nearest_stores_once_it_is_quiet(
    seed: int, one_way: bool, notices: bool
) -> None:
    rng = Random(seed)
    net = StoreNet(_links(rng, rng.randint(2, 9), one_way=one_way), SMALL)
    net.notices_breaks = notices
    happenings = _Happenings(rng, net)
    for _ in range(rng.randint(1, 12)):
        happenings.happen()
    net.settle()
    check_store_tables(net)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_lost_doubled_and_overtaken_messages_are_made_up_for(seed: int) -> None:
    rng = Random(seed)
    net = StoreNet(_links(rng, rng.randint(2, 8), one_way=rng.random() < 0.5), SMALL)
    fates = [Fate.ARRIVES, *Fate]
    net.fate = lambda: rng.choice(fates)
    happenings = _Happenings(rng, net)
    for _ in range(rng.randint(1, 12)):
        happenings.happen()
    net.fate = lambda: Fate.ARRIVES
    net.settle()
    check_store_tables(net)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_distances_do_not_count_up_when_the_only_store_goes(seed: int) -> None:
    """Each broker tries no other way than those that it was offered: nothing goes round."""
    rng = Random(seed)
    brokers = rng.randint(2, 9)
    net = StoreNet(_links(rng, brokers, one_way=False))
    store = rng.choice(sorted(net.brokers))
    net.keep(store, "a")
    check_store_tables(net)
    before = net.messages
    net.give_up(store, "a")
    check_store_tables(net)
    assert all(not len(broker.table) for broker in net.brokers.values())
    assert net.messages - before <= brokers * len(net.links)
    # And then nobody has anything to say any more.
    net.settle()
    before = net.messages
    net.pass_time(10.0)
    assert net.messages == before


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_in_a_tree_each_broker_knows_the_nearest_store_on_each_side(seed: int) -> None:
    """Whichever store cannot answer, the next nearest is known wherever a request may have come."""
    rng = Random(seed)
    brokers = rng.randint(2, 9)
    edges = [(str(rng.randrange(place)), str(place)) for place in range(1, brokers)]
    net = StoreNet([*edges, *((b, a) for a, b in edges)])
    happenings = _Happenings(rng, net)
    for _ in range(rng.randint(1, 12)):
        happenings.happen()
    net.settle()
    for name, broker in net.brokers.items():
        for unit in UNITS:
            entry = broker.table.entry(unit)
            ways = {**entry.nearest, **entry.aside} if entry is not None else {}
            found = {holder: len(way) for holder, way in ways.items() if holder}
            assert found == _nearest_by_side(net, name, unit)


def _nearest_by_side(net: StoreNet, name: str, unit: str) -> dict[str, int]:
    """By a search over links backwards, from each neighbour on, and never through the broker."""
    found: dict[str, int] = {}
    for first in [one for one, other in net.links if other == name and one in net.brokers]:
        seen, waiting = {name, first}, [(first, 1)]
        while waiting:
            broker, distance = waiting.pop(0)
            if unit in net.kept[broker]:
                found[first] = distance
                break
            for one, other in net.links:
                if other == broker and one not in seen and one in net.brokers:
                    seen.add(one)
                    waiting.append((one, distance + 1))
    return found
