"""Selection under anything that may come, beside what it must never do."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from broker_agent.core.selection.selection import User
from broker_agent.core.selection.selection_settings import SelectionSettings
from overlay.base.identifiers import RING_MASK
from tests.support.selecting import selection, told, without_keys

TIGHT = SelectionSettings(
    cluster_size_max=3,
    summary_keys_max=6,
    interests_max=4,
    moves_burst=2,
    moves_per_s=1.0,
    sent_per_update_max=2,
    remembered_max=2,
    min_stay_s=3.0,
    margin=0.1,
    join_margin=0.0,
)

keys = st.frozensets(st.integers(0, 12), max_size=8)


class _History:
    """Brokers and users of a small world, as a seed says, and what must hold at each step."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.here = selection(TIGHT, seed)
        self.now_s = 0.0
        self.local: list[frozenset[int]] = []
        self.moved_s: dict[str, float] = {}
        self.moves_s: list[float] = []
        self.sent: dict[str, int] = {}
        self.heard_s: dict[str, float] = {}

    def step(self, number: int) -> None:
        self.now_s += self.rng.choice((0.0, 0.05, 0.3, 1.0, 2.5))
        self.here.summary(self.now_s)
        steps = (self.hear, self.choose, self.change, self.arrive)
        self.rng.choices(steps, (4, 10, 3, 1))[0](number)
        self.check_bounds()

    def some_keys(self, most: int) -> frozenset[int]:
        return frozenset(self.rng.sample(range(12), self.rng.randint(0, most)))

    def hear(self, number: int) -> None:
        # Now and then from too many brokers, with too many keys, without them, or late.
        broker = f"b{self.rng.choice((0, 0, 1, 1, 2, 3, 4))}"
        late = self.rng.random() < 0.2
        numbered = self.rng.randrange(number) if late else number
        summary = told(broker, self.some_keys(7), self.rng.randint(0, 15), numbered)
        short = self.rng.random() < 0.1
        before = self.here.counters.summaries_received
        self.here.on_summary(without_keys(summary) if short else summary, self.now_s)
        if self.here.counters.summaries_received > before:
            self.heard_s[broker] = self.now_s
            self.sent[broker] = 0

    def arrive(self, _: int) -> None:
        name = f"u{self.rng.randrange(7)}"
        self.here.note_arrival(name, self.now_s)
        self.moved_s[name] = self.now_s

    def change(self, _: int) -> None:
        """What users subscribe to here; few of them, so that elsewhere can be better."""
        if len(self.local) > 3:
            self.here.local.remove(self.local.pop(self.rng.randrange(len(self.local))))
        self.local.append(self.some_keys(3))
        self.here.local.add(self.local[-1])

    def choose(self, _: int) -> None:
        name = f"u{self.rng.randrange(7)}"
        interests = self.some_keys(6)
        settled = self.rng.random() < 0.5
        held = interests & self.here.local.counts.keys() if settled else frozenset()
        choice = self.here.choose(User(name, interests, held), self.now_s)
        assert choice.utility >= choice.own_utility
        if not choice.moves:
            assert choice.broker_id == "me"
            return
        assert choice.utility > choice.own_utility + (TIGHT.margin if held else 0.0)
        assert self.now_s - self.moved_s.get(name, float("-inf")) >= TIGHT.min_stay_s
        assert self.now_s - self.heard_s[choice.broker_id] <= TIGHT.stale_after_s
        self.moved_s[name] = self.now_s
        self.moves_s.append(self.now_s)
        self.sent[choice.broker_id] += 1
        assert self.sent[choice.broker_id] <= TIGHT.sent_per_update_max

    def check_bounds(self) -> None:
        here = self.here
        known = here.neighbours.fresh(self.now_s)
        assert len(known) + len(here.neighbours.keyless) <= TIGHT.cluster_size_max
        assert len(here._moved) <= TIGHT.remembered_max
        for neighbour in known:
            assert len(neighbour.keys) <= TIGHT.summary_keys_max
            assert len(neighbour.sent_keys) <= TIGHT.sent_per_update_max * TIGHT.interests_max


@given(st.integers(0, 1 << 32))
def test_never_twice_never_worse_never_without_bounds(seed: int) -> None:
    history = _History(seed)
    for number in range(1, 150):
        history.step(number)
    moves_s = history.moves_s
    assert moves_s
    for begin_s in moves_s:
        within = sum(1 for at_s in moves_s if begin_s <= at_s <= begin_s + 1.0)
        assert within <= TIGHT.moves_burst + TIGHT.moves_per_s


@given(
    keys.filter(bool),
    st.lists(st.tuples(keys, st.integers(0, 60)), min_size=1, max_size=5),
    st.lists(keys, max_size=5),
    st.booleans(),
)
def test_the_choice_is_that_of_the_definition(
    interests: frozenset[int],
    others: list[tuple[frozenset[int], int]],
    here_too: list[frozenset[int]],
    settled: bool,
) -> None:
    """Against Util = Sim - w_l L_b with the user there, written down as in the paper."""
    settings = SelectionSettings(load_floor=0, margin=0.0, join_margin=0.0)
    here = selection(settings)
    for topics in here_too:
        here.local.add(topics)
    if settled:
        here.local.add(interests)
    for i, (topics, load) in enumerate(others):
        here.on_summary(told(f"b{i}", topics, load), 0.0)

    loads = {f"b{i}": load for i, (_, load) in enumerate(others)}
    loads["me"] = sum(map(len, here_too))
    topics_of = {f"b{i}": topics for i, (topics, _) in enumerate(others)}
    topics_of["me"] = frozenset().union(*here_too)
    total = sum(loads.values()) + len(interests)
    weight = settings.load_weight * len(loads)
    utility = {
        broker: len(topics_of[broker] & interests) / len(interests)
        - weight * (loads[broker] + len(interests)) / total
        for broker in loads
    }

    choice = here.choose(User("u", interests, interests if settled else ()), 0.0)
    assert abs(choice.own_utility - utility["me"]) < 1e-6
    assert abs(choice.utility - max(utility.values())) < 1e-6
    assert choice.moves == (max(utility.values()) > utility["me"] + 1e-9)
    assert abs(utility[choice.broker_id] - choice.utility) < 1e-6


@given(st.frozensets(st.integers(0, RING_MASK), min_size=1, max_size=300), st.integers(1, 50))
def test_a_sample_of_the_lowest_keys_says_what_all_say_where_all_are_common(
    topics: frozenset[int], keys_max: int
) -> None:
    there = selection(SelectionSettings(summary_keys_max=keys_max))
    there.local.add(topics)
    summary = there.summary(0.0)
    assert summary is not None
    assert len(summary.keys) == min(keys_max, len(topics))
    assert summary.truncated == (len(topics) > keys_max)
    summary.broker_id = "b"
    here = selection()
    here.on_summary(summary, 0.0)
    (known,) = here.neighbours.fresh(0.0)
    assert known.share_of(topics) == 1.0
