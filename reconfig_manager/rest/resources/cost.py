"""What the present placement costs, as the leader knows it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from pydantic import Field

from reconfig_manager.model.network import Model, cost_figures
from reconfig_manager.model.plan import CostFigures, ModelFacts
from reconfig_manager.model.policy import Policy
from reconfig_manager.model.refusals import Refused
from reconfig_manager.placement.decision import MovingCost, is_reconfigurable
from reconfig_manager.ports import Constants
from reconfig_manager.rest.facade import Facade
from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import Leading, Manager, Viewing
from reconfig_manager.rest.views import RestView
from reconfig_manager.status import LeaderStatus

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


class ConstantsView(RestView):
    """Of the moving cost, eq. 11: a|V| + b log2(V)^2 moved + c|P| log2(V) moved."""

    a: float
    b: float
    c: float
    plans: int = Field(description="Executed plans that they were calibrated by.")


class CostView(RestView):
    t_free_s: float
    delay_weight: float
    cost: CostFigures
    relays_per_event: float
    threshold: float = Field(description="What the cost must exceed for planning to begin.")
    reconfigurable: bool
    moving_cost_max: float = Field(description="Bound on the messages if every broker moved.")
    constants: ConstantsView
    model: ModelFacts


@router.get("/cost", responses={**problems(409), **redirect()})
async def get_cost(manager: Manager) -> CostView:
    """What the present placement costs in T_free, and whether that is worth planning."""
    return await manager.computed_lately(_cost_of)


def _cost_of(manager: Facade) -> Callable[[], CostView]:
    leader = manager.leader()
    if _is_twice_hosted(leader):
        raise Refused("two brokers say that they host the same node; it is being mended")
    return cost_work(leader, manager.model())


def _is_twice_hosted(leader: LeaderStatus) -> bool:
    """Then a cost makes no sense."""
    return len({broker.node_id for broker in leader.brokers}) < len(leader.brokers)


def cost_work(leader: LeaderStatus, model: Model) -> Callable[[], CostView]:
    """What works the cost out: seconds, on large networks."""
    rules, constants = leader.rules, leader.constants
    return lambda: _cost_view(model, rules, constants)


def _cost_view(model: Model, rules: Policy, constants: Constants) -> CostView:
    moving: MovingCost = constants.moving()
    problem = model.problem(rules.t_free_s, rules.solver.delay_weight, moving)
    cost = problem.model.evaluate(problem.place)
    events = model.events_per_s * rules.t_free_s
    most = moving.most(problem.brokers, problem.topics)
    return CostView(
        t_free_s=rules.t_free_s,
        delay_weight=rules.solver.delay_weight,
        cost=cost_figures(cost),
        relays_per_event=cost.overhead / events if events else 0.0,
        threshold=rules.beta * most,
        reconfigurable=is_reconfigurable(
            cost.total, moving, problem.brokers, problem.topics, rules.beta
        ),
        moving_cost_max=most,
        constants=ConstantsView(**constants.model_dump()),
        model=model.facts,
    )
