"""Algorithm 3: when a better placement is looked for, and when one is worth it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reconfig_manager.model.notices import CheckOutcome, ProcessChecked
from reconfig_manager.model.plan import Origin, PlanState
from reconfig_manager.model.policy import (
    DAY_S,
    WEEK_DAYS,
    MaintenanceWindow,
    Mode,
    Policy,
    SolverOptions,
)
from reconfig_manager.placement.problem import Objective
from reconfig_manager.ports import Notify, Solve
from tests.support.workday import START_S, Workday

HOUR_S = 3600.0
QUICK = SolverOptions(iterations_max=40, budget_s=60.0)


def auto(**changes: Any) -> Policy:
    return Policy(**{"mode": Mode.AUTO, "solver": QUICK, **changes})


def outcomes(day: Workday) -> list[str]:
    return [
        str(effect.notice.outcome)
        for effect in day.effects
        if isinstance(effect, Notify)
        and isinstance(effect.notice, ProcessChecked)
        and effect.notice.outcome is not CheckOutcome.SOLVING
    ]


class TestPingPong:
    """On a stationary workload `auto` reconfigures at most once, over 24 hours."""

    @pytest.mark.parametrize("algorithm", ["refine", "ssbr-greedy"])
    def test_over_as_many_periods_of_ten_minutes(self, algorithm: str) -> None:
        solver = QUICK.model_copy(update={"algorithm": algorithm})
        day = Workday(auto(solver=solver, t_free_s=600.0), events_per_s=0.03, seed=3)
        day.begin()
        day.run(24 * 600.0)
        assert [plan.state for plan in day.plans] == [PlanState.COMMITTED]

    @pytest.mark.slow
    @pytest.mark.parametrize("algorithm", ["refine", "ssbr-greedy"])
    # From an event in minutes, where counts are mostly noise, to some every second.
    @pytest.mark.parametrize("events_per_s", [0.005, 0.05, 1.0])
    @pytest.mark.parametrize("seed", [2, 3])
    def test_brokers_stay_where_they_were_put(
        self, algorithm: str, events_per_s: float, seed: int
    ) -> None:
        solver = QUICK.model_copy(update={"algorithm": algorithm})
        day = Workday(auto(solver=solver), events_per_s=events_per_s, seed=seed)
        day.begin()
        day.run(DAY_S)
        assert [plan.state for plan in day.plans] == [PlanState.COMMITTED]
        assert len(outcomes(day)) >= 23

    @pytest.mark.slow
    def test_what_it_takes(self) -> None:
        """Without hysteresis and least gain, noise is chased: the test above can fail."""
        day = Workday(auto(hysteresis_periods=1, gain_min=0.0), events_per_s=0.005, seed=3)
        day.begin()
        day.run(DAY_S)
        assert len(day.of(PlanState.COMMITTED)) > 1

    def test_a_workload_that_changes_is_worth_another(self) -> None:
        day = Workday(auto())
        day.begin()
        day.run(6 * HOUR_S)
        other = Workday(auto(), seed=9)
        day.subscriptions = dict(
            zip(day.subscriptions, reversed(other.subscriptions.values()), strict=True)
        )
        # A new stream: who subscribes to what is told from the start.
        day.first_report = True
        for broker in day.brokers.values():
            broker.streams += 1
        for broker in day.brokers.values():
            before = broker.agent._replace(stream=broker.streams - 1)
            day.manager.gone(before, day.now_s)
            day.manager.register(broker.agent, broker.registration(), day.now_s)
        day.run(6 * HOUR_S)
        assert len(day.of(PlanState.COMMITTED)) == 2


class TestTheProcess:
    def test_waits_for_t_free_then_for_hysteresis(self) -> None:
        day = Workday(auto(hysteresis_periods=3))
        day.begin()
        day.run(0.9 * HOUR_S)
        assert outcomes(day) == []
        day.run(0.2 * HOUR_S)
        assert outcomes(day) == ["waiting"]
        day.run(HOUR_S)
        assert day.plans == []
        day.run(HOUR_S)
        assert outcomes(day) == ["waiting", "waiting", "found"]
        (plan,) = day.plans
        assert plan.state is PlanState.COMMITTED
        assert (plan.origin, plan.actor, plan.approved_by) == (
            Origin.PROCESS,
            "process",
            "process",
        )

    def test_no_other_within_t_free(self) -> None:
        day = Workday(auto(hysteresis_periods=1))
        day.begin()
        day.run(1.1 * HOUR_S)
        (plan,) = day.of(PlanState.COMMITTED)
        assert day.status.next_check_s >= plan.changed_s + HOUR_S

    def test_a_candidate_is_solved_once_and_then_only_looked_at(self) -> None:
        day = Workday(auto(hysteresis_periods=3))
        day.begin()
        day.run(3.2 * HOUR_S)
        assert sum(isinstance(effect, Solve) for effect in day.effects) == 1

    def test_manual_proposes(self) -> None:
        day = Workday(Policy(solver=QUICK))
        day.begin()
        day.run(1.2 * HOUR_S)
        (plan,) = day.plans
        assert (plan.state, plan.origin) == (PlanState.PROPOSED, Origin.PROCESS)
        assert plan.prediction is not None
        assert plan.prediction.accept
        assert plan.note.endswith("; to be approved")

    def test_a_newer_proposal_takes_the_place_of_its_last(self) -> None:
        day = Workday(Policy(solver=QUICK, t_free_s=600.0))
        day.begin()
        day.run(1500.0)
        assert [plan.state for plan in day.plans] == [PlanState.EXPIRED, PlanState.PROPOSED]

    def test_off_does_nothing(self) -> None:
        day = Workday(Policy(mode=Mode.OFF))
        day.begin()
        day.run(3 * HOUR_S)
        assert (day.plans, outcomes(day)) == ([], [])

    def test_only_within_windows(self) -> None:
        window = MaintenanceWindow(days=("mon",), start="05:30", end="06:00")
        day = Workday(auto(hysteresis_periods=1, windows=(window,)))
        day.begin()
        day.run(5.4 * HOUR_S)
        assert day.plans == []
        assert set(outcomes(day)) == {"outside_windows"}
        day.run(0.2 * HOUR_S)
        (plan,) = day.plans
        assert plan.state is PlanState.COMMITTED
        assert START_S + 5.5 * HOUR_S <= plan.created_s < START_S + 5.6 * HOUR_S

    def test_moves_are_capped(self) -> None:
        solver = QUICK.model_copy(update={"max_moves": 4})
        day = Workday(auto(hysteresis_periods=1, solver=solver))
        day.begin()
        day.run(1.1 * HOUR_S)
        assert 0 < len(day.plans[0].moves) <= 4

    def test_a_thin_model_is_looked_at_again_soon(self) -> None:
        day = Workday(auto(hysteresis_periods=1))
        day.begin()
        for broker in list(day.brokers.values())[:3]:
            day.manager.gone(broker.agent, day.now_s)
        day.rates *= 0.0
        day.run(HOUR_S + 120.0)
        assert set(outcomes(day)) == {"too_thin"}
        assert len(outcomes(day)) >= 2

    def test_little_traffic_is_not_worth_a_solver(self) -> None:
        day = Workday(auto(beta=1000.0), events_per_s=0.005)
        day.begin()
        day.run(2 * HOUR_S)
        assert set(outcomes(day)) == {"cost_below_threshold"}
        assert not any(isinstance(effect, Solve) for effect in day.effects)

    def test_a_solver_that_fails_is_told_of(self) -> None:
        day = Workday(auto())
        day.solver_fails = "out of memory"
        day.begin()
        day.run(1.1 * HOUR_S)
        last = day.status.last_check
        assert last is not None
        assert (last.outcome, last.explanation) == (CheckOutcome.UNSOLVED, "out of memory")

    def test_a_new_policy_starts_again(self) -> None:
        day = Workday(auto(hysteresis_periods=2))
        day.begin()
        day.run(1.1 * HOUR_S)
        assert day.status.streak == 1
        day.do(day.manager.set_policy(auto(hysteresis_periods=2), "root", "", day.now_s))
        assert day.status.streak == 0


class TestPolicy:
    def test_windows(self) -> None:
        night = MaintenanceWindow(days=("mon", "fri"), start="22:00", end="02:00")
        at = {
            (day, hour): night.contains(START_S + day * DAY_S + hour * HOUR_S)
            for day in range(7)
            for hour in (1, 12, 23)
        }
        assert {key for key, within in at.items() if within} == {(0, 23), (1, 1), (4, 23), (5, 1)}

    def test_one_from_a_time_to_the_same_is_a_day(self) -> None:
        window = MaintenanceWindow(days=("sun",), start="06:00", end="06:00")
        hours = [h for h in range(6, 7 * 24 + 9) if window.contains(START_S + h * HOUR_S)]
        assert hours == list(range(6 * 24 + 6, 7 * 24 + 6))

    def test_always_without_any(self) -> None:
        assert Policy().may_act(START_S)
        assert WEEK_DAYS[0] == "mon"

    @pytest.mark.parametrize(
        ("given", "complaint"),
        [
            ({"mode": "yes"}, "manual"),
            ({"t_free_s": 3.0}, "budget_s must be shorter"),
            ({"windows": [{"days": ["monday"]}]}, "unknown day 'monday'"),
            ({"windows": [{"start": "25:00"}]}, "pattern"),
            ({"solver": {"algorithm": "magic"}}, "one of ssbr-greedy"),
            ({"solver": {"algorithm": "lsap", "max_moves": 3}}, "cannot limit how many"),
            ({"solver": {"algorithm": "ssbr-greedy", "objective": "net"}}, "minds cost alone"),
            ({"unknown": 1}, "Extra inputs"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, given: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValidationError, match=complaint):
            Policy.model_validate(given)

    def test_solvers_mind_moving_where_they_can(self) -> None:
        assert SolverOptions().task().objective is Objective.NET
        assert SolverOptions(algorithm="ssbr-greedy").task().objective is Objective.COST
        assert SolverOptions(objective=Objective.COST).task().objective is Objective.COST
