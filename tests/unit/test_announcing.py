from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.routing.rendezvous.publishing.announcing import Announcing
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.overlay_pb2 import Acknowledged, Publication
from overlay.base.catalogue import Entered, names_in, shard_topic
from overlay.base.effects import Announce
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

TOPIC = "quake/ca"


def new(open_max: int = 1_000) -> Announcing:
    return Announcing(CoreSettings(announcements_open_max=open_max), BrokerCounters())


def ack_of(announcement: Publication) -> Acknowledged:
    return Acknowledged(topic=announcement.topic, publisher=announcement.publisher, number=1)


def test_it_is_published_until_it_is_acknowledged() -> None:
    announcing = new()
    announcing.announce(Announce(TOPIC))
    (announcement,) = announcing.fresh(0.0)
    assert announcing.fresh(0.0) == []
    times = [second for second in range(12) if announcing.due(second) == [announcement]]
    assert times == [1, 2, 4, 6, 8, 10]
    ack = ack_of(announcement)
    assert announcing.acknowledged([ack]) == [Entered(TOPIC, (0, 0), ack)]
    assert len(announcing) == 0
    assert announcing.due(100.0) == []


def test_asked_twice_it_is_announced_once() -> None:
    announcing = new()
    announcing.announce(Announce(TOPIC))
    announcing.announce(Announce(TOPIC))
    (announcement,) = announcing.fresh(0.0)
    announcing.announce(Announce(TOPIC))
    assert announcing.fresh(0.0) == []
    ack = ack_of(announcement)
    assert announcing.acknowledged([ack] * 2) == [Entered(TOPIC, (0, 0), ack)]
    announcing.announce(Announce(TOPIC))
    assert announcing.fresh(1.0) == [announcement]


def test_other_acknowledgements_are_not_its_business() -> None:
    announcing = new()
    announcing.announce(Announce(TOPIC))
    (announcement,) = announcing.fresh(0.0)
    elsewhere = ack_of(announcement)
    elsewhere.topic = "a topic whose publisher has the same number"
    assert announcing.acknowledged([elsewhere]) == []
    assert len(announcing) == 1


def test_so_many_are_open_at_once() -> None:
    announcing = new(open_max=3)
    topics = [f"topic/{i}" for i in range(10)]
    for topic in topics:
        announcing.announce(Announce(topic))
    done: list[str] = []
    rounds = 0
    while len(announcing):
        batch = announcing.fresh(0.0)
        assert len(batch) <= 3
        done += [entry.topic for entry in announcing.acknowledged(map(ack_of, batch))]
        rounds += 1
    assert done == topics
    assert rounds == 4


def test_a_broker_announces_what_its_node_asks_for() -> None:
    broker = LoneBroker()
    broker.connect("ann")
    broker.publish("ann", publication(TOPIC, 1), publication(TOPIC, 2), publication("other", 1))
    assert broker.kinds("ann").count("acknowledged") == 3
    assert len(ring_of(broker.core).announcing) == 0
    assert broker.core.counters.topics_announced == 2
    reigns = ring_of(broker.core).node.reigns.by_topic
    assert names_in(reigns[shard_topic(TOPIC)].log.runs()) == [TOPIC]
    assert broker.core.counters.published_events == 3


def test_no_client_can_announce_or_listen_to_announcements() -> None:
    broker = LoneBroker()
    broker.connect("ann")
    broker.hear("ann")
    broker.publish("ann", publication(shard_topic(TOPIC), 1))
    broker.subscribe("ann", shard_topic(TOPIC))
    refused, subscribed = broker.hear("ann")
    assert refused.HasField("refused")
    assert len(subscribed.subscribed.problems) == 1
    assert ring_of(broker.core).node.reigns.by_topic == {}
