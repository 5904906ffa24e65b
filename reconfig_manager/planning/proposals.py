"""Plans before they are executed: proposed, computed, decided on, approved, cancelled, expired.

propose --> recorded --> solve --> decide --> PROPOSED with its prediction, or REJECTED
                                                 | approve (or `execute` asked for)
                                                 v
                                              APPROVED --> recorded --> plan_executor.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reconfig_manager.leader.leader_state import LeaderState, audit
from reconfig_manager.model.network import Model
from reconfig_manager.model.plan import TRANSITIONS, Origin, Plan, PlanState
from reconfig_manager.model.policy import Mode, Policy, SolverOptions
from reconfig_manager.model.refusals import Busy, IllegalTransition, Refused, StalePlan
from reconfig_manager.placement.problem import PlacementProblem, Solution
from reconfig_manager.planning.process import Found, predict
from reconfig_manager.ports import ManagerEffect, ProposalRequest, Solve

PROCESS_ACTOR = "process"


@dataclass(slots=True)
class Proposals:
    leader: LeaderState
    # Plans that solvers are at work on, or are to be once the plan is recorded.
    _computing: dict[str, tuple[Model, PlacementProblem, Policy]] = field(default_factory=dict)

    def propose(self, request: ProposalRequest, now_s: float) -> list[ManagerEffect]:
        leader = self.leader
        self.check_room(execute=request.execute)
        rules = leader.rules
        if request.options is not None:
            rules = rules.model_copy(update={"solver": request.options})
        model = leader.model(rules, now_s)
        problem = self.problem(model, rules)
        plan = self._new(model, rules.solver, now_s).model_copy(
            update={
                "actor": request.actor,
                "reason": request.reason,
                "execute": request.execute,
                "note": "being computed",
            }
        )
        self._computing[plan.id] = (model, problem, rules)
        return leader.write(plan)

    def check_room(self, *, execute: bool) -> None:
        """Raises Refused if there cannot be another proposal."""
        if execute:
            self._check_mode()
        most = self.leader.settings.proposals_max
        if len(self.leader.open_proposals()) >= most:
            raise Refused(f"{most} proposals are open: approve or cancel some")

    def problem(self, model: Model, rules: Policy) -> PlacementProblem:
        moving = self.leader.constants.moving()
        return model.problem(rules.t_free_s, rules.solver.delay_weight, moving)

    def _new(self, model: Model, options: SolverOptions, now_s: float) -> Plan:
        leader = self.leader
        return Plan(
            id=leader.new_plan_id(),
            mode=leader.rules.mode,
            created_s=now_s,
            changed_s=now_s,
            expires_s=now_s + leader.settings.proposal_ttl_s,
            options=options,
            base=model.base,
            model=model.facts,
        )

    def recorded(self, plan: Plan) -> list[ManagerEffect]:
        """A new plan is in the store: now it may cost something."""
        computing = self._computing.get(plan.id)
        if computing is None or plan.state is not PlanState.PROPOSED:
            return []
        options = plan.options
        return [Solve(plan.id, computing[1], options.task(), options.algorithm)]

    def solved(self, plan_id: str, solution: Solution | str, now_s: float) -> list[ManagerEffect]:
        computing = self._computing.pop(plan_id, None)
        plan = self.leader.plans.get(plan_id)
        if computing is None or plan is None or plan.state is not PlanState.PROPOSED:
            return []
        model, problem, rules = computing
        if isinstance(solution, str):
            note = f"the solver failed: {solution}"
            return self.leader.write(plan.became(PlanState.REJECTED, now_s, note))
        prediction = predict(model, problem, solution.place, rules, solution)
        moves = model.moves(problem, solution.place)
        if not prediction.accept:
            return self.leader.write(
                plan.became(
                    PlanState.REJECTED,
                    now_s,
                    prediction.explanation,
                    prediction=prediction,
                    moves=moves,
                )
            )
        note = f"{prediction.explanation}; to be approved"
        plan = plan.changed(now_s, prediction=prediction, moves=moves, note=note)
        return self.found_worth_it(plan, now_s)

    def found_worth_it(self, plan: Plan, now_s: float) -> list[ManagerEffect]:
        """It waits for approval, unless it was to be executed at once, and can be."""
        if not plan.execute:
            return self.leader.write(plan)
        obstacle = self._obstacle(plan)
        if obstacle is not None:
            note = f"not executed: {obstacle}"
            return self.leader.write(plan.model_copy(update={"note": note}))
        return self._approved(plan, plan.actor, now_s)

    # ---- of the process --------------------------------------------------------------------------

    def found(self, found: Found, now_s: float) -> list[ManagerEffect]:
        """The process found a placement: propose it, and under `auto` approve it."""
        leader = self.leader
        effects: list[ManagerEffect] = []
        for other in leader.open_proposals():
            if other.origin is Origin.PROCESS:
                effects += self._expire(other, "the process has found another", now_s)
        auto = leader.rules.mode is Mode.AUTO
        prediction = found.prediction
        plan = self._new(found.model, leader.rules.solver, now_s).model_copy(
            update={
                "origin": Origin.PROCESS,
                "actor": PROCESS_ACTOR,
                "reason": "Algorithm 3",
                "execute": auto,
                "prediction": prediction,
                "moves": found.moves,
                "note": f"{prediction.explanation}; to be approved",
            }
        )
        obstacle = self._obstacle(plan) if auto else None
        if obstacle is not None:
            plan = plan.model_copy(update={"note": f"not executed: {obstacle}"})
        effects.append(audit(now_s, PROCESS_ACTOR, "propose", plan.id, plan.reason, "accepted"))
        if auto and obstacle is None:
            return [*effects, *self._approved(plan, PROCESS_ACTOR, now_s)]
        return [*effects, *leader.write(plan)]

    # ---- decisions -------------------------------------------------------------------------------

    def approve(self, plan_id: str, actor: str, now_s: float) -> list[ManagerEffect]:
        plan = self.leader.plan(plan_id)
        if plan.state is not PlanState.PROPOSED:
            allowed = TRANSITIONS[plan.state]
            raise IllegalTransition(plan.id, plan.state, PlanState.APPROVED, allowed)
        if plan.is_computing:
            raise Refused(f"plan {plan.id} is still being computed")
        self._check_mode()
        obstacle = self._obstacle(plan)
        if obstacle is not None:
            raise obstacle
        return self._approved(plan, actor, now_s)

    def _approved(self, plan: Plan, actor: str, now_s: float) -> list[ManagerEffect]:
        note = f"approved by {actor}"
        return self.leader.write(plan.became(PlanState.APPROVED, now_s, note, approved_by=actor))

    def _check_mode(self) -> None:
        if self.leader.rules.mode is Mode.OFF:
            raise Refused("the policy is `off`: nothing is executed")

    def _obstacle(self, plan: Plan) -> Busy | StalePlan | Refused | None:
        """Why the plan cannot be executed as things are."""
        leader = self.leader
        for other in leader.plans.values():
            if other.state in (PlanState.APPROVED, PlanState.EXECUTING) and other.id != plan.id:
                return Busy(other.id)
        why = leader.plan_is_stale(plan)
        if why:
            return StalePlan(plan.id, why)
        why = leader.members.unready() if plan.stores is None else ""
        return Refused(f"brokers cannot be moved now: {why}") if why else None

    def cancel(self, plan: Plan, actor: str, reason: str, now_s: float) -> list[ManagerEffect]:
        """Raises IllegalTransition; of one that is being executed, see plan_executor.py."""
        self._computing.pop(plan.id, None)
        note = f"cancelled by {actor}" + (f": {reason}" if reason else "")
        return self.leader.write(plan.became(PlanState.CANCELLED, now_s, note))

    # ---- time ------------------------------------------------------------------------------------

    def left_behind(self, now_s: float) -> list[ManagerEffect]:
        """Under a new leader: what the one before did not bring to an end."""
        effects: list[ManagerEffect] = []
        for plan in list(self.leader.plans.values()):
            unsolved = plan.is_computing
            if unsolved or plan.state is PlanState.APPROVED:
                when = "while it was computed" if unsolved else "before it began"
                effects += self._expire(plan, f"its leader was lost {when}; propose again", now_s)
        return effects

    def tick(self, now_s: float) -> list[ManagerEffect]:
        effects: list[ManagerEffect] = []
        for plan in self.leader.open_proposals():
            if now_s >= plan.expires_s:
                effects += self._expire(plan, "nobody approved it in time", now_s)
        return effects

    def _expire(self, plan: Plan, why: str, now_s: float) -> list[ManagerEffect]:
        self._computing.pop(plan.id, None)
        return self.leader.write(plan.became(PlanState.EXPIRED, now_s, why))
