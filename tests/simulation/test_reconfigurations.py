"""Brokers are moved while leaders and brokers crash, links break and the store is away.

`dynatops simulate --reconfigure --seeds 2000` runs more of the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from broker_agent.core.routing.rendezvous.plans.reconfiguration import Reconfiguration
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from overlay.history.replication import Replication
from overlay.tree.interests import Interests
from reconfig_manager.model.plan import Phase, Plan, PlanState
from reconfig_manager.ports import Record
from simulator.managers import SimulatedManager
from simulator.reconfiguring import (
    Meddler,
    Mishap,
    mishaps_of,
    simulate_reconfiguration,
)
from simulator.run import SimulatedRun, Verdict

Also = Callable[[SimulatedRun, Meddler], None]


def play(seed: int, also: Also | None = None) -> tuple[Verdict, list[Plan]]:
    meddlers: list[Meddler] = []

    def keep(run: SimulatedRun, meddler: Meddler) -> None:
        meddlers.append(meddler)
        if also is not None:
            also(run, meddler)

    verdict = simulate_reconfiguration(seed, brokers=6, minutes=2.0, also=keep)
    return verdict, list(meddlers[0].managers.store.kept.plans.values())


@pytest.mark.parametrize("seed", range(16))
def test_six_brokers_and_two_managers(seed: int) -> None:
    verdict, plans = play(seed)
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"
    assert verdict.delivered > 100
    assert any(plan.state is PlanState.COMMITTED for plan in plans)


def test_the_same_seed_is_the_same_run() -> None:
    assert play(5)[0].trace == play(5)[0].trace


def test_the_seeds_cover_every_mishap() -> None:
    planned = {mishap for seed in range(16) for mishap, _ in islice(mishaps_of(seed), 3)}
    assert planned == set(Mishap)


class TestLeaderKilled:
    """Once, in the first plan that gets so far: as it writes its entry, or just after that."""

    @pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.ROLLING_BACK])
    @pytest.mark.parametrize("before", [True, False])
    def test_the_next_finishes_or_undoes_what_it_did(self, phase: Phase, before: bool) -> None:
        killed: list[str] = []

        def also(run: SimulatedRun, meddler: Meddler) -> None:
            kill_at(meddler, phase, killed, before=before)

        verdict, plans = play(40, also)
        assert killed
        (plan,) = [plan for plan in plans if plan.id == killed[0]]
        # Written, though nobody lives who knows it: the entry is what counts.
        expected = PlanState.COMMITTED if phase.committed else PlanState.ROLLED_BACK
        assert plan.state is expected
        assert verdict.ok, verdict.violations

    def test_while_rolling_back(self) -> None:
        killed: list[str] = []

        def also(run: SimulatedRun, meddler: Meddler) -> None:
            cancelled: list[str] = []

            def on_written(manager: SimulatedManager, record: Record) -> None:
                plan = record.plan
                if plan is not None and plan.phase is Phase.MOVING and not cancelled:
                    cancelled.append(plan.id)
                    manager.cancel(plan.id)
                elif plan is not None and plan.phase is Phase.ROLLING_BACK and not killed:
                    killed.append(plan.id)
                    manager.crash()
                    run.scheduler.after(5.0, lambda: meddler.start_manager(manager.name))

            quieten(meddler)
            meddler.managers.on_written = on_written

        verdict, plans = play(40, also)
        assert [plan.state for plan in plans if plan.id in killed] == [PlanState.ROLLED_BACK]
        assert verdict.ok, verdict.violations


def quieten(meddler: Meddler) -> None:
    """No mishaps but the test's own."""
    meddler.managers.on_step = lambda manager, step: None
    meddler.managers.on_written = lambda manager, record: None
    meddler.managers.answers_lost = 0.0


def kill_at(meddler: Meddler, phase: Phase, killed: list[str], *, before: bool) -> None:
    quieten(meddler)

    def strike(manager: SimulatedManager, record: Record) -> None:
        plan = record.plan
        if plan is not None and plan.phase is phase and not killed:
            killed.append(plan.id)
            manager.crash()

    if before:
        # It has written, and never learns so.
        meddler.managers.on_written = strike
        return

    def strike_soon(manager: SimulatedManager, record: Record) -> None:
        # It has acted on its entry, and some answers are under way.
        manager.world.scheduler.after(0.006, lambda: strike(manager, record))

    meddler.managers.on_written = strike_soon


class TestLostStore:
    """Emptied beside brokers that were moved: those who lead next begin with nothing."""

    @pytest.mark.parametrize("seed", [40, 41, 42, 43])
    def test_the_next_plan_is_carried_out(self, seed: int) -> None:
        lost: list[Plan] = []

        def also(run: SimulatedRun, meddler: Meddler) -> None:
            def on_written(manager: SimulatedManager, record: Record) -> None:
                plan = record.plan
                if plan is not None and plan.state is PlanState.COMMITTED and not lost:
                    lost.append(plan)
                    run.scheduler.after(1.0, meddler.managers.lose_store)

            quieten(meddler)
            meddler.managers.on_written = on_written

        verdict, plans = play(seed, also)
        assert lost
        assert verdict.ok, verdict.violations
        committed = [plan for plan in plans if plan.state is PlanState.COMMITTED]
        assert committed
        assert lost[0].id not in {plan.id for plan in plans}
        assert min(plan.epoch for plan in committed) > lost[0].epoch


def noticed(what: str, also: Also | None = None, among: range = range(1, 13)) -> bool:
    """Whether a run complains of it; not every run meets what makes it matter."""
    return any(what in violation for seed in among for violation in play(seed, also)[0].violations)


def crash_one_that_moved(run: SimulatedRun, meddler: Meddler) -> None:
    """As soon as its plan is over."""

    def on_written(manager: SimulatedManager, record: Record) -> None:
        plan = record.plan
        if plan is not None and plan.state is PlanState.COMMITTED and plan.execution is not None:
            victim = plan.execution.moved[0].broker_id
            if run.world.brokers[victim].alive and len(run.world.living()) > 3:
                run.world.crash_broker(victim, noticed=True)

    quieten(meddler)
    meddler.managers.on_written = on_written


def test_who_has_just_moved_may_crash() -> None:
    assert play(2, crash_one_that_moved)[0].violations == ()


class TestCheckers:
    """What they watch is broken here on purpose."""

    def test_a_broker_that_stays_frozen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Reconfiguration, "_thaw", lambda self, part, now_s, **_: None)
        # Its table would not let it.
        monkeypatch.setattr(Reconfiguration, "_become", lambda self, state: None)
        assert noticed("is frozen")

    @pytest.mark.sabotage
    def test_a_node_that_comes_without_its_copies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Replication, "load", lambda self, states, now_s: None)
        assert noticed("events lost", crash_one_that_moved, range(29, 60))

    def test_trees_that_are_not_repaired(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Interests, "catch_up", lambda self, now_s: None)
        assert noticed("tree of")

    def test_a_plan_that_is_not_what_is_written_of_it(self) -> None:
        def also(run: SimulatedRun, meddler: Meddler) -> None:
            def falsify() -> list[str]:
                plans = meddler.managers.store.kept.plans
                for plan in plans.values():
                    plans[plan.id] = plan.model_copy(update={"state": PlanState.ROLLED_BACK})
                return []

            run.checks.insert(0, falsify)

        assert any(
            "its placement was used" in violation for violation in play(1, also)[0].violations
        )

    def test_two_hosts_of_one_node(self) -> None:
        def also(run: SimulatedRun, meddler: Meddler) -> None:
            def falsify() -> list[str]:
                one, other, *_ = run.world.living()
                ring_of(one.core).hosting.node = ring_of(other.core).node
                return []

            run.checks.insert(0, falsify)

        assert any("is hosted by" in violation for violation in play(1, also)[0].violations)
