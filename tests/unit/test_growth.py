"""What goes away takes with it what was kept for it: nothing grows with those who were here."""

from __future__ import annotations

import gc

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.sessions.session import Session
from overlay.base.overlay_settings import OverlaySettings
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication


def _sessions() -> int:
    gc.collect()
    return sum(isinstance(one, Session) for one in gc.get_objects())


def test_sessions_that_have_published_are_forgotten_with_their_clients() -> None:
    """Each was held by the topics that it had published to, with all that waited in it."""
    broker = LoneBroker()
    broker.run(0.3)
    before = _sessions()
    for number in range(20):
        broker.connect(f"client-{number}")
        broker.publish(f"client-{number}", publication(f"t/{number}", 1, publisher=number))
        broker.run(0.1)
        broker.disconnect(f"client-{number}")
    broker.run(5.0)
    assert ring_of(broker.core).publishing.open_streams == 0
    assert _sessions() - before <= 1


def test_streams_are_forgotten_although_the_oldest_has_something_open() -> None:
    """While the oldest stream was busy, nothing was forgotten at all."""
    broker = LoneBroker(CoreSettings(rendezvous_cache_max=10))
    broker.run(0.3)
    ring_of(broker.core).node.reigns.ready = False
    broker.connect("ann")
    broker.publish("ann", publication("stuck", 1, publisher=7))
    ring_of(broker.core).node.reigns.ready = True
    for number in range(50):
        broker.publish("ann", publication(f"t/{number}", 1, publisher=7))
        ring_of(broker.core).hosting.rendezvous.forget_topic("stuck")
    assert broker.core.counters.streams_forgotten >= 30


def test_tallies_that_nobody_takes_stay_within_their_bound() -> None:
    broker = LoneBroker(overlay=OverlaySettings(tallied_topics_max=5))
    broker.run(0.3)
    ring_of(broker.core).hosting.begin_tally("a manager that never comes again")
    broker.connect("ann")
    for number in range(20):
        broker.publish("ann", publication(f"t/{number}", 1, publisher=7))
    taken = ring_of(broker.core).hosting.take_tally("a manager that never comes again")
    assert len(taken) <= 5
    assert ring_of(broker.core).node.counters.tallies_dropped >= 15
