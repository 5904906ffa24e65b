"""Plans by hand: brokers that take each other's places, whatever that is good for."""

from __future__ import annotations

from overlay.base.identifiers import show_node
from reconfig_manager.leader.leader_state import LeaderState
from reconfig_manager.model.plan import CostFigures, ModelFacts, Move, Plan, Prediction
from reconfig_manager.model.policy import SolverOptions


def rotation(
    state: LeaderState,
    nodes: dict[str, int],
    brokers: int,
    now_s: float,
    *,
    topics: int = 5,
    moving_cost: float = 1e3,
) -> Plan:
    """Each of these brokers takes the node of the next one, whatever that is good for."""
    hosted = [show_node(node_id) for node_id in nodes.values()]
    figures = CostFigures(overhead=1e6, delay=0.0, total=1e6)
    return Plan(
        id=state.new_plan_id(),
        created_s=now_s,
        changed_s=now_s,
        expires_s=now_s + 3600,
        options=SolverOptions(),
        base=state.base(),
        model=ModelFacts(
            completeness=1.0,
            brokers=brokers,
            topics=topics,
            topics_published=topics,
            subscriptions=topics,
            events_per_s=1.0,
            periods=9,
        ),
        prediction=Prediction(
            algorithm="refine",
            cost_before=figures,
            cost_after=figures.model_copy(update={"total": 1.0}),
            benefit=1e6,
            moving_cost=moving_cost,
            threshold=0.0,
            t_free_s=3600.0,
            accept=True,
            reason="benefit_above_cost",
            explanation="accept",
        ),
        moves=tuple(
            Move(broker_id=name, from_node=node, to_node=next_node)
            for name, node, next_node in zip(nodes, hosted, hosted[1:] + hosted[:1], strict=True)
        ),
    )
