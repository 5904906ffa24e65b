"""Selection under anything that may come, beside what it must never do."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker_agent.core.advice import Advice
from broker_agent.core.selection import Selection, User
from broker_agent.core.selection_settings import SelectionSettings
from overlay.identifiers import RING_MASK
from tests.support.selecting import selection, told, without_keys

TIGHT = SelectionSettings(
    cluster_size_max=3,
    summary_keys_max=6,
    interests_max=4,
    moves_burst=3,
    moves_per_s=2.0,
    sent_per_update_max=2,
    remembered_max=4,
    min_stay_s=3.0,
    margin=0.1,
    join_margin=0.0,
)

keys = st.frozensets(st.integers(0, 12), max_size=8)
# Hearing a summary, a user who comes sent by another, a change of what is here, advice, a question.
steps = st.one_of(
    st.tuples(st.just("hear"), st.integers(0, 4), keys, st.integers(0, 60), st.booleans()),
    st.tuples(st.just("arrive"), st.integers(0, 6)),
    st.tuples(st.just("add"), keys),
    st.tuples(st.just("advise"), st.integers(0, 6), st.integers(0, 4)),
    st.tuples(st.just("choose"), st.integers(0, 6), keys, st.booleans()),
    st.tuples(st.just("choose"), st.integers(0, 6), keys, st.booleans()),
)
timed = st.lists(st.tuples(st.floats(0.0, 1.5), steps), max_size=60)


def do(here: Selection, step: Sequence[object], number: int, now_s: float) -> None:
    match step:
        case ("hear", int(broker), frozenset(topics), int(load), bool(short)):
            summary = told(f"b{broker}", topics, load, number)
            here.on_summary(without_keys(summary) if short else summary, now_s)
        case ("arrive", int(user)):
            here.note_arrival(f"u{user}", now_s)
        case ("add", frozenset(topics)):
            here.local.add(topics)
        case ("advise", int(user), int(broker)):
            here.advise(Advice("1", 2.0, {f"u{user}": f"b{broker}"}), now_s)


@given(timed, st.integers(0, 3))
def test_never_twice_never_worse_never_without_bounds(
    history: list[tuple[float, Sequence[object]]], seed: int
) -> None:
    here = selection(TIGHT, seed)
    now_s = 0.0
    moved_s: dict[str, float] = {}
    moves: list[float] = []
    sent: dict[str, int] = {}
    heard_s: dict[str, float] = {}
    for number, (pause_s, step) in enumerate(history, 1):
        now_s += pause_s
        received = here.counters.summaries_received
        do(here, step, number, now_s)
        here.summary(now_s)
        match step:
            case ("hear", broker, *_) if here.counters.summaries_received > received:
                sent[f"b{broker}"] = 0
                heard_s[f"b{broker}"] = now_s
            case ("arrive", user):
                moved_s[f"u{user}"] = now_s
            case ("choose", user, frozenset(topics), bool(settled)):
                name = f"u{user}"
                held = topics & here.local.counts.keys() if settled else frozenset()
                choice = here.choose(User(name, topics, held), now_s)
                assert choice.utility >= choice.own_utility
                if not choice.moves:
                    assert choice.broker_id == "me"
                    continue
                # Since it was moved last, and since its new broker was heard last.
                assert now_s - moved_s.get(name, float("-inf")) >= TIGHT.min_stay_s
                assert now_s - heard_s[choice.broker_id] <= TIGHT.stale_after_s
                assert choice.utility > choice.own_utility + (TIGHT.margin if held else 0.0)
                moved_s[name] = now_s
                moves.append(now_s)
                sent[choice.broker_id] += 1
                assert sent[choice.broker_id] <= TIGHT.sent_per_update_max
        _check_bounds(here, now_s)
    for begin_s in moves:
        within = sum(1 for at_s in moves if begin_s <= at_s <= begin_s + 2.0)
        assert within <= TIGHT.moves_burst + 2.0 * TIGHT.moves_per_s + 1e-6


def _check_bounds(here: Selection, now_s: float) -> None:
    known = here.neighbours.fresh(now_s)
    assert len(known) + len(here.neighbours.keyless) <= TIGHT.cluster_size_max
    assert len(here._moved) <= TIGHT.remembered_max
    for neighbour in known:
        assert len(neighbour.keys) <= TIGHT.summary_keys_max
        assert len(neighbour.sent_keys) <= TIGHT.sent_per_update_max * TIGHT.interests_max


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
