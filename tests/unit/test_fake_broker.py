"""What a fake broker answers to each step is of the kind that a real one answers.

Managers are tested with fakes: what a fake says and a real broker never does hides faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    Step,
    StepKind,
    StepProblem,
    StepReply,
)
from tests.support.managed import FakeBroker
from tests.support.steps import StepNet

MOVERS = ("b1", "b2", "b3")
ALL = ("b0", *MOVERS, "b4")

# What is asked of whom, in the order of the protocol, or out of it: (kind, brokers, plan, epoch).
Asked = tuple[StepKind.ValueType, Sequence[str], str, int]
WHOLE: tuple[Asked, ...] = (
    (RCFG_INIT, ALL, "p1", 1),
    (RCFG_DHT_UPDATE, MOVERS, "p1", 1),
    (RCFG_TREE_RESTORE, ALL, "p1", 1),
    (RCFG_TREE_REPAIR, MOVERS, "p1", 1),
    (RCFG_FINISH, ALL, "p1", 1),
)
CASES: dict[str, tuple[Asked, ...]] = {
    "a whole plan": WHOLE,
    "each step twice": tuple(asked for asked in WHOLE for _ in range(2)),
    "rolled back, and rolled back again": (
        *WHOLE[:2],
        (RCFG_ROLL_BACK, ALL, "p1", 1),
        (RCFG_ROLL_BACK, ALL, "p1", 1),
    ),
    "begun again after that": (
        WHOLE[0],
        (RCFG_ROLL_BACK, ALL, "p1", 1),
        (RCFG_INIT, ALL, "p1", 1),
        (RCFG_INIT, ALL, "p2", 2),
    ),
    "rolled back although in use": (*WHOLE[:3], (RCFG_ROLL_BACK, ALL, "p1", 1)),
    "a placement that is no newer": (*WHOLE, (RCFG_INIT, ALL, "p2", 1)),
    "moving without freezing": (WHOLE[1],),
    "restored by an older plan": (*WHOLE, (RCFG_TREE_RESTORE, ALL, "p0", 0)),
}


class Real:
    def __init__(self) -> None:
        self._net = StepNet()
        reader = self._net.client("reader", "b1")
        reader.subscribe([(f"quake/{i}", "") for i in range(12)])
        self._net.run(2.0)
        self._moved = self._net.cycle(*MOVERS)

    def ask(self, asked: Asked) -> dict[str, StepReply]:
        kind, names, plan, epoch = asked
        return self._net.step(kind, names, self._moved, plan=plan, epoch=epoch)


class Fake:
    def __init__(self) -> None:
        self._net = StepNet()
        self._moved = self._net.cycle(*MOVERS)
        self._brokers = {
            name: FakeBroker(name, self._net.node_of(name), incarnation=incarnation)
            for name, incarnation in (
                (name, self._net.broker(name).core.identity.incarnation) for name in ALL
            )
        }
        self._now_s = 0.0

    def ask(self, asked: Asked) -> dict[str, StepReply]:
        kind, names, plan, epoch = asked
        self._now_s += 1.0
        step = Step(fence=1, plan=plan, epoch=epoch, kind=kind, moved=self._moved)
        step.frozen_max_s = 100.0
        return {name: self._brokers[name].obey(step, self._now_s) for name in names}


def kinds_of_answers(replies: Iterable[tuple[str, StepReply]]) -> set[tuple[str, str, str]]:
    """From movers, and from the others: problems, and which figures are above 0 at any of them."""
    found = set()
    for name, reply in replies:
        who = "mover" if name in MOVERS else "other"
        found.add((who, "problem", StepProblem.Name(reply.problem)))
        found |= {
            (who, figure, "some")
            for figure in ("messages", "frozen_s", "repair_messages")
            if getattr(reply, figure)
        }
    return found


@pytest.mark.parametrize("case", CASES)
def test_answers_are_of_the_same_kind(case: str) -> None:
    real, fake = Real(), Fake()
    for asked in CASES[case]:
        of_real, of_fake = real.ask(asked), fake.ask(asked)
        assert set(of_real) == set(of_fake) == set(asked[1])
        step = StepKind.Name(asked[0])
        assert kinds_of_answers(of_real.items()) == kinds_of_answers(of_fake.items()), step
