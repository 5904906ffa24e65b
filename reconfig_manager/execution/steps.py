"""The commands of the protocol: the phase and the brokers that each is for, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_NOT_HOST,
    STEP_PROBLEM_STALE,
    Step,
    StepKind,
    StepProblem,
)
from reconfig_manager.model.plan import Execution, Participant, Phase, PlacedNode, Placement, Plan
from reconfig_manager.monitor.members import Members

STEP_OF: Mapping[Phase, StepKind.ValueType] = MappingProxyType(
    {
        Phase.FREEZING: RCFG_INIT,
        Phase.MOVING: RCFG_DHT_UPDATE,
        Phase.RESTORING: RCFG_TREE_RESTORE,
        Phase.REPAIRING: RCFG_TREE_REPAIR,
        Phase.FINISHING: RCFG_FINISH,
        Phase.ROLLING_BACK: RCFG_ROLL_BACK,
    }
)
NEXT: Mapping[Phase, Phase] = MappingProxyType(
    {
        Phase.FREEZING: Phase.MOVING,
        Phase.MOVING: Phase.RESTORING,
        Phase.RESTORING: Phase.REPAIRING,
        Phase.REPAIRING: Phase.FINISHING,
    }
)
# Only brokers that move are needed.
OF_MOVERS = frozenset({Phase.MOVING, Phase.REPAIRING})
WITH_MOVED = frozenset({RCFG_INIT, RCFG_DHT_UPDATE, RCFG_TREE_RESTORE})
# Refusals that are as good as done: a broker that thawed by itself mends its trees by itself; one
# that is further on, or has nothing of this plan, has nothing to undo.
AS_GOOD_AS_DONE: Mapping[Phase, frozenset[StepProblem.ValueType]] = MappingProxyType(
    {
        Phase.RESTORING: frozenset({STEP_PROBLEM_STALE}),
        Phase.REPAIRING: frozenset({STEP_PROBLEM_STALE, STEP_PROBLEM_NOT_FROZEN}),
        Phase.FINISHING: frozenset({STEP_PROBLEM_STALE, STEP_PROBLEM_NOT_FROZEN}),
        Phase.ROLLING_BACK: frozenset(
            {STEP_PROBLEM_STALE, STEP_PROBLEM_NOT_FROZEN, STEP_PROBLEM_NOT_HOST}
        ),
    }
)


def make_step(
    plan: Plan, kind: StepKind.ValueType, fence: int, epoch: int, frozen_max_s: float = 0.0
) -> Step:
    step = Step(fence=fence, plan=plan.id, epoch=epoch, kind=kind)
    if plan.execution is not None and kind in WITH_MOVED:
        step.moved.extend(placed.ref(epoch) for placed in plan.execution.moved)
    if kind == RCFG_INIT:
        step.frozen_max_s = frozen_max_s
    return step


def prepare(
    plan: Plan, members: Members, *, epoch: int, fence: int, manager: str, now_s: float
) -> Execution:
    """The brokers that take part: every one, in the process that it is now."""
    moved = []
    former = []
    for move in plan.moves:
        member = members.get(move.broker_id)
        if member is None:
            raise ValueError(f"{move.broker_id} is not registered")
        former.append(member.placed)
        moved.append(member.placed.model_copy(update={"node": move.to_node}))
    return Execution(
        epoch=epoch,
        fence=fence,
        manager=manager,
        started_s=now_s,
        participants=tuple(
            Participant(broker_id=member.broker_id, incarnation=member.incarnation)
            for member in members
        ),
        moved=tuple(moved),
        former=tuple(former),
    )


def placement_of(plan: Plan, members: Members, now_s: float) -> Placement:
    """As the plan has it, with the other brokers where they are."""
    execution = plan.execution
    if execution is None:
        raise ValueError(f"plan {plan.id} is not being executed")
    hosts: dict[str, PlacedNode] = {member.broker_id: member.placed for member in members}
    hosts.update({placed.broker_id: placed for placed in execution.moved})
    return Placement(
        epoch=execution.epoch,
        plan_id=plan.id,
        hosts=tuple(hosts[name] for name in sorted(hosts)),
        moved=execution.moved,
        committed_s=now_s,
    )
