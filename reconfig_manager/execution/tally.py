"""Messages of each step of a plan, and how long brokers were frozen.

Every command and every answer counts, repeats included. What brokers sent each other for a step
they say in their answer: it counts once for each broker, however often the answer comes. Trees are
repaired by all brokers, for the sake of those that move: each says in its last answer what it sent
for that, and it counts for RCFG_TREE_REPAIR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_TREE_REPAIR, StepKind, StepReply
from reconfig_manager.model.plan import Execution, Paused, StepMessages

KINDS = frozenset(StepKind.values())
FROZEN_MAX_S = 86_400.0


@dataclass(slots=True)
class StepTally:
    _manager: dict[str, int] = field(default_factory=dict)
    # By step, by broker.
    _brokers: dict[str, dict[str, int]] = field(default_factory=dict)
    # Counted under leaders before.
    _before: dict[str, StepMessages] = field(default_factory=dict)
    _frozen_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, execution: Execution) -> Self:
        """Going on from what another leader recorded."""
        return cls(_before=dict(execution.messages))

    def sent(self, kind: StepKind.ValueType) -> None:
        name = StepKind.Name(kind)
        self._manager[name] = self._manager.get(name, 0) + 1

    def answered(self, reply: StepReply, broker_id: str) -> None:
        if reply.kind not in KINDS:
            return
        self.sent(reply.kind)
        self._count(reply.kind, broker_id, reply.messages)
        if reply.kind == RCFG_FINISH:
            self._count(RCFG_TREE_REPAIR, broker_id, reply.repair_messages)
        if 0 < reply.frozen_s <= FROZEN_MAX_S:
            self._frozen_s[broker_id] = reply.frozen_s

    def _count(self, kind: StepKind.ValueType, broker_id: str, messages: int) -> None:
        counts = self._brokers.setdefault(StepKind.Name(kind), {})
        counts[broker_id] = max(counts.get(broker_id, 0), messages)

    def messages(self) -> dict[str, StepMessages]:
        names = [n for n in StepKind.keys() if self._manager.get(n) or n in self._before]  # noqa: SIM118
        return {name: self._of(name) for name in names}

    def _of(self, name: str) -> StepMessages:
        before = self._before.get(name, StepMessages())
        return StepMessages(
            manager=before.manager + self._manager.get(name, 0),
            brokers=before.brokers + sum(self._brokers.get(name, {}).values()),
        )

    def paused(self) -> Paused:
        values = sorted(self._frozen_s.values())
        if not values:
            return Paused()
        return Paused(
            brokers=len(values),
            mean_s=sum(values) / len(values),
            p99_s=values[math.ceil(0.99 * len(values)) - 1],
            max_s=values[-1],
        )
