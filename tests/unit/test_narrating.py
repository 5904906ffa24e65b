"""What a broker's log says of reconfigurations."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from broker_agent.core.base.notices import BrokerNotice, SessionEnded
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.runtime.observing.narrating import Narrator
from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_INIT, RCFG_ROLL_BACK, RCFG_TREE_RESTORE, Step
from overlay.base.effects import PeerLost, RangeAssumed, TookOver
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer
from tests.support.brokers import LoneBroker
from tests.support.nodes import NodeNet


def tell(narrator: Narrator, broker: LoneBroker) -> None:
    """What its driver does with notices."""
    for effect in broker.effects:
        if isinstance(effect, BrokerNotice):
            narrator.on_notice(effect)
    broker.effects.clear()


STEPS = {
    "committed": (RCFG_INIT, RCFG_TREE_RESTORE, RCFG_FINISH),
    "rolled_back": (RCFG_INIT, RCFG_ROLL_BACK),
    "nobody_said": (RCFG_INIT,),
}


@pytest.mark.parametrize("outcome", STEPS)
def test_a_plan_is_told_once_when_it_is_over(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = LoneBroker()
    narrator = Narrator(broker.core)
    broker.run(0.2)
    for kind in STEPS[outcome]:
        assert not caplog.records
        step = Step(kind=kind, plan="p1-1", epoch=3, fence=1, frozen_max_s=2.0)
        broker.keep(broker.core.on_step(step, broker.now_s))
        tell(narrator, broker)
        broker.run(0.5)
    broker.run(10.0)
    tell(narrator, broker)
    (record,) = caplog.records
    told: dict[str, Any] = record.dynatops_values  # type: ignore[attr-defined]
    assert (told["plan"], told["outcome"]) == ("p1-1", outcome)
    assert told["epoch"] == (3 if outcome == "committed" else 0)
    assert 0.4 < told["frozen_s"] < 12.0
    assert told["node"] == told["node_before"]


def test_sessions_are_told_with_what_became_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broker = LoneBroker()
    narrator = Narrator(broker.core)
    broker.run(0.2)
    broker.connect("ann", keep_s=60)
    broker.run(2.0)
    broker.disconnect("ann")
    broker.connect("again", client_id="ann", keep_s=60)
    broker.run(1.0)
    broker.connect("other", client_id="ann", clean=True)
    tell(narrator, broker)
    assert [
        (
            record.__dict__["dynatops_operation"],
            record.__dict__["dynatops_values"].get("connected_s"),
        )
        for record in caplog.records
    ] == [
        ("session_opened", None),
        ("session_detached", pytest.approx(2.0, abs=0.2)),
        ("session_resumed", None),
        ("session_ended", pytest.approx(1.0, abs=0.2)),
        ("session_opened", None),
    ]


def test_sessions_of_a_broker_that_has_left_are_not_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those that are kept wait on disk."""
    caplog.set_level(logging.INFO)
    narrator = Narrator(LoneBroker().core)
    narrator.end_of_sessions()
    narrator.on_notice(SessionEnded("ann", "s1", 1.0, 0, 0))
    assert not caplog.records


def test_a_former_life_with_the_clock_ahead_is_no_namesake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It accused another broker of having its name, at its own address."""
    for address, incarnation in (("b0", 900), ("elsewhere", 5_000)):
        broker = LoneBroker(life=500)
        narrator = Narrator(broker.core, wall_ms=lambda: 1_000)
        former = Peer(NodeId(1), "b0", address, 0, incarnation)
        ring_of(broker.core).hosting.give_way(former, broker.now_s)
        broker.run(0.1)
        caplog.clear()
        tell(narrator, broker)
        (record,) = caplog.records
        assert "the clock of b0 was ahead in a former life" in record.getMessage()


def test_a_namesake_is_one(caplog: pytest.LogCaptureFixture) -> None:
    broker = LoneBroker(life=500)
    narrator = Narrator(broker.core, wall_ms=lambda: 1_000)
    ring_of(broker.core).hosting.give_way(Peer(NodeId(1), "b0", "elsewhere", 0, 900), broker.now_s)
    broker.run(0.1)
    tell(narrator, broker)
    (record,) = caplog.records
    assert "another broker named b0 has joined, at elsewhere" in record.getMessage()


def test_deaths_and_what_they_lead_to_are_told_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    narrator = Narrator(LoneBroker().core)
    narrator.tick(0.5)
    for n in range(1, 31):
        narrator.on_notice(PeerLost(Peer(NodeId(n), f"b{n}", f"h{n}:1", 0, 1)))
    for n in range(7):
        narrator.on_notice(TookOver(f"t/{n}", from_dead=True))
    narrator.on_notice(RangeAssumed())
    for now_s in (1.0, 1.1, 1.9, 2.1, 3.2):
        narrator.tick(now_s)
    assert [record.__dict__["dynatops_operation"] for record in caplog.records] == [
        "peers_lost", "topics_taken_over", "range_assumed",
    ]  # fmt: skip
    assert "30 taken for dead: b1 at h1:1, b2 at h2:1" in caplog.text
    assert "7 topics taken over" in caplog.text


def test_a_death_is_noticed_once() -> None:
    net = NodeNet()
    net.ring(i << 62 for i in range(3))
    net.crash("n1")
    net.run(20.0)
    lost = [
        (name, effect.peer.broker_id)
        for _, name, effect in net.effects
        if isinstance(effect, PeerLost)
    ]
    assert sorted(lost) == [("n0", "n1"), ("n2", "n1")]
