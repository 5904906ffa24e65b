"""What one more session, subscription or topic takes from a broker.

Bounds are a quarter above what was measured: they are there to notice what grows by accident.
"""

from __future__ import annotations

import gc
import tracemalloc

from broker_agent.core.base.effects import ConnectionId
from dynatops.v1.client_pb2 import Hello
from tests.support.brokers import LoneBroker

TOPICS_PER_SESSION = 5


def grown(sessions: int, topics: int) -> int:
    """Bytes that a broker grows by when so many sessions come, subscribe and go: to some of these
    topics, which have subscribers already; each to topics of its own if there are none."""
    broker = LoneBroker()
    broker.connect("first")
    broker.subscribe("first", *(f"topic/{i}" for i in range(topics)))
    broker.hear_all("first")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(sessions):
            numbers = range(i * TOPICS_PER_SESSION, (i + 1) * TOPICS_PER_SESSION)
            names = [f"topic/{n % topics if topics else n}" for n in numbers]
            come_and_go(broker, f"session-{i}", names)
        broker.effects.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def come_and_go(broker: LoneBroker, client: str, topics: list[str]) -> None:
    broker.keep(broker.core.open_connection(ConnectionId(client), broker.now_s))
    broker.say(client, hello=Hello(protocol=1, client_id=client, expiry_s=3_600))
    broker.subscribe(client, *topics)
    broker.hear_all(client)
    broker.disconnect(client)


def test_a_session_with_subscriptions_that_others_have_too_is_small() -> None:
    sessions = 300
    assert grown(sessions, topics=100) / sessions < 2_100


def test_a_topic_that_nobody_else_subscribes_to_is_small() -> None:
    sessions = 300
    alone = grown(sessions, topics=0) - grown(sessions, topics=100)
    assert alone / (sessions * TOPICS_PER_SESSION) < 2_900
