"""Checkers that never fail are worth nothing: each thing they watch is broken here on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker_agent.core.keeping.journal import Stored
from broker_agent.core.routing.rendezvous.publishing.announcing import Announcing
from broker_agent.core.routing.rendezvous.reading.subscriptions import Subscriptions
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.sessions.session import Session
from dynatops.client.core.reading import Arrived, TopicCursor
from dynatops.kit.repeats import RunPart
from dynatops.v1.overlay_pb2 import Run as RunMessage
from overlay.base.catalogue import is_system
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer
from overlay.history import topic_log
from overlay.history.reader import ReadResult, TopicReader
from simulator.actors import ACTORS
from simulator.disk import SimulatedDisk
from simulator.network import Weather
from simulator.ring.ring_checkers import check_ring
from simulator.run import SimulatedRun, Verdict
from simulator.scenario import Fault, Planned, Scenario
from simulator.world import SimulatedBroker

CALM = Scenario(
    seed=1,
    brokers=6,
    minutes=1.5,
    weather=Weather(),
    clients=12,
    topics=4,
    publications_per_s=10.0,
    faults=(),
)
BREAK_AT_S = 20.0


def broken(break_it: Callable[[SimulatedRun], None], *, at_s: float = BREAK_AT_S) -> Verdict:
    """A calm run in which this happens."""
    return SimulatedRun(CALM).play(lambda run: run.scheduler.after(at_s, lambda: break_it(run)))


def is_seen(scenario: Scenario, text: str, among: range = range(1, 9)) -> bool:
    """With what is broken on purpose, one of the first seeds says this."""
    return any(
        text in violation
        for seed in among
        for violation in SimulatedRun(replace(scenario, seed=seed)).play().violations
    )


def brokers(run: SimulatedRun) -> list[SimulatedBroker]:
    return run.world.living()


def test_a_calm_run_is_faultless() -> None:
    assert SimulatedRun(CALM).play().violations == ()


class TestRing:
    def test_a_successor_list_out_of_order(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            ring_of(brokers(run)[0].core).node.ring.successors.reverse()
            assert check_ring(run.world.brokers.values())

        broken(break_it)

    def test_a_node_whose_successors_are_all_dead(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            ghost = Peer(NodeId(1), "ghost", "ghost")
            ring_of(brokers(run)[0].core).node.ring.successors = [ghost]
            (violation,) = check_ring(run.world.brokers.values())
            assert "no living successor" in violation

        broken(break_it)

    def test_two_rings(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            nodes = [ring_of(b.core).node for b in brokers(run)]
            nodes.sort(key=lambda node: node.me.node_id)
            for ring in (nodes[:3], nodes[3:]):
                for i, node in enumerate(ring):
                    node.ring.successors = [ring[(i + 1) % 3].me]
            (violation,) = check_ring(run.world.brokers.values())
            assert "2 rings" in violation

        broken(break_it)

    def test_a_ring_that_goes_round_twice(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            nodes = [ring_of(b.core).node for b in brokers(run)]
            nodes.sort(key=lambda node: node.me.node_id)
            order = [0, 2, 4, 1, 3, 5]
            for here, there in zip(order, [*order[1:], order[0]], strict=True):
                nodes[here].ring.successors = [nodes[there].me]
            (violation,) = check_ring(run.world.brokers.values())
            assert "goes round 2 times" in violation

        broken(break_it)

    def test_the_watch_reports_what_it_sees(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            for broker in brokers(run):
                ring_of(broker.core).node.ring.successors.clear()

        verdict = broken(break_it, at_s=BREAK_AT_S + 0.999_9)
        assert any("no living successor" in violation for violation in verdict.violations)


class TestRest:
    END_S = CALM.end_s - 0.000_1

    def test_a_missing_branch(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            for broker in brokers(run):
                ring_of(broker.core).node.trees.topics.clear()

        verdict = broken(break_it, at_s=self.END_S)
        assert any("tree of" in violation for violation in verdict.violations)

    def test_a_rendezvous_point_too_many(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            nodes = brokers(run)
            one = next(broker for broker in nodes if ring_of(broker.core).node.reigns.by_topic)
            other = next(broker for broker in nodes if broker is not one)
            topic, reign = next(iter(ring_of(one.core).node.reigns.by_topic.items()))
            ring_of(other.core).node.reigns.by_topic[topic] = reign

        verdict = broken(break_it, at_s=self.END_S)
        assert any("rendezvous point of" in violation for violation in verdict.violations)

    def test_a_wrong_finger(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            node = ring_of(brokers(run)[0].core).node
            node.ring.fingers.routes.replace([node.ring.successors[-1]])

        verdict = broken(break_it, at_s=self.END_S)
        assert any("routes by" in violation for violation in verdict.violations)

    def test_a_node_that_never_became_ready(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            ring_of(brokers(run)[0].core).node.reigns.ready = False

        verdict = broken(break_it, at_s=self.END_S)
        assert any("waits for its range" in violation for violation in verdict.violations)


class TestDeliveries:
    """The reader is what makes deliveries right; here it is wrong."""

    @pytest.fixture
    def wrong_offer(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        right = TopicReader.offer
        # Clients drop what they have had: these here are to believe anything.
        monkeypatch.setattr(TopicCursor, "admit", _believing)

        def install(spoil: Callable[[list[RunPart]], list[RunPart]]) -> None:
            monkeypatch.setattr(TopicReader, "offer", lambda self, run: spoil(right(self, run)))

        return install

    @pytest.mark.sabotage
    def test_an_event_delivered_twice(self, wrong_offer: Callable[..., None]) -> None:
        wrong_offer(lambda parts: parts * 2)
        verdict = SimulatedRun(CALM).play()
        assert any("came 2 times" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_an_event_not_delivered(self, wrong_offer: Callable[..., None]) -> None:
        count = iter(range(1_000_000))
        wrong_offer(lambda parts: parts if next(count) % 50 else [])
        verdict = SimulatedRun(CALM).play()
        assert any("events lost" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_events_out_of_order(self, wrong_offer: Callable[..., None]) -> None:
        # Topics of the system's own are none of a session's business.
        held_of: dict[str, list[RunPart]] = {}

        def spoil(parts: list[RunPart]) -> list[RunPart]:
            if not parts or is_system(parts[0].run.topic):
                return parts
            held = held_of.setdefault(parts[0].run.topic, [])
            held.extend(parts)
            if len(held) < 4:
                return []
            out = held[::-1]
            held.clear()
            return out

        wrong_offer(spoil)
        verdict = SimulatedRun(CALM).play()
        assert any("came after a later one" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_a_publication_never_acknowledged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "overlay.history.replication.Replication.acknowledge", lambda *_, **__: None
        )
        verdict = SimulatedRun(CALM).play()
        assert any("never acknowledged" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_a_client_that_hears_names_of_another_side(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "broker_agent.core.selection.summaries.Neighbour.address_by",
            lambda self, door: self.address,
        )
        verdict = SimulatedRun(CALM).play()
        assert any("is told of" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_one_stamp_for_two_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            topic_log.TopicLog, "_stamped", _same_stamp(topic_log.TopicLog._stamped)
        )
        monkeypatch.setattr(TopicReader, "offer", lambda self, run: [RunPart(run)])
        monkeypatch.setattr(TopicReader, "fetched", lambda self, answer: ReadResult())
        monkeypatch.setattr(TopicCursor, "admit", _believing)
        verdict = SimulatedRun(CALM).play()
        assert any("stands for two events" in violation for violation in verdict.violations)


class TestCatalogue:
    """INV-13."""

    def test_a_name_that_is_lost(self) -> None:
        def break_it(run: SimulatedRun) -> None:
            for broker in brokers(run):
                for topic, reign in ring_of(broker.core).node.reigns.by_topic.items():
                    if topic.startswith("$topics/"):
                        reign.log.discard()

        verdict = broken(break_it, at_s=CALM.end_s - 0.000_1)
        assert any("is not in the catalogue" in violation for violation in verdict.violations)

    @pytest.mark.sabotage
    def test_an_acknowledgement_that_does_not_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("overlay.history.replication.Replication._hold", lambda *_: False)
        monkeypatch.setattr(Announcing, "fresh", lambda self, now_s: [])
        verdict = SimulatedRun(CALM).play()
        assert any("nobody has its name" in violation for violation in verdict.violations)

    def test_an_announcement_that_never_arrives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Announcing, "fresh", lambda self, now_s: [])
        verdict = SimulatedRun(CALM).play()
        assert any("never acknowledged" in violation for violation in verdict.violations)


class TestDisk:
    """Kept sessions outlive their broker. Most of their clients wait, half have no memory then."""

    RESTARTS = replace(
        CALM,
        clients=60,
        faults=tuple(
            Planned(at_s, Fault.CRASH_AND_RESTART, lasts_s=1.0) for at_s in (16.0, 24.0, 32.0)
        ),
    )

    def test_nothing_is_lost(self) -> None:
        assert SimulatedRun(self.RESTARTS).play().violations == ()

    def test_sessions_that_are_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SimulatedDisk, "read", lambda self: Stored())
        assert is_seen(self.RESTARTS, "events lost")

    def test_topics_that_are_not_read_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Subscriptions, "_start_of", lambda *_: None)
        assert is_seen(self.RESTARTS, "events lost")


class TestLossThatIsTold:
    """What two neighbours, or all brokers, take with them may be lost, but not without a word."""

    @pytest.mark.parametrize("fault", [Fault.NEIGHBOURS_CRASH, Fault.ALL_CRASH])
    def test_untold_it_is_a_violation(self, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
        # Who finishes events one by one could not follow so many.
        monkeypatch.delitem(ACTORS, "workers")
        drastic = replace(
            CALM,
            minutes=1.2,
            weather=Weather(delay_max_s=0.08),
            clients=24,
            publications_per_s=60.0,
            faults=(Planned(16.0, fault, lasts_s=1.0),),
        )
        assert SimulatedRun(drastic).play().violations == ()
        monkeypatch.setattr(Session, "tell_missed", lambda *_: None)
        assert is_seen(drastic, "it was not told", range(25, 60))


def _believing(self: TopicCursor, run: RunMessage) -> list[Arrived]:
    return [Arrived(run, 0, run.count)]


def _same_stamp(stamped: Callable[..., object]) -> Callable[..., object]:
    def spoiled(self: object, *arguments: object) -> object:
        run = stamped(self, *arguments)
        run.first_seq = 1  # type: ignore[attr-defined]
        return run

    return spoiled
