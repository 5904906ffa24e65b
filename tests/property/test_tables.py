"""Tables of brokers in a tree against what they must be, computed from what all clients hold."""

from __future__ import annotations

from itertools import permutations, product
from random import Random

import pytest

from dynatops.kit.filters import Filter, Value, covers
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.tables.held_filters import HERE, BrokerId
from overlay.forwarding.tables.subscription_tables import (
    SubscriptionTables,
    TableRules,
)
from overlay.forwarding.tree.topology import TreeMode
from tests.support.table_net import TableNet, check_tables, minimal

RULES = [
    TableRules(mode, advertisements=advertisements, covering=covering)
    for mode, advertisements, covering in product(TreeMode, (False, True), (True, False))
]
STEPS = 250
PATTERNS = ("a", "a/b", "a/+", "+/b", "a/#", "#", "+/#", "c")
WHERE = (
    *("", "", "x < 1", "x < 2", "x <= 1", "x < 1 or x == 1", "x > 0", "x == 1", "not x < 1"),
    *("y == true", "x < 2 and y == true", "x < 2 or y == true", "x < 1 and x > 1", "has y"),
    *('x startswith "a"', 'x == "ab" or x == 1', "not (x < 1 or has y)"),
)
POOL = [Filter.parse(pattern, where) for pattern, where in product(PATTERNS, WHERE)]
EVENTS: list[tuple[str, dict[str, Value]]] = [
    (topic, {name: value for name, value in (("x", x), ("y", y)) if value is not None})
    for topic, x, y in product(
        ("a", "a/b", "d/b", "c"), (None, 0, 1, 1.5, 7, "ab"), (None, True, False)
    )
]


def name_of(rules: TableRules) -> str:
    names = [str(rules.mode)]
    names += ["advertisements"] * rules.advertisements + ["covering"] * rules.covering
    return " ".join(names)


def broker(number: int) -> BrokerId:
    return BrokerId(f"b{number}")


def random_tree(rng: Random, size: int) -> list[tuple[BrokerId, BrokerId]]:
    return [(broker(rng.randrange(child)), broker(child)) for child in range(1, size)]


class _Life:
    """A network to which things happen."""

    def __init__(self, rules: TableRules, seed: int) -> None:
        self.rng = Random(seed)
        self.net = TableNet(rules, random_tree(self.rng, self.rng.randint(2, 7)))
        self.pool = self.rng.sample(POOL, 24)

    def step(self) -> None:
        rng, net = self.rng, self.net
        name = rng.choice(list(net.tables))
        match rng.choices(range(7), [10, 9, 4, 3, 0.5, 1, 1])[0]:
            case 0:
                net.want(name, rng.choice(self.pool))
            case 1:
                if net.wanted[name]:
                    net.give_up(name, rng.choice(list(net.wanted[name])))
            case 2:
                net.advertise(name, rng.choice(self.pool))
            case 3:
                if net.advertised[name]:
                    net.withdraw(name, rng.choice(list(net.advertised[name])))
            case 4:
                net.crash(name)
            case 5:
                # Much happens while a link is silent.
                edge = rng.choice(net.edges)
                net.cut_link(*edge)
                for _ in range(rng.randint(1, 4)):
                    self.step_of_client()
                net.mend_link(*edge)
            case _:
                # The topology changes: a broker is without others for a while, or elsewhere.
                _, child = edge = rng.choice(net.edges)
                net.remove_edge(edge)
                self.step_of_client()
                check_tables(net)
                below = self.below(child)
                net.add_edge((rng.choice([n for n in net.tables if n not in below]), child))

    def step_of_client(self) -> None:
        name = self.rng.choice(list(self.net.tables))
        held = list(self.net.wanted[name])
        if held and self.rng.random() < 0.5:
            self.net.give_up(name, self.rng.choice(held))
        else:
            self.net.want(name, self.rng.choice(self.pool))

    def below(self, name: BrokerId) -> set[BrokerId]:
        """With the broker itself."""
        found: set[BrokerId] = set()
        more = {name}
        while more:
            found |= more
            more = {child for parent, child in self.net.edges if parent in more}
        return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rules", RULES, ids=name_of)
def test_tables_are_as_if_made_anew_after_every_change(rules: TableRules, seed: int) -> None:
    life = _Life(rules, seed)
    for number in range(STEPS):
        life.step()
        check_tables(life.net)
        if number % 10 == 0:
            check_events(life.net, life.rng)


def check_events(net: TableNet, rng: Random) -> None:
    """Each goes where clients want it, and nowhere else but on the way there."""
    for topic, attributes in rng.sample(EVENTS, 12):
        source = rng.choice(list(net.tables))
        if net.rules.advertisements and not any(
            advertised.matches(topic, attributes) for advertised in net.advertised[source]
        ):
            continue
        reached = net.reach(source, topic, attributes)
        wanting = {
            name
            for name, wanted in net.wanted.items()
            if any(one.matches(topic, attributes) for one in wanted)
        }
        assert {name for name, is_wanted in reached.items() if is_wanted} == wanting
        on_the_way = {source}
        for target in wanting:
            on_the_way |= path(net, source, target)
        if net.rules.mode is TreeMode.HIERARCHICAL and not net.rules.advertisements:
            for name in sorted(reached):
                on_the_way |= path(net, source, name) & ancestors(net, source)
        assert set(reached) == on_the_way


def path(net: TableNet, source: BrokerId, target: BrokerId) -> set[BrokerId]:
    """The brokers between two, with both."""
    return ancestors(net, source) ^ ancestors(net, target) | lowest_common(net, source, target)


def ancestors(net: TableNet, name: BrokerId) -> set[BrokerId]:
    """With the broker itself."""
    found = {name}
    parents = {child: parent for parent, child in net.edges}
    while name in parents:
        name = parents[name]
        found.add(name)
    return found


def lowest_common(net: TableNet, a: BrokerId, b: BrokerId) -> set[BrokerId]:
    common = ancestors(net, a) & ancestors(net, b)
    return {name for name in common if not (ancestors_below(net, name) & common)}


def ancestors_below(net: TableNet, name: BrokerId) -> set[BrokerId]:
    return {child for parent, child in net.edges if parent == name}


# ---- one table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_max", [2, 5, 9, 4_000])
def test_nothing_is_dropped_where_covering_is_not_settled(
    steps_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(steps_max)
    names = [broker(number) for number in range(4)]
    tables = SubscriptionTables(TableRules())
    for name in names:
        tables.add_neighbour(name)
    said: dict[BrokerId, set[Filter]] = {name: set() for name in names}
    for _ in range(400):
        monkeypatch.setattr("dynatops.kit.filters.covering.STEPS_MAX", steps_max)
        holder, wanted = rng.choice([*names, HERE]), rng.choice(POOL)
        if wanted not in tables.wanted_by(holder):
            tables.want(holder, wanted)
        else:
            tables.give_up(holder, wanted)
        for name, change in tables.changes().items():
            assert not set(change.add) & said[name]
            assert set(change.remove) <= said[name]
            said[name] = said[name] - set(change.remove) | set(change.add)
        monkeypatch.setattr("dynatops.kit.filters.covering.STEPS_MAX", 4_000)
        for name in names:
            assert set(tables.told(name)) == said[name]
            others = {f for h in (*names, HERE) if h != name for f in tables.wanted_by(h)}
            assert said[name] <= others
            for one in others:
                assert any(covers(other, one) for other in said[name]) or displaced_by_none(one)
            if steps_max == 4_000:
                assert said[name] == minimal(others)


def displaced_by_none(wanted: Filter) -> bool:
    """Nothing matches it: it need not be told."""
    return covers(Filter.parse("c", "x < 1 and x > 1"), wanted)


def test_which_filters_are_told() -> None:
    tables = SubscriptionTables(TableRules())
    a, b = broker(0), broker(1)
    for name in (a, b):
        tables.add_neighbour(name)
    wide, narrow = Filter.parse("t/#"), Filter.parse("t/x", "x < 1")
    tables.want(a, wide)
    tables.want(b, narrow)
    # What only the neighbour itself wants it is not told, and does not cover what it is told.
    assert tables.told(b) == [wide]
    assert tables.told(a) == [narrow]
    tables.want(HERE, narrow)
    assert tables.told(b) == [wide]
    assert tables.status().covered == 1
    assert tables.status().filters == 2


def test_filters_of_one_neighbour_are_bounded() -> None:
    counters = ForwardingCounters()
    tables = SubscriptionTables(TableRules(filters_max=2), counters)
    one, two, three = (Filter.parse(f"t{n}") for n in (1, 2, 3))
    tables.add_neighbour(broker(0))
    for wanted in (one, two, three, two):
        tables.want(broker(0), wanted)
        tables.want(HERE, wanted)
    assert tables.wanted_by(broker(0)) == [one, two]
    # What clients here want is bounded by whoever they are.
    assert tables.wanted_by(HERE) == [one, two, three]
    assert counters.tree_filters_refused == 1
    tables.give_up(broker(0), one)
    tables.want(broker(0), three)
    assert tables.wanted_by(broker(0)) == [two, three]


@pytest.mark.parametrize("settled", list(product((True, None), repeat=6)))
def test_of_filters_that_are_equal_one_is_told_whatever_is_settled(
    settled: tuple[bool | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    equal = [Filter.parse("t", where) for where in ("x < 1", "x < 1 or x < 0", "x < 1 or x < 0.5")]
    answers = dict(zip(permutations(equal, 2), settled, strict=True))
    monkeypatch.setattr(
        "overlay.forwarding.tables.held_filters.settled_covers", lambda a, b: answers[a, b]
    )
    for order in permutations(equal):
        tables = SubscriptionTables(TableRules())
        tables.add_neighbour(broker(0))
        for wanted in order:
            tables.want(HERE, wanted)
        told = tables.told(broker(0))
        assert told
        # The first is displaced by none, as all are equal and none can be known not to be.
        assert equal[0] in told
        tables.give_up(HERE, equal[0])
        assert equal[1] in tables.told(broker(0))
