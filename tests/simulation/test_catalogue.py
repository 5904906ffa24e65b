"""Names of topics outlive the part of the catalogue that had them, and both its holders."""

from __future__ import annotations

import pytest

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from overlay.base.catalogue import shard_topic
from overlay.base.overlay_settings import OverlaySettings
from simulator.clients import SimulatedClient
from simulator.network import Weather
from simulator.run import SimulatedRun
from simulator.scenario import Scenario
from simulator.world import SimulatedBroker

TOPICS = [f"w/{i}" for i in range(60)]
PUBLISH_S, STRIKE_S, RETURN_S = 12.0, 20.0, 22.0
# Sooner than this after the part is served again (docs/protocol.md, the catalogue).
LISTED_S = 10.0
# A subscription to all of them is in place by then, whatever is lost on the way.
SUBSCRIBED_S = 10.0


def scenario(seed: int, brokers: int, weather: Weather) -> Scenario:
    return Scenario(
        seed=seed,
        brokers=brokers,
        minutes=1.5,
        weather=weather,
        clients=0,
        topics=0,
        publications_per_s=1.0,
        faults=(),
    )


def holders(run: SimulatedRun, part: str) -> list[SimulatedBroker]:
    """The rendezvous point of this part of the catalogue, and whoever stands by."""
    living = run.world.living()
    reigning = [b for b in living if part in ring_of(b.core).node.reigns.by_topic]
    standing_by = [b for b in living if part in ring_of(b.core).node.replication.copies]
    assert reigning
    return list({b.broker_id: b for b in (*reigning, *standing_by)}.values())


def publish_all(client: SimulatedClient) -> None:
    for topic in TOPICS:
        client.publish(topic)


class DoubleCrash:
    """60 topics with an event each; then both holders of a part of the catalogue die at once."""

    def __init__(self, *, returning: bool) -> None:
        self.returning = returning
        self.heard: dict[str, set[str]] = {}

    def __call__(self, run: SimulatedRun) -> None:
        run.later(PUBLISH_S, self.begin, run)
        run.later(STRIKE_S, self.strike, run)

    def begin(self, run: SimulatedRun) -> None:
        self.publisher = run.world.add_client("publisher")
        publish_all(self.publisher)

    def strike(self, run: SimulatedRun) -> None:
        parts = [shard_topic(topic) for topic in TOPICS]
        fullest = max(dict.fromkeys(parts), key=parts.count)
        victims = holders(run, fullest)
        run.world.taken_away.append(run.scheduler.now_s)
        for victim in victims:
            if self.returning:
                run.world.returning.add(victim.broker_id)
                run.later(RETURN_S - STRIKE_S, run.start_broker, victim.broker_id)
            run.world.crash_broker(victim.broker_id, noticed=False)
        run.later(LISTED_S + 4.0, self.newcomer, run, "late")

    def newcomer(self, run: SimulatedRun, name: str) -> None:
        client = run.world.add_client(name)
        client.subscribe([("w/#", "")])
        run.later(SUBSCRIBED_S, publish_all, self.publisher)
        # Topics whose histories died, too, wait for these before they begin another.
        grace_s = OverlaySettings().history_grace_s
        run.later(SUBSCRIBED_S + grace_s + 10.0, self.look, run, name)

    def look(self, run: SimulatedRun, name: str) -> None:
        self.heard[name] = {
            heard.topic for s in run.world.subscriptions if s.client == name for heard in s.heard
        }


@pytest.mark.parametrize("returning", [True, False], ids=["they come back", "they do not"])
@pytest.mark.parametrize("seed", range(3))
def test_a_newcomer_sees_every_topic_after_both_holders_of_a_part_died(
    seed: int, *, returning: bool
) -> None:
    weather = Weather() if seed == 0 else Weather(loss=0.05, duplication=0.05, reordering=0.1)
    crash = DoubleCrash(returning=returning)
    verdict = SimulatedRun(scenario(seed, 8, weather)).play(crash)
    assert sorted(crash.heard["late"]) == sorted(TOPICS)
    assert verdict.ok, verdict.violations
