"""However much there is to look after, one tick does a part of it."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from dynatops.v1.client_pb2 import Hello
from overlay.base.effects import DeliverBeats
from overlay.base.identifiers import NodeId
from tests.support.brokers import LoneBroker
from tests.support.nodes import NodeNet

MANY = 2_500


def test_sessions_that_expire_together_end_a_part_at_a_time() -> None:
    broker = LoneBroker(CoreSettings(sessions_max=2 * MANY))
    for i in range(MANY):
        client = f"c{i}"
        broker.keep(broker.core.open_connection(ConnectionId(client), broker.now_s))
        broker.say(client, hello=Hello(protocol=1, client_id=client, expiry_s=10))
        broker.disconnect(client)
    broker.run(9.9)
    assert len(broker.core.registry) == MANY
    ended = []
    while len(broker.core.registry):
        before = len(broker.core.registry)
        broker.run(0.05)
        ended.append(before - len(broker.core.registry))
        assert broker.now_s < 15
    assert max(ended) == 1_000
    assert broker.core.counters.sessions_expired == MANY


def test_a_session_that_is_back_does_not_expire_in_its_turn() -> None:
    broker = LoneBroker()
    for i in range(MANY):
        client = f"c{i}"
        broker.keep(broker.core.open_connection(ConnectionId(client), broker.now_s))
        broker.say(client, hello=Hello(protocol=1, client_id=client, expiry_s=10))
        broker.disconnect(client)
    broker.run(9.9)
    while len(broker.core.registry) == MANY:
        broker.run(0.05)
    # The round has begun; this one is among the last.
    last = f"c{MANY - 1}"
    broker.keep(broker.core.open_connection(ConnectionId("back"), broker.now_s))
    broker.say("back", hello=Hello(protocol=1, client_id=last, expiry_s=10))
    broker.run(5.0)
    assert list(broker.core.registry.clients) == [last]


def test_positions_that_are_due_together_are_repeated_a_part_at_a_time() -> None:
    net = NodeNet()
    node = net.add("n0", node_id=NodeId(1))
    net.run(1.0)
    topics = [f"topic/{i}" for i in range(600)]
    for topic in topics:
        net.want("n0", topic)
    # Nothing runs for a while, so that all are due.
    now_s = net.now_s + 5.0
    repeated: list[list[str]] = []
    for _ in range(3):
        beats = [e.beats.topics for e in node.tick(now_s) if isinstance(e, DeliverBeats)]
        repeated.append([topic for topics_due in beats for topic in topics_due])
    assert [len(beats) for beats in repeated] == [250, 250, 100]
    assert sorted(topic for beats in repeated for topic in beats) == sorted(topics)
