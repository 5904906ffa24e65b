"""What broker selection is for: brokers' subscriptions change seldom, at an even load."""

from __future__ import annotations

from dataclasses import replace

from broker_agent.core.selection.selection_settings import SelectionSettings
from experiments.selection import CASES, compare, measure, run
from experiments.workloads.churn import ChurnSpec

SPEC = ChurnSpec(users=240, topics=200, seconds=40.0)
SETTINGS = SelectionSettings()


def test_at_least_sixty_percent_fewer_changes_at_a_load_as_even() -> None:
    result = compare(SPEC, 10, SETTINGS, seed=1)
    assert result.random.moves == result.random.summary_messages == 0
    assert result.reduction >= 0.6
    assert result.later_reduction >= 0.8
    assert result.load_std_ratio <= 1.5
    assert result.selected.topics_held < 0.5 * result.random.topics_held
    # Every user comes to a broker by chance, and few move more than that and for their mode.
    assert result.selected.moves < 1.6 * SPEC.users
    # T_update and what was told before its time.
    periods = SPEC.seconds / SETTINGS.update_period_s
    assert 0.9 < result.selected.summary_messages / (10 * 9 * periods) < 1.5


def test_without_weight_of_load_brokers_crowd() -> None:
    crowded = run(SPEC, 10, replace(SETTINGS, load_weight=0.0), seed=1)
    assert crowded.load_std > 3 * run(SPEC, 10, SETTINGS, seed=1).load_std


def test_one_seed_one_outcome_and_a_row() -> None:
    assert run(SPEC, 4, SETTINGS, seed=7) == run(SPEC, 4, SETTINGS, seed=7)
    row = measure(replace(CASES[0], spec=replace(SPEC, users=40, seconds=10.0)), seeds=(1, 2))
    assert row["case"] == CASES[0].name
