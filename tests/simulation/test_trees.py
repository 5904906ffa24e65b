"""Whole brokers in a tree, in all modes; and proof that their checkers see what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from broker_agent.core.keeping.journal import Stored
from broker_agent.core.routing.forwarding.forwarding import tree_of
from broker_agent.core.routing.forwarding.tree_subscriptions import TreeSubscriptions
from broker_agent.core.sessions.session import Session
from dynatops.client.core.publications import Ack
from dynatops.client.core.reading import Arrived, TopicCursor
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import Run as RunMessage
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.keeping.copies import CopySending
from overlay.forwarding.streams.portions import Portion
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tree.topology import TreeMode
from simulator.actors import ACTORS
from simulator.disk import SimulatedDisk
from simulator.network import Weather
from simulator.run import SimulatedRun, Verdict, simulate
from simulator.scenario import Fault, Planned, Scenario
from simulator.tree.simulated_tree import SimulatedTree
from simulator.tree.tree_changes import (
    DEGREE_MAX,
    leaves_of,
    random_tree,
    with_broker_between,
    with_broker_moved,
    with_leaf,
    without,
)
from simulator.tree.tree_scenario import TREE_WEIGHTS, tree_scenario_of
from simulator.world import SimulatedBroker


def check(seed: int, brokers: int, minutes: float) -> Verdict:
    verdict = simulate(seed, brokers, minutes, routing="forwarding")
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"
    return verdict


# Each mode twice.
@pytest.mark.parametrize("seed", range(16))
def test_six_brokers(seed: int) -> None:
    assert check(seed, 6, 1.25).delivered > 100


@pytest.mark.parametrize("brokers", [1, 2])
def test_tiny_trees(brokers: int) -> None:
    check(3, brokers, 1.25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(64))
def test_eight_brokers(seed: int) -> None:
    check(seed, 8, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_twenty_brokers(seed: int) -> None:
    check(seed, 20, 2)


# What hardly any seed draws: brokers that begin anew behind a link which stays cut for longer than
# they wait for the past; and the end of all memory while one side has not had what the other has.
RARE = {
    "restarted behind a cut": (
        Planned(10.0, Fault.CUT_LINK, lasts_s=24.0),
        Planned(12.0, Fault.CRASH_BEHIND_CUT, lasts_s=12.0),
        Planned(26.0, Fault.CRASH_AND_RESTART, lasts_s=1.0),
    ),
    "all crash while parted": (
        Planned(14.0, Fault.PARTITION, lasts_s=16.0),
        Planned(17.0, Fault.CRASH_AND_RESTART, lasts_s=1.0),
        Planned(25.0, Fault.ALL_CRASH, lasts_s=1.0),
    ),
}


@pytest.mark.parametrize("faults", RARE)
@pytest.mark.parametrize("seed", range(4))
def test_rare_faults(seed: int, faults: str) -> None:
    scenario = replace(tree_scenario_of(seed, 6, 1.4), faults=RARE[faults])
    assert SimulatedRun(scenario).play().violations == ()


class TestScenarios:
    def test_eight_seeds_are_all_modes(self) -> None:
        topologies = [scenario.topology for scenario in map(_scenario, range(8))]
        modes = {(t.mode, t.advertisements, t.covering) for t in topologies if t is not None}
        assert len(modes) == 8

    def test_the_seeds_cover_every_fault_and_every_level(self) -> None:
        planned = {fault.fault for seed in range(60) for fault in _scenario(seed).faults}
        assert planned == set(TREE_WEIGHTS)
        assert set(SimulatedRun(_scenario(0)).routing.strikes) == planned
        assert set(_scenario(0).acks) == set(Ack) - {Ack.STORED}

    def test_some_runs_have_no_time_for_repair(self) -> None:
        counts = [len(_scenario(seed).faults) for seed in range(40)]
        assert min(counts) < 6
        assert max(counts) > 12

    def test_the_same_seed_is_the_same_run_in_another_process(self) -> None:
        program = (
            "from simulator.run import simulate;"
            "print(simulate(7, 4, 1, routing='forwarding').trace)"
        )
        traces = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for hash_seed in ("1", "2")
        }
        assert traces == {check(7, 4, 1).trace + "\n"}


def _scenario(seed: int) -> Scenario:
    return tree_scenario_of(seed, 8, 2.0)


class TestChanges:
    @pytest.mark.parametrize("seed", range(20))
    def test_every_change_makes_a_newer_tree(self, seed: int) -> None:
        rng = Random(seed)
        topology = random_tree(rng, 7)
        for count in range(12):
            changed = (
                with_leaf(topology, f"n{count}", rng),
                with_broker_between(topology, f"n{count}", rng),
                with_broker_moved(topology, rng),
                without(topology, rng.choice(leaves_of(topology))),
            )[count % 4]
            assert changed is not None
            assert changed.version == topology.version + 1
            assert len(changed.links) == len(changed.addresses) - 1
            assert not changed.left_out
            topology = changed
        degrees = [len(topology.neighbours(name)) for name in topology.addresses]
        assert max(degrees) <= DEGREE_MAX

    def test_whoever_is_behind_a_broker_that_goes_is_linked_to_the_one_before_it(self) -> None:
        topology = random_tree(Random(1), 7)
        inner = next(n for n in topology.addresses if n not in leaves_of(topology) and n != "b0")
        children = [n for n in topology.addresses if topology.parent(n) == inner]
        changed = without(topology, inner)
        assert changed is not None
        assert [changed.parent(child) for child in children] == [topology.parent(inner)] * len(
            children
        )
        assert without(topology, "b0") is None


# ---- what checkers see ---------------------------------------------------------------------------

CALM = Scenario(
    seed=1,
    brokers=6,
    minutes=1.5,
    weather=Weather(),
    clients=12,
    topics=4,
    publications_per_s=10.0,
    faults=(),
    topology=random_tree(Random(1), 6),
    acks=(Ack.REPLICATED, Ack.RP, Ack.NONE),
)
END_S = CALM.end_s - 0.000_1


def broken(break_it: Callable[[SimulatedRun], None], *, at_s: float = END_S) -> Verdict:
    """A calm run in which this happens."""
    return SimulatedRun(CALM).play(lambda run: run.scheduler.after(at_s, lambda: break_it(run)))


def forwarder_of(run: SimulatedRun, name: str) -> Forwarder:
    return tree_of(run.world.brokers[name].core).forwarder


def someone_with_a_filter(run: SimulatedRun) -> tuple[SimulatedBroker, Filter]:
    for broker in run.world.living():
        for session in broker.core.registry.clients.values():
            for filters in session.filters.values():
                return broker, filters[0]
    raise AssertionError("nobody subscribes")


def saw(verdict: Verdict, text: str) -> bool:
    return any(text in violation for violation in verdict.violations)


@pytest.mark.parametrize("mode", list(TreeMode))
@pytest.mark.parametrize("advertisements", [False, True])
def test_a_calm_run_is_faultless(mode: TreeMode, *, advertisements: bool) -> None:
    topology = random_tree(Random(1), 6, mode=mode.value, advertisements=advertisements)
    verdict = SimulatedRun(replace(CALM, topology=topology)).play()
    assert verdict.violations == ()
    assert verdict.counted["gaps"] == 0


class TestTables:
    def test_a_filter_that_a_broker_has_lost(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            broker, wanted = someone_with_a_filter(run)
            tree_of(broker.core).forwarder.tables.give_up(HERE, wanted)

        assert saw(broken(break_it), "and its sessions")

    def test_a_filter_that_a_neighbour_has_lost(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            link = run.world.brokers["b0"]
            (other, *_) = CALM.topology.neighbours("b0") if CALM.topology else ()
            tables = tree_of(link.core).forwarder.tables
            for each in tables.wanted_by(other):
                tables.give_up(other, each)

        assert saw(broken(break_it), "has heard of")

    def test_a_filter_that_was_never_told(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            forwarder_of(run, "b0").tables.want(HERE, Filter.parse("nobody/wants/this"))
            forwarder_of(run, "b0").tables.changes()

        assert saw(broken(break_it), "too many [nobody/wants/this]")

    def test_a_place_in_a_stream(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            stream = forwarder_of(run, "b0").own_stream
            known = forwarder_of(run, "b1")._context.streams.get(stream)
            assert known is not None
            known.number = 0

        assert saw(broken(break_it), "b1 is at")


class TestLinks:
    def test_a_topology_that_is_not_handed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Forwarder, "_take_offer", lambda *_: None)
        moved = replace(CALM, faults=(Planned(20.0, Fault.BROKER_MOVED),))
        assert saw(SimulatedRun(moved).play(), "has topology 1 instead of 2")

    def test_a_broker_that_is_missing(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            run.world.crash_broker("b3", noticed=True)

        assert saw(broken(break_it), "and the topology has")

    def test_a_link_that_is_never_up(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            (other, *_) = CALM.topology.neighbours("b0") if CALM.topology else ()
            run.network.cut("b0", other)

        verdict = broken(break_it, at_s=CALM.quiet_from_s + 1.0)
        assert saw(verdict, "link to b0 is closed")
        assert saw(verdict, "always under way")


class TestDeliveries:
    """What is given to sessions is wrong here, and clients believe anything."""

    @pytest.fixture
    def wrong_delivery(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        right = TreeSubscriptions._deliver
        monkeypatch.setattr(TopicCursor, "admit", _believing)

        def install(spoil: Callable[[Portion], list[Portion]]) -> None:
            def deliver(
                self: TreeSubscriptions, portion: Portion, now_s: float, *whom: object
            ) -> None:
                for each in spoil(portion):
                    right(self, each, now_s, *whom)  # type: ignore[arg-type]

            monkeypatch.setattr(TreeSubscriptions, "_deliver", deliver)

        return install

    @pytest.mark.sabotage
    def test_an_event_delivered_twice(self, wrong_delivery: Callable[..., None]) -> None:
        wrong_delivery(lambda portion: [portion, portion])
        assert saw(SimulatedRun(CALM).play(), "came 2 times")

    @pytest.mark.sabotage
    def test_an_event_not_delivered(self, wrong_delivery: Callable[..., None]) -> None:
        count = iter(range(1_000_000))
        wrong_delivery(lambda portion: [portion] if next(count) % 50 else [])
        assert saw(SimulatedRun(CALM).play(), "events lost, and it was not told")

    @pytest.mark.sabotage
    def test_events_out_of_order(self, wrong_delivery: Callable[..., None]) -> None:
        held: list[Portion] = []

        def spoil(portion: Portion) -> list[Portion]:
            held.append(portion)
            if len(held) < 8:
                return []
            out = held[::-1]
            held.clear()
            return out

        wrong_delivery(spoil)
        assert saw(SimulatedRun(CALM).play(), "came after a later one")

    @pytest.mark.sabotage
    def test_a_publication_never_acknowledged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CopySending, "release", lambda *_: None)
        assert saw(SimulatedRun(CALM).play(), "never acknowledged")

    def test_sessions_that_are_not_on_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults = tuple(
            Planned(at_s, Fault.CRASH_AND_RESTART, lasts_s=1.0) for at_s in (16.0, 26.0, 36.0)
        )
        restarts = replace(CALM, clients=60, faults=faults)
        assert SimulatedRun(restarts).play().violations == ()
        monkeypatch.setattr(SimulatedDisk, "read", lambda self: Stored())
        assert any(
            saw(SimulatedRun(replace(restarts, seed=seed)).play(), "events lost")
            for seed in range(1, 9)
        )


class TestGaps:
    def test_one_that_is_told_for_no_reason(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            for broker in run.world.living():
                subscriptions = tree_of(broker.core).subscriptions
                subscriptions._tell_lost(
                    list(broker.core.registry.clients.values()), run.scheduler.now_s
                )

        assert saw(broken(break_it, at_s=20.0), "for no reason")

    @pytest.mark.sabotage
    def test_untold_it_is_a_violation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(ACTORS, "workers")
        drastic = replace(
            CALM,
            weather=Weather(delay_max_s=0.08),
            clients=24,
            publications_per_s=40.0,
            faults=(Planned(16.0, Fault.ALL_CRASH, lasts_s=1.0),),
        )
        assert SimulatedRun(drastic).play().violations == ()
        monkeypatch.setattr(Session, "tell_missed", lambda *_: None)
        assert saw(SimulatedRun(drastic).play(), "it was not told")

    def test_what_nobody_but_its_broker_had_need_not_be_told(self) -> None:
        """Acknowledged as `rp`, it is gone with that."""
        run = SimulatedRun(CALM)
        run.play()
        event = next(e for e in run.world.published if e.ack is Ack.RP and e.acknowledged_s)
        assert event.acknowledged_s is not None
        assert run.world.is_owed(event)
        run.world.ended.append((event.broker, event.acknowledged_s + 1.0))
        assert not run.world.is_owed(event)

    def test_when_losses_may_be_told(self) -> None:
        run = SimulatedRun(CALM)
        assert isinstance(run.routing, SimulatedTree)
        troubles = run.routing.troubles
        troubles.note(run, 1.0)
        assert troubles.excuses == []
        run.scheduler.now_s = 4.0
        troubles.note(run, 1.0)
        assert [since_s for since_s, _ in troubles.excuses] == [0.0]
        run.scheduler.now_s = 30.0
        troubles.note(run, 9.0)
        assert [since_s for since_s, _ in troubles.excuses] == [0.0, 30.0]


def _believing(self: TopicCursor, run: RunMessage) -> list[Arrived]:
    return [Arrived(run, 0, run.count)]
