"""Plans of stores before they are executed: as those of placements (`proposals.py`), where they are
approved, cancelled, and expire.

propose --> recorded --> PlaceTopics --> decide --> PROPOSED with its prediction, or REJECTED
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reconfig_manager.leader.leader_state import LeaderState
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.store_plan import StorePart
from reconfig_manager.planning.proposals import Proposals
from reconfig_manager.planning.store_model import StoreModel, model_facts, store_model
from reconfig_manager.ports import ManagerEffect, PlaceTopics, StoreProposalRequest
from reconfig_manager.storing.problem import StoringSolution


@dataclass(slots=True)
class StoreProposals:
    leader: LeaderState
    proposals: Proposals
    # Plans that a planner is at work on, or is to be once the plan is recorded.
    _computing: dict[str, StoreModel] = field(default_factory=dict)

    def propose(self, request: StoreProposalRequest, now_s: float) -> list[ManagerEffect]:
        """Raises ModelTooThin, and what any proposal is refused for."""
        leader = self.leader
        self.proposals.check_room(execute=request.execute)
        model = store_model(leader, request.options, now_s)
        plan = Plan(
            id=leader.new_plan_id(),
            mode=leader.rules.mode,
            created_s=now_s,
            changed_s=now_s,
            expires_s=now_s + leader.settings.proposal_ttl_s,
            actor=request.actor,
            reason=request.reason,
            execute=request.execute,
            note="being computed",
            options=leader.rules.solver,
            base=leader.base(),
            model=model_facts(leader, model.facts, now_s),
            stores=StorePart(
                options=request.options,
                base_epoch=leader.stores.epoch_max,
                facts=model.facts,
            ),
        )
        self._computing[plan.id] = model
        return leader.write(plan)

    def recorded(self, plan: Plan) -> list[ManagerEffect]:
        """A new plan is in the store: now it may cost something."""
        model = self._computing.get(plan.id)
        if model is None or plan.stores is None or not plan.is_computing:
            return []
        options = plan.stores.options
        return [PlaceTopics(plan.id, model.problem, model.task(options), options.planner)]

    def placed(
        self, plan_id: str, solution: StoringSolution | str, now_s: float
    ) -> list[ManagerEffect]:
        """The solution, or what went wrong as a sentence."""
        model = self._computing.pop(plan_id, None)
        plan = self.leader.plans.get(plan_id)
        if model is None or plan is None or plan.stores is None or not plan.is_computing:
            return []
        if isinstance(solution, str):
            note = f"the planner failed: {solution}"
            return self.leader.write(plan.became(PlanState.REJECTED, now_s, note))
        prediction, changes = model.predict(solution), model.changes(solution)
        part = plan.stores.model_copy(update={"prediction": prediction, "changes": changes})
        note = prediction.explanation
        if not prediction.accept:
            return self.leader.write(plan.became(PlanState.REJECTED, now_s, note, stores=part))
        plan = plan.changed(now_s, stores=part, note=f"{note}; to be approved")
        return self.proposals.found_worth_it(plan, now_s)

    def forget_ended(self) -> None:
        """Problems of plans that were cancelled, or expired, while they waited."""
        for plan_id in list(self._computing):
            plan = self.leader.plans.get(plan_id)
            if plan is None or plan.state.over:
                del self._computing[plan_id]
