"""Where a user had better be, and what keeps it from going there."""

from __future__ import annotations

from random import Random

import pytest

from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection import Choice, Selection, SelectionReason, User
from broker_agent.core.selection.selection_settings import AdviceSettings, SelectionSettings
from tests.support.selecting import selection, told

PLAIN = SelectionSettings(load_weight=0.0, load_floor=0)
MINE = frozenset({1, 2, 3, 4})


def newcomer(name: str = "u") -> User:
    return User(name, MINE)


# ---- utility -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "load", "weight", "utility", "own_utility"),
    [
        # Similarity alone: |S_b ∩ s_u| / |s_u|.
        ({1, 2, 3, 4}, 4, 0.0, 1.0, 0.0),
        ({1, 2, 9}, 3, 0.0, 0.5, 0.0),
        # w_l L_b, times the two brokers: with the user 8 of 8 subscriptions there, or 4 of 8 here.
        ({1, 2, 3, 4}, 4, 0.3, 1.0 - 0.3 * 2.0, -0.3 * 1.0),
        ({1, 2, 3, 4}, 12, 0.1, 1.0 - 0.1 * 2.0, -0.1 * 0.5),
    ],
)
def test_utility(
    theirs: set[int], load: int, weight: float, utility: float, own_utility: float
) -> None:
    here = selection(SelectionSettings(load_weight=weight, load_floor=0))
    here.on_summary(told("b", theirs, load), 0.0)
    choice = here.choose(newcomer(), 0.0)
    assert choice.reason is SelectionReason.MORE_ALIKE
    assert (choice.broker_id, choice.address) == ("b", "b:1")
    assert choice.utility == pytest.approx(utility)
    assert choice.own_utility == pytest.approx(own_utility)


def test_a_user_is_no_company_to_itself() -> None:
    here = selection(PLAIN)
    here.local.add(MINE)
    here.local.add({1, 2})
    here.on_summary(told("b", {1, 2, 3}), 0.0)
    choice = here.choose(User("u", MINE, held=MINE), 0.0)
    assert choice.moves
    assert (choice.own_utility, choice.utility) == (0.5, 0.75)
    # Where it only has begun, the others' count in full.
    stays = here.choose(User("v", MINE), 0.0)
    assert (stays.reason, stays.own_utility) == (SelectionReason.HERE_IS_BEST, 1.0)


def test_load_here_is_with_the_user_there() -> None:
    here = selection(SelectionSettings(load_weight=0.1, load_floor=0))
    here.local.add(range(20, 28))
    here.local.add(MINE)
    here.on_summary(told("b", {*MINE, 5, 6, 7, 8}, load=8), 0.0)
    choice = here.choose(User("u", {*MINE, 5, 6, 7, 8}, held=MINE), 0.0)
    assert choice.own_utility == pytest.approx(-0.1 * 16 / 12)
    assert choice.utility == pytest.approx(1.0 - 0.1 * 16 / 12)


def test_it_is_less_loaded_elsewhere() -> None:
    here = selection()
    here.local.add(range(1, 100))
    for _ in range(4):
        here.local.add(MINE)
    here.on_summary(told("b", MINE, load=4), 0.0)
    assert here.choose(newcomer(), 0.0).reason is SelectionReason.LESS_LOADED
    assert here.counters.redirects_load == 1


def test_the_best_of_many_and_ties_by_the_seed() -> None:
    def chosen(seed: int) -> str:
        here = selection(PLAIN, seed)
        for name in "abcdef":
            here.on_summary(told(name, {1, 2, 3}), 0.0)
        here.on_summary(told("worse", {1, 2}), 0.0)
        return here.choose(newcomer(), 0.0).broker_id

    names = [chosen(seed) for seed in range(30)]
    assert names == [chosen(seed) for seed in range(30)]
    assert len(set(names)) > 3
    assert "worse" not in names


def test_a_user_with_very_many_topics_is_compared_by_a_sample() -> None:
    here = selection(SelectionSettings(load_weight=0.0, interests_max=10))
    here.on_summary(told("b", range(10)), 0.0)
    assert here.choose(User("u", range(1_000)), 0.0).utility == 1.0


# ---- staying -------------------------------------------------------------------------------------


def reason_of(choice: Choice) -> SelectionReason:
    assert not choice.moves
    assert (choice.broker_id, choice.address) == ("me", "me:1")
    assert choice.utility == choice.own_utility
    return choice.reason


def test_reasons_to_stay_without_looking() -> None:
    here = selection()
    assert reason_of(here.choose(User("u", ()), 0.0)) is SelectionReason.NO_INTERESTS
    assert reason_of(here.choose(newcomer(), 0.0)) is SelectionReason.NO_OTHERS
    off = selection(SelectionSettings(enabled=False))
    off.on_summary(told("b", MINE), 0.0)
    assert reason_of(off.choose(newcomer(), 0.0)) is SelectionReason.OFF
    assert off.summary(0.0) is None


def test_nobody_moves_for_a_gain_below_the_margin() -> None:
    settings = SelectionSettings(load_weight=0.0, margin=0.3, join_margin=0.1)
    here = selection(settings)
    here.local.add(MINE)
    here.local.add({1, 2})
    here.on_summary(told("b", {1, 2, 3}), 0.0)
    settled = User("u", MINE, held=MINE)
    assert reason_of(here.choose(settled, 0.0)) is SelectionReason.GAIN_BELOW_MARGIN
    here.on_summary(told("b", MINE, number=2), 0.0)
    assert here.choose(settled, 0.0).moves


def test_one_who_has_just_come_moves_for_less() -> None:
    here = selection(SelectionSettings(load_weight=0.0, margin=0.3, join_margin=0.1))
    here.local.add({1, 2})
    here.on_summary(told("b", {1, 2, 3}), 0.0)
    assert here.choose(newcomer(), 0.0).moves


def test_nobody_is_sent_to_a_broker_that_fell_silent() -> None:
    here = selection()
    here.on_summary(told("b", MINE), 0.0)
    assert here.choose(newcomer("u"), 6.9).moves
    assert reason_of(here.choose(newcomer("v"), 7.1)) is SelectionReason.NO_OTHERS


def test_who_was_moved_stays_for_a_while() -> None:
    here = selection(PLAIN)
    here.on_summary(told("b", MINE), 0.0)
    here.note_arrival("u", 0.0)
    assert reason_of(here.choose(newcomer("u"), 4.9)) is SelectionReason.MOVED_LATELY
    assert here.counters.redirects_held_back == 1
    assert here.choose(newcomer("u"), 5.1).moves
    # And if it comes back by itself.
    here.on_summary(told("b", MINE, number=2), 6.0)
    assert reason_of(here.choose(newcomer("u"), 10.0)) is SelectionReason.MOVED_LATELY


def test_a_target_takes_so_many_until_it_is_heard_again() -> None:
    here = selection(SelectionSettings(load_weight=0.0, sent_per_update_max=2))
    here.on_summary(told("b", MINE), 0.0)
    here.on_summary(told("c", {1, 2}), 0.0)
    went = [here.choose(newcomer(f"u{i}"), 0.0) for i in range(5)]
    # First the best, then the next best, which is as good once the others are on their way there.
    assert [choice.broker_id for choice in went] == ["b", "b", "c", "c", "me"]
    assert went[4].reason is SelectionReason.TARGETS_BUSY
    here.on_summary(told("b", MINE, number=2), 1.0)
    assert here.choose(newcomer("u9"), 1.0).broker_id == "b"


def test_those_on_their_way_count_as_load_and_as_company() -> None:
    here = selection(SelectionSettings(load_weight=0.0))
    here.on_summary(told("b", {1, 9}), 0.0)
    (neighbour,) = here.neighbours.fresh(0.0)
    assert here.choose(newcomer("u"), 0.0).utility == 0.25
    assert neighbour.load == 2 + 4
    assert here.choose(newcomer("v"), 0.0).utility == 1.0


def test_so_many_moves_a_second() -> None:
    here = selection(SelectionSettings(load_weight=0.0, moves_per_s=2.0, moves_burst=3))
    here.on_summary(told("b", MINE), 0.0)

    def moved(at_s: float) -> int:
        choices = [here.choose(newcomer(f"u{at_s}{i}"), at_s) for i in range(10)]
        assert {c.reason for c in choices if not c.moves} == {SelectionReason.MOVES_LIMITED}
        return sum(choice.moves for choice in choices)

    assert moved(0.0) == 3
    assert moved(1.0) == 2
    assert moved(6.0) == 3


def test_past_the_memory_of_moves_everybody_stays_longer() -> None:
    here = selection(SelectionSettings(load_weight=0.0, remembered_max=2))
    here.on_summary(told("b", MINE), 0.0)
    for i in range(3):
        here.note_arrival(f"u{i}", 1.0)
    # u0 is forgotten, so anybody may be u0.
    assert reason_of(here.choose(newcomer("u0"), 5.9)) is SelectionReason.MOVED_LATELY
    assert reason_of(here.choose(newcomer("new"), 5.9)) is SelectionReason.MOVED_LATELY
    assert here.choose(newcomer("new"), 6.1).moves


# ---- advice --------------------------------------------------------------------------------------


def advised(settings: SelectionSettings = PLAIN) -> Selection:
    here = selection(settings)
    here.on_summary(told("alike", {1, 2, 3}), 0.0)
    here.on_summary(told("advised", {1, 2}), 0.0)
    here.advise(SelectionAdvice("1", 5.0, {"u": "advised"}), 0.0)
    return here


def test_fresh_advice_outweighs_some_likeness() -> None:
    here = advised()
    choice = here.choose(newcomer("u"), 4.9)
    assert (choice.broker_id, choice.reason, choice.utility) == (
        "advised",
        SelectionReason.ADVISED,
        1.0,
    )
    assert here.counters.redirects_advised == 1
    little = SelectionSettings(load_weight=0.0, advice_weight=0.1)
    assert advised(little).choose(newcomer("u"), 4.9).reason is SelectionReason.MORE_ALIKE


def test_advice_for_others_too_old_or_taken_back() -> None:
    assert advised().choose(newcomer("v"), 4.9).broker_id == "alike"
    assert advised().choose(newcomer("u"), 5.0).broker_id == "alike"
    here = advised()
    here.advise(None, 1.0)
    assert here.choose(newcomer("u"), 2.0).broker_id == "alike"


def test_advice_to_stay_and_for_a_broker_nobody_knows() -> None:
    here = selection(PLAIN)
    here.on_summary(told("b", {1, 2}), 0.0)
    here.advise(SelectionAdvice("1", 5.0, {"u": "me", "v": "elsewhere"}), 0.0)
    assert reason_of(here.choose(newcomer("u"), 0.0)) is SelectionReason.HERE_IS_BEST
    assert here.choose(newcomer("v"), 0.0).reason is SelectionReason.MORE_ALIKE


@pytest.mark.parametrize(
    ("client", "interests", "broker"),
    [
        ("known", {1, 2, 3}, "k"),
        ("unknown", {1, 2, 3}, "a"),
        ("unknown", {1, 3}, "a"),
        ("unknown", {3}, "b"),
        ("unknown", {7}, None),
    ],
)
def test_advice_by_client_then_by_most_topics_then_by_name(
    client: str, interests: set[int], broker: str | None
) -> None:
    advice = SelectionAdvice("1", 5.0, {"known": "k"}, {1: "a", 2: "a", 3: "b"})
    assert advice.broker_for(client, interests) == broker


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("update_period_s", 0.0),
        ("margin", -0.1),
        ("load_weight", float("nan")),
        ("stale_after_s", 1.0),
        ("moves_burst", 0),
    ],
)
def test_settings_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SelectionSettings(**{name: value})  # type: ignore[arg-type]


def test_advice_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="entries_max"):
        AdviceSettings(entries_max=0)


# ---- brokers out of reach ------------------------------------------------------------------------


def test_nobody_is_sent_where_it_could_not_connect() -> None:
    here = selection(PLAIN)
    here.on_summary(told("b", MINE), 0.0)
    here.on_summary(told("c", {1}), 0.0)
    assert here.choose(User("u", {1, 2}, avoided={"b:1"}), 0.0).broker_id == "c"
    assert (
        reason_of(here.choose(User("v", MINE, avoided={"b:1", "c:1"}), 0.0))
        is SelectionReason.NO_OTHERS
    )
    # Others may be: one client's word is its own.
    assert here.choose(newcomer("w"), 0.0).broker_id == "b"


def test_nobody_is_sent_to_a_broker_that_is_out_of_reach_until_it_is_heard_again() -> None:
    here = selection(PLAIN)
    here.on_summary(told("b", MINE), 0.0)
    here.lose(["b:1", "unknown:1"])
    assert here.counters.neighbours_lost == 1
    assert reason_of(here.choose(newcomer(), 0.1)) is SelectionReason.NO_OTHERS
    here.on_summary(told("b", MINE, number=2), 0.2)
    assert here.choose(newcomer(), 0.2).broker_id == "b"


def test_nobody_is_sent_to_a_broker_that_leaves() -> None:
    here, leaving = selection(PLAIN), Selection("b", "b:1", 1, PLAIN, Random(1))
    late = leaving.summary(0.0)
    assert late is not None
    here.on_summary(told("b", MINE, number=1), 0.0)
    here.on_summary(leaving.farewell(0.1), 0.1)
    assert reason_of(here.choose(newcomer(), 0.1)) is SelectionReason.NO_OTHERS
    # What it had said before comes late.
    here.on_summary(late, 0.2)
    here.on_summary(told("b", MINE, number=1), 0.2)
    assert reason_of(here.choose(newcomer(), 0.2)) is SelectionReason.NO_OTHERS
    # Started again, it is another life.
    here.on_summary(told("b", MINE, incarnation=2), 0.3)
    assert here.choose(newcomer(), 0.3).broker_id == "b"


def test_who_came_by_a_further_door_is_sent_to_a_name_of_that_door() -> None:
    here = selection(PLAIN)
    here.on_summary(told("b", MINE, doors={"outside": "b.example.org:7400"}), 0.0)
    # It does not say where clients from outside reach it, as brokers of before do not.
    here.on_summary(told("old", MINE), 0.0)
    for seed in range(10):
        choice = here.choose(User(f"u{seed}", MINE, door="outside"), 0.0)
        assert (choice.broker_id, choice.address) == ("b", "b.example.org:7400")
    avoided = User("v", MINE, avoided=("b.example.org:7400",), door="outside")
    assert here.choose(avoided, 0.0).reason is SelectionReason.NO_OTHERS
    assert here.choose(User("w", MINE, door="mqtt"), 0.0).reason is SelectionReason.NO_OTHERS
    # To others it is what it was.
    assert here.choose(User("x", MINE, avoided=("old:1",)), 0.0).address == "b:1"
