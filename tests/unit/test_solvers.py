"""Solvers against brute force, against the published algorithm word for word, and their limits."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from overlay.placement.cost import CostedPlacement, CostModel, Prices
from reconfig_manager import solvers
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.placement.problem import (
    Objective,
    PlacementProblem,
    SolverRun,
    Task,
    UnsuitableProblemError,
)
from reconfig_manager.solvers import SOLVERS, Solver, blocks, lsap, refine
from reconfig_manager.solvers.reference import solve_literally
from reconfig_manager.solvers.search_kernels import lift, settling_costs
from reconfig_manager.solvers.ssbr_greedy import Grade, bottleneck_of, improvement_path
from tests.support.problems import Spec, all_places, plain_costs, random_spec

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(solvers.__file__).parent
CHEAP_MOVES = MovingCost(a=0.5, b=0.5, c=0.2)


def small_problem(
    seed: int, brokers_max: int = 7, *, rtt: bool = False, weights: bool = False
) -> PlacementProblem:
    rng = Random(seed)
    brokers, topics = rng.randint(1, brokers_max), rng.randint(1, 8)
    return random_spec(rng, brokers, topics, rtt=rtt, weights=weights).problem(CHEAP_MOVES)


def multimodal(brokers: int, topics: int, seed: int = 1) -> PlacementProblem:
    return make_instance(brokers, topics, Pattern.MULTIMODAL, seed).problem()


def least(problem: PlacementProblem, objective: Objective, max_moves: int | None = None) -> float:
    """The objective at its best, by looking at every placement."""
    run = SolverRun(problem, Task(objective=objective, max_moves=max_moves))
    for place in all_places(problem.brokers):
        run.offer(place, problem.model.evaluate(place).total)
    return run.value_of(run.place, run.total)


def value(problem: PlacementProblem, place: np.ndarray, objective: Objective) -> float:
    run = SolverRun(problem, Task(objective=objective))
    return run.value_of(place, problem.model.evaluate(place).total)


class TestSsbrGreedy:
    @pytest.mark.parametrize("seed", range(40))
    def test_is_the_published_algorithm_swap_for_swap(self, seed: int) -> None:
        rng = Random(seed)
        spec = random_spec(
            rng, rng.randint(1, 30), rng.randint(1, 15), rtt=seed % 4 == 1, weights=seed % 4 == 2
        )
        problem = spec.problem()
        quick = SOLVERS["ssbr-greedy"](problem, Task())
        literal = SOLVERS["reference"](problem, Task())
        assert quick.place.tolist() == literal.place.tolist()
        steps = [step.total for step in quick.progress]
        assert steps == pytest.approx([step.total for step in literal.progress])

    def test_also_where_it_takes_many_swaps(self) -> None:
        problem = multimodal(60, 60)
        quick = SOLVERS["ssbr-greedy"](problem, Task())
        literal = SOLVERS["reference"](problem, Task())
        assert quick.iterations > 10
        assert [p.total for p in quick.progress] == [p.total for p in literal.progress]
        assert quick.place.tolist() == literal.place.tolist()

    def test_moves_the_costliest_broker_to_its_best_place(self) -> None:
        problem = multimodal(20, 20)
        placement = CostedPlacement.of(problem.model, problem.place)
        costs = np.add(*placement.broker_costs())
        deltas = [
            placement.swap_delta(int(costs.argmax()), other)
            for other in range(20)
            if other != costs.argmax()
        ]
        before = placement.total
        first, _ = next(improvement_path(problem.model, placement))
        assert first == costs.argmax()
        assert placement.total == before + min(deltas)

    @pytest.mark.parametrize("seed", range(12))
    def test_in_the_other_reading_it_is_the_broker_with_the_highest_overhead(
        self, seed: int
    ) -> None:
        """DYNATOPS III-C picks by broker cost in one sentence, by overhead in another."""
        rng = Random(seed)
        spec = random_spec(
            rng, rng.randint(2, 20), rng.randint(2, 15), rtt=seed % 4 == 1, weights=seed % 4 == 2
        )
        problem = spec.problem()
        quick = SOLVERS["ssbr-greedy-overhead"](problem, Task())
        literal = solve_literally(problem, Task(), Grade.EXTERNAL_OVERHEAD)
        assert quick.place.tolist() == literal.place.tolist()
        steps = [step.total for step in quick.progress]
        assert steps == pytest.approx([step.total for step in literal.progress])

    def test_the_two_readings_begin_with_different_brokers(self) -> None:
        problem = multimodal(40, 40)
        placement = CostedPlacement.of(problem.model, problem.place)
        overhead, delay = placement.broker_costs()
        assert bottleneck_of(placement, Grade.BROKER_COST) == int((overhead + delay).argmax())
        assert bottleneck_of(placement, Grade.EXTERNAL_OVERHEAD) == int(overhead.argmax())
        assert int(overhead.argmax()) != int((overhead + delay).argmax())

    def test_can_be_cut_short(self) -> None:
        solution = SOLVERS["ssbr-greedy"](multimodal(60, 60), Task(iterations_max=3))
        assert solution.iterations == 3
        assert not solution.finished


class TestDynatopsGreedy:
    @pytest.mark.parametrize("seed", range(20))
    def test_takes_the_best_of_the_improvement_path(self, seed: int) -> None:
        rng = Random(seed)
        problem = random_spec(rng, 12, 8, rtt=False, weights=False).problem(CHEAP_MOVES)
        placement = CostedPlacement.of(problem.model, problem.place)
        values = [placement.total]
        for _ in improvement_path(problem.model, placement):
            place = placement.place
            values.append(placement.total + problem.moving_cost(place))
        solution = SOLVERS["dynatops-greedy"](problem, Task())
        assert value(problem, solution.place, Objective.NET) == min(values)

    def test_stays_where_moving_does_not_pay(self) -> None:
        problem = make_instance(20, 20, Pattern.MULTIMODAL, 1).problem(MovingCost(a=1e9))
        solution = SOLVERS["dynatops-greedy"](problem, Task())
        assert problem.moved(solution.place) == 0


class TestLsap:
    @pytest.mark.parametrize("seed", range(40))
    def test_is_the_least_delay(self, seed: int) -> None:
        problem = small_problem(seed)
        only_delay = _only_delay(problem)
        solution = SOLVERS["lsap"](only_delay, Task())
        least_delay = min(
            only_delay.model.evaluate(place).delay for place in all_places(problem.brokers)
        )
        assert solution.after.delay == pytest.approx(least_delay)

    @pytest.mark.parametrize("seed", range(30))
    @pytest.mark.parametrize("rtt", [False, True])
    def test_its_bound_is_one(self, seed: int, rtt: bool) -> None:
        problem = small_problem(seed, 6, rtt=rtt, weights=True)
        bound = SOLVERS["lsap"](problem, Task()).bound
        assert bound is not None
        assert bound <= least(problem, Objective.COST) + 1e-9

    def test_refuses_what_would_take_minutes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lsap, "BROKERS_MAX", 8)
        with pytest.raises(UnsuitableProblemError, match="9 brokers \\(at most 8\\)"):
            SOLVERS["lsap"](multimodal(9, 10), Task())


def _only_delay(problem: PlacementProblem) -> PlacementProblem:
    """The same where relays cost next to nothing."""
    tables = problem.model.tables
    model = CostModel.__new__(CostModel)
    model.geometry, model.prices = problem.model.geometry, Prices(delay_weight=1.0)
    model.tables = tables._replace(
        delay_price=tables.relay_price,
        relay_price=0 * tables.relay_price,
        delay_at=np.empty((0, 0)),
    )
    return PlacementProblem(model, problem.place, problem.topics)


class TestExact:
    @pytest.mark.parametrize("seed", range(25))
    @pytest.mark.parametrize("objective", Objective)
    def test_equals_brute_force(self, seed: int, objective: Objective) -> None:
        problem = small_problem(seed, 6)
        solution = SOLVERS["exact"](problem, Task(objective=objective))
        assert solution.finished
        assert value(problem, solution.place, objective) == pytest.approx(least(problem, objective))
        if objective is Objective.COST:
            assert solution.bound == solution.after.total

    @pytest.mark.parametrize("seed", range(10))
    def test_with_few_moves(self, seed: int) -> None:
        problem = small_problem(seed, 6)
        solution = SOLVERS["exact"](problem, Task(max_moves=2))
        assert problem.moved(solution.place) <= 2
        assert solution.after.total == pytest.approx(least(problem, Objective.COST, 2))

    def test_refuses_what_is_too_large(self) -> None:
        with pytest.raises(UnsuitableProblemError, match="11 brokers \\(at most 10\\)"):
            SOLVERS["exact"](multimodal(11, 10), Task())

    def test_refuses_matrices(self) -> None:
        with pytest.raises(UnsuitableProblemError, match="no matrices"):
            SOLVERS["exact"](small_problem(1, rtt=True), Task())


class TestRefine:
    @pytest.mark.parametrize("objective", Objective)
    @pytest.mark.parametrize(("rtt", "weights"), [(False, False), (True, False), (True, True)])
    def test_small_problems_are_solved(
        self, objective: Objective, rtt: bool, weights: bool
    ) -> None:
        for seed in range(25):
            problem = small_problem(seed, 7, rtt=rtt, weights=weights)
            solution = SOLVERS["refine"](problem, Task(objective=objective))
            assert solution.finished
            best = least(problem, objective)
            assert value(problem, solution.place, objective) == pytest.approx(best)

    def test_finds_the_optimum_of_100_instances(self) -> None:
        found = 0
        for seed in range(100):
            rng = Random(seed)
            brokers = rng.randint(2, 8)
            problem = random_spec(rng, brokers, 12, rtt=False, weights=False).problem()
            solution = SOLVERS["refine"](problem, Task())
            found += solution.after.total == _least_by_enumeration(problem)
        assert found >= 99

    @pytest.mark.parametrize("rtt", [False, True])
    def test_finds_it_by_searching_too(self, rtt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """What serves larger problems, on some whose optimum is known."""
        optima = [
            (problem, SOLVERS["refine"](problem, Task()).after.total)
            for problem in (
                random_spec(Random(seed), 8, 12, rtt=rtt, weights=False).problem()
                for seed in range(12)
            )
        ]
        monkeypatch.setattr(refine, "ENUMERATED_BROKERS_MAX", 0)
        found = sum(
            SOLVERS["refine"](problem, Task(iterations_max=60)).after.total
            == pytest.approx(optimum)
            for problem, optimum in optima
        )
        assert found == 12

    def test_the_same_seed_is_the_same_run(self) -> None:
        problem = multimodal(40, 40)
        first, again = (
            SOLVERS["refine"](problem, Task(iterations_max=100, seed=3)) for _ in range(2)
        )
        assert first.place.tolist() == again.place.tolist()
        assert [p.total for p in first.progress] == [p.total for p in again.progress]

    def test_a_run_cut_off_by_time_is_repeated_by_its_iterations(self) -> None:
        problem = multimodal(60, 60)
        timed = SOLVERS["refine"](problem, Task(time_limit_s=0.3, seed=5))
        counted = SOLVERS["refine"](problem, Task(iterations_max=timed.iterations, seed=5))
        assert timed.place.tolist() == counted.place.tolist()

    def test_more_is_never_worse(self) -> None:
        problem = multimodal(60, 60)
        totals = [
            SOLVERS["refine"](problem, Task(iterations_max=n)).after.total
            for n in (1, 10, 40, 80, 160)
        ]
        assert totals == sorted(totals, reverse=True)
        assert totals[-1] < totals[0]

    @pytest.mark.parametrize("brokers", [6, 40])
    @pytest.mark.parametrize("max_moves", [1, 2, 5])
    def test_moves_no_more_than_allowed(self, brokers: int, max_moves: int) -> None:
        problem = multimodal(brokers, 40)
        solution = SOLVERS["refine"](problem, Task(max_moves=max_moves, iterations_max=60))
        moved = problem.moved(solution.place)
        assert moved <= max_moves
        # One broker alone has nowhere to go.
        assert (moved > 0) == (max_moves > 1)

    def test_minds_what_moving_costs(self) -> None:
        problem = make_instance(40, 40, Pattern.MULTIMODAL, 1).problem(MovingCost(4, 1, 1))
        free = SOLVERS["refine"](problem, Task(iterations_max=100))
        net = SOLVERS["refine"](problem, Task(iterations_max=100, objective=Objective.NET))
        assert problem.moved(net.place) < problem.moved(free.place)
        assert value(problem, net.place, Objective.NET) < value(problem, free.place, Objective.NET)

    def test_ends_by_itself(self) -> None:
        solution = SOLVERS["refine"](multimodal(9, 10), Task())
        assert solution.finished

    def test_is_better_than_all_others(self) -> None:
        problem = multimodal(100, 100)
        totals = {
            name: SOLVERS[name](problem, Task(iterations_max=60)).after.total
            for name in ("ssbr-greedy", "dynatops-greedy", "lsap", "refine")
        }
        assert min(totals, key=totals.__getitem__) == "refine"


def _least_by_enumeration(problem: PlacementProblem) -> float:
    """Every placement evaluated from nothing, in C rather than Python."""
    tables, model = problem.model.tables, problem.model
    assert len(tables.row)
    return min(
        model.evaluate(np.array(nodes, dtype=np.int32)).total
        for nodes in itertools.permutations(range(problem.brokers))
    )


@pytest.mark.parametrize("name", SOLVERS)
class TestAll:
    def test_never_worse_than_staying(self, name: str) -> None:
        """INV-12"""
        for seed in range(10):
            problem = small_problem(seed)
            solution = SOLVERS[name](problem, Task(time_limit_s=5.0))
            assert sorted(solution.place.tolist()) == list(range(problem.brokers))
            assert solution.after.total <= problem.model.evaluate(problem.place).total
            if solution.bound is not None:
                assert solution.bound <= solution.after.total + 1e-9

    @pytest.mark.parametrize("brokers", [1, 2, 3])
    def test_tiny_rings(self, name: str, brokers: int) -> None:
        problem = multimodal(brokers, 3)
        solution = SOLVERS[name](problem, Task())
        assert len(solution.place) == brokers

    def test_nothing_to_do(self, name: str) -> None:
        spec = Spec(list(range(9)), [[]] * 9, [1.0, 0.0], [3, 4], Prices(), list(range(9)))
        solution = SOLVERS[name](spec.problem(), Task())
        assert solution.after.total == 0.0
        assert solution.finished
        assert solution.place.tolist() == list(range(9))

    def test_progress_goes_down(self, name: str) -> None:
        solution = SOLVERS[name](multimodal(9, 10), Task(time_limit_s=2.0))
        seconds = [step.seconds for step in solution.progress]
        assert seconds == sorted(seconds)
        assert solution.progress[-1].total == solution.after.total


class TestRegistry:
    """What an entry says of a solver is what the solver does."""

    @pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
    def test_limits_of_moves_are_kept_or_refused(self, solver: Solver) -> None:
        problem, task = multimodal(9, 10), Task(max_moves=2, time_limit_s=2.0)
        if solver.limits_moves:
            assert problem.moved(solver(problem, task).place) <= 2
            return
        with pytest.raises(UnsuitableProblemError, match="refine can"):
            solver(problem, task)

    @pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
    def test_the_cost_of_moving_is_minded_or_refused(self, solver: Solver) -> None:
        problem, task = multimodal(9, 10), Task(objective=Objective.NET, time_limit_s=2.0)
        if solver.minds_moving:
            assert solver(problem, task).algorithm == solver.name
            return
        with pytest.raises(UnsuitableProblemError, match="minds cost alone"):
            solver(problem, task)

    def test_each_module_is_registered(self) -> None:
        modules = {path.stem for path in FOLDER.glob("*.py") if "\ndef solve(" in path.read_text()}
        assert modules == {solver.module for solver in SOLVERS.values()}

    def test_each_is_in_the_documentation(self) -> None:
        page = (ROOT / "docs" / "algorithms.md").read_text()
        table = page.partition("## Solvers")[2].partition("\nn is ")[0]
        assert re.findall(r"^\| `([a-z][a-z-]*)` \|", table, re.MULTILINE) == list(SOLVERS)

    def test_the_registry_alone_is_light(self) -> None:
        """Commands offer solvers where the packages that these need are not installed."""
        code = (
            "import sys, reconfig_manager.solvers; "
            "sys.exit(bool({'numpy', 'numba', 'scipy'} & set(sys.modules)))"
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_clock_ends_a_run() -> None:
    problem = multimodal(60, 60)
    times = itertools.count(0.0, 1.0)
    run = SolverRun(problem, Task(time_limit_s=5.0), clock=lambda: next(times))
    while not run.over:
        assert run.iterations < 10
        run.iterations += 1
    assert math.isclose(run.task.time_limit_s, 5.0)


def test_the_plain_definition_agrees_with_the_figure() -> None:
    """DYNATOPS Fig. 2: eight nodes; before, three relays for a topic at node 1; after, none."""
    eight = [node << 61 for node in range(8)]
    key = 1 << 61
    # One subscriber, seven places clockwise of the rendezvous point: three hops, two relays.
    spec = Spec(eight, [[0]] + [[]] * 7, [1.0], [key], Prices(), list(range(8)))
    place = np.arange(8, dtype=np.int32)
    cost = spec.problem().model.evaluate(place)
    assert (cost.overhead, cost.delay) == (2.0, 3.0)
    assert plain_costs(spec, place.tolist())[0] == cost
    assert SOLVERS["refine"](spec.problem(), Task()).after.total == 0.0


class TestBlocks:
    """What serves rings too large to assign at once, on small ones."""

    def test_what_a_lifted_broker_costs_anywhere(self) -> None:
        """Settling on one node rather than another costs what evaluating both says."""
        # A broker without interests trades places with any other, and costs nothing itself.
        spec = random_spec(Random(3), 12, 8, rtt=False, weights=False)
        spec.subscriptions[0] = []
        problem = spec.problem()
        tables, state = problem.model.tables, CostedPlacement.of(problem.model, problem.place).state
        broker = np.array([5], dtype=np.int32)
        everywhere = np.arange(12, dtype=np.int32)
        lift(tables, state, broker)
        costs = settling_costs(tables, state, broker, everywhere)[0]
        here, there = problem.place[5], problem.place[0]
        swapped = problem.place.copy()
        swapped[[0, 5]] = swapped[[5, 0]]
        gained = problem.model.evaluate(swapped).total - problem.model.evaluate(problem.place).total
        assert costs[there] - costs[here] == gained

    @pytest.mark.parametrize("objective", Objective)
    def test_makes_a_placement_better(
        self, objective: Objective, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem = make_instance(60, 60, Pattern.MULTIMODAL, 1).problem(MovingCost(4, 1, 0.5))
        monkeypatch.setattr(blocks, "BROKERS", 10)
        run = SolverRun(problem, Task(objective=objective))
        before = run.value_of(run.place, run.total)
        placement = CostedPlacement.of(problem.model, problem.place)
        blocks.improve_blocks(run, placement, Random(1))
        assert run.value_of(run.place, run.total) < before
        assert run.iterations == blocks.LIFTS * 6
        fresh = CostedPlacement.of(problem.model, placement.place)
        assert placement.total == fresh.total
        assert (placement.state.counts == fresh.state.counts).all()
        assert run.total == problem.model.evaluate(run.place).total

    def test_refine_uses_them_on_large_rings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = multimodal(60, 60)
        monkeypatch.setattr(refine, "ASSIGNED_BROKERS_MAX", 50)
        solution = SOLVERS["refine"](problem, Task(iterations_max=30))
        assert solution.bound is None
        assert solution.after.total < 0.9 * problem.model.evaluate(problem.place).total
