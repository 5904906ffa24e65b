"""Algorithm 3: when to look for a better placement, and whether one is worth moving to.

    every T_free:  model --> reconfigurability test --> solve --> benefit > moving cost?
                     |               | no                              | no        | yes
                     +- too thin     +-----------> nothing <-----------+           candidate

In `manual`, a candidate is proposed. In `auto` it must stand the test in several periods in a row,
each time by the rates of that period: solvers choose what the rates at hand favour, noise included,
and noise is another the next time. Then, within a maintenance window, it is executed.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.placement.cost_kernels import Ints
from reconfig_manager.model.network import Model, cost_figures
from reconfig_manager.model.notices import CheckOutcome, ProcessChecked
from reconfig_manager.model.plan import Base, Move, Prediction
from reconfig_manager.model.policy import Mode, Policy
from reconfig_manager.placement.decision import decide, is_reconfigurable
from reconfig_manager.placement.problem import PlacementProblem, Solution

# How soon it is looked again at a model that was too thin, and for a window to open.
SOON_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """A placement that is worth it."""

    model: Model
    prediction: Prediction
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    base: Base
    moves: tuple[Move, ...]
    solution: Solution


def predict(
    model: Model,
    problem: PlacementProblem,
    place: Ints,
    policy: Policy,
    solution: Solution,
) -> Prediction:
    """What going to this placement would gain and cost, by the model at hand."""
    before, after = problem.model.evaluate(problem.place), problem.model.evaluate(place)
    decision = decide(
        before.total,
        after.total,
        problem.moved(place),
        moving=problem.moving,
        brokers=problem.brokers,
        topics=problem.topics,
        beta=policy.beta,
    )
    moving = problem.moving
    return Prediction(
        algorithm=solution.algorithm,
        cost_before=cost_figures(before),
        cost_after=cost_figures(after),
        benefit=decision.benefit,
        moving_cost=decision.moving_cost,
        threshold=decision.threshold,
        t_free_s=policy.t_free_s,
        accept=decision.accept,
        reason=decision.reason,
        explanation=str(decision),
        seconds=solution.seconds,
        iterations=solution.iterations,
        bound=solution.bound,
        finished=solution.finished,
        events=model.events_per_s * policy.t_free_s,
        constants=(moving.a, moving.b, moving.c),
    )


def is_worth_it(prediction: Prediction, policy: Policy) -> bool:
    """For the process: by the decision, and by more than a second look finds."""
    gain = policy.gain_min * prediction.cost_before.total
    return prediction.accept and prediction.benefit >= gain


class Process:
    """Runs by itself under `manual` and `auto`; the driver of it solves."""

    def __init__(self, now_s: float, policy: Policy, reconfigured_s: float | None) -> None:
        self._next_s = now_s + policy.t_free_s
        if reconfigured_s is not None:
            self._next_s = max(now_s + SOON_S, reconfigured_s + policy.t_free_s)
        self._next_s = min(self._next_s, now_s + policy.t_free_s)
        self._candidate: _Candidate | None = None
        self._streak = 0
        # A solver is at work on this.
        self._asked: tuple[Model, PlacementProblem] | None = None
        self.last: ProcessChecked | None = None

    def due(self, now_s: float, policy: Policy) -> bool:
        return policy.mode is not Mode.OFF and self._asked is None and now_s >= self._next_s

    @property
    def next_s(self) -> float:
        return self._next_s

    @property
    def streak(self) -> int:
        return self._streak

    def start_again(self, now_s: float, policy: Policy) -> None:
        """Brokers were moved, or the policy is another: what was found does not count."""
        self._candidate, self._streak, self._asked = None, 0, None
        self._next_s = now_s + policy.t_free_s

    def too_thin(self, why: str, now_s: float) -> ProcessChecked:
        """The period does not count: neither for a candidate nor against it."""
        self._next_s = now_s + SOON_S
        return self._note_outcome(now_s, CheckOutcome.TOO_THIN, why)

    def check(
        self, model: Model, problem: PlacementProblem, policy: Policy, now_s: float
    ) -> Found | None:
        """By a new model. The process may want this very problem solved then: see `wants`."""
        self._next_s = now_s + policy.t_free_s
        candidate = self._candidate
        if candidate is not None and candidate.base == model.base:
            place = model.place_after(problem, candidate.moves)
            prediction = predict(model, problem, place, policy, candidate.solution)
            if is_worth_it(prediction, policy):
                return self._good(Found(model, prediction, candidate.moves), policy, now_s)
        self._candidate, self._streak = None, 0
        before = problem.model.evaluate(problem.place).total
        if not is_reconfigurable(
            before, problem.moving, problem.brokers, problem.topics, policy.beta
        ):
            why = f"the present cost of {before:,.0f} messages in T_free is too low to look further"
            self._note_outcome(now_s, CheckOutcome.COST_BELOW_THRESHOLD, why)
            return None
        self._asked = (model, problem)
        self._note_outcome(now_s, CheckOutcome.SOLVING, "a better placement is being looked for")
        return None

    @property
    def wants(self) -> PlacementProblem | None:
        return self._asked[1] if self._asked else None

    def solved(self, solution: Solution | str, policy: Policy, now_s: float) -> Found | None:
        if self._asked is None:
            return None
        (model, problem), self._asked = self._asked, None
        if isinstance(solution, str):
            self._note_outcome(now_s, CheckOutcome.UNSOLVED, solution)
            return None
        prediction = predict(model, problem, solution.place, policy, solution)
        if not is_worth_it(prediction, policy):
            why = prediction.explanation
            if prediction.accept:
                share = prediction.benefit / prediction.cost_before.total
                why = f"{why}, but that is only {share:.1%} of the present cost"
            self._note_outcome(now_s, CheckOutcome.NOT_WORTH_IT, why)
            return None
        moves = model.moves(problem, solution.place)
        self._candidate = _Candidate(model.base, moves, solution)
        return self._good(Found(model, prediction, moves), policy, now_s)

    def _good(self, found: Found, policy: Policy, now_s: float) -> Found | None:
        why = found.prediction.explanation
        if policy.mode is Mode.AUTO:
            # Once it is good for long enough it only waits for a window to open.
            self._streak = min(self._streak + 1, policy.hysteresis_periods)
            if self._streak < policy.hysteresis_periods:
                self._note_outcome(now_s, CheckOutcome.WAITING, why)
                return None
            if not policy.may_act(now_s):
                self._next_s = now_s + min(SOON_S, policy.t_free_s)
                self._note_outcome(now_s, CheckOutcome.OUTSIDE_WINDOWS, why)
                return None
        self._note_outcome(now_s, CheckOutcome.FOUND, why)
        self._candidate, self._streak = None, 0
        return found

    def _note_outcome(self, now_s: float, outcome: CheckOutcome, why: str) -> ProcessChecked:
        self.last = ProcessChecked(now_s, outcome, why, self._streak)
        return self.last
