"""Publications that are to be on stores' disks: what brokers say is not enough, what stores say is,
if it is about these very events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.forwarding.forwarding import tree_of
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.stores.marks import Mark, mark_message
from dynatops.v1.client_pb2 import ErrorCode, ServerMessage
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Bundle,
    NodeRef,
    PeerFrame,
    PeerMessage,
    ToStamper,
)
from overlay.forwarding.tree.topology import Topology
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

TOPIC = "quake/ca"
STORED = AckLevel.ACK_LEVEL_STORED
RP = AckLevel.ACK_LEVEL_RP


@pytest.fixture
def broker() -> LoneBroker:
    return _broker()


def _broker(needed: int = 1, **settings: float) -> LoneBroker:
    broker = LoneBroker(CoreSettings(stores_needed=needed, **settings))  # type: ignore[arg-type]
    broker.connect("ann", bundles=True)
    broker.hear("ann")
    return broker


def _publish(broker: LoneBroker, first: int, count: int = 1, ack: int = STORED) -> None:
    broker.publish("ann", publication(TOPIC, first, count=count, ack=ack))  # type: ignore[arg-type]


def _term(broker: LoneBroker) -> int:
    """Of the topic, which has begun."""
    return ring_of(broker.core).node.reigns.by_topic[TOPIC].log.term


def _has(
    broker: LoneBroker,
    seq: int,
    *,
    store: str = "s1",
    since: int = 0,
    life: int = 1,
    term: int | None = None,
    prev: tuple[int, int] = (0, 0),
) -> None:
    """A store says that it has the topic from after `since` up to there."""
    at = _term(broker) if term is None else term
    mark = Mark((at, since), prev, (at, seq))
    origin = NodeRef(node_id=5, broker_id=store, address=store, incarnation=life)
    message = ToStamper(origin=origin, marks=[mark_message(TOPIC, mark)])
    frame = PeerFrame(sender=origin, messages=[PeerMessage(to_stamper=message)])
    broker.keep(broker.core.on_peer_frame(frame, broker.now_s))


def _acknowledged(messages: list[ServerMessage]) -> Iterator[int]:
    for message in messages:
        if message.HasField("acknowledged"):
            yield message.acknowledged.number
        if message.HasField("acknowledgements"):
            yield from message.acknowledgements.numbers


class TestWaiting:
    def test_it_is_done_once_a_store_has_it(self, broker: LoneBroker) -> None:
        _publish(broker, 1, count=3)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 2)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 3)
        assert list(_acknowledged(broker.hear("ann"))) == [3]

    def test_two_stores_are_two_stores(self) -> None:
        broker = _broker(needed=2)
        _publish(broker, 1)
        _has(broker, 1, store="s1")
        _has(broker, 1, store="s1")
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 1, store="s2")
        assert list(_acknowledged(broker.hear("ann"))) == [1]

    def test_what_a_store_said_before_counts(self, broker: LoneBroker) -> None:
        _publish(broker, 1)
        _has(broker, 2)
        assert list(_acknowledged(broker.hear("ann"))) == [1]
        _publish(broker, 2)
        assert list(_acknowledged(broker.hear("ann"))) == [2]

    def test_a_bundle_waits_topic_by_topic(self, broker: LoneBroker) -> None:
        session = broker.core.registry.clients["ann"]
        _publish(broker, 1, ack=AckLevel.ACK_LEVEL_REPLICATED)
        broker.hear("ann")
        broker.say(
            "ann",
            bundle=Bundle(
                publisher=session.publisher,
                topics=[TOPIC, TOPIC],
                numbers=[2, 3],
                published_us=[1, 2],
                sizes=[1, 1],
                payloads=b"xy",
                ack=STORED,
                pending=[0, 1],
            ),
        )
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 2)
        assert list(_acknowledged(broker.hear("ann"))) == [2]
        _has(broker, 3)
        assert list(_acknowledged(broker.hear("ann"))) == [3]

    def test_what_comes_behind_with_less_to_wait_for_waits_too(self, broker: LoneBroker) -> None:
        """To acknowledge it would be to acknowledge what is before it."""
        _publish(broker, 1)
        _publish(broker, 2, ack=RP)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 1)
        assert list(_acknowledged(broker.hear("ann"))) == [2]
        _publish(broker, 3, ack=RP)
        assert list(_acknowledged(broker.hear("ann"))) == [3]

    def test_it_counts_as_open_meanwhile_and_is_not_sent_again(self, broker: LoneBroker) -> None:
        _publish(broker, 1)
        assert broker.core.registry.clients["ann"].unsettled_bytes > 0
        before = broker.core.counters.publish_retries
        broker.run(1.5)
        assert broker.core.counters.publish_retries == before
        _has(broker, 1)
        assert broker.core.registry.clients["ann"].unsettled_bytes == 0
        assert broker.core.status().open_publication_streams == 0


class TestANewStream:
    """Stores must hear of a new topic before more is published on it than is retained."""

    def test_only_its_first_events_go_out_before_stores_have_any(self, broker: LoneBroker) -> None:
        broker.connect("bob")
        broker.subscribe("bob", TOPIC)
        broker.hear("bob")
        for first in range(1, 3_001, 500):
            _publish(broker, first, count=500)
        broker.run(1.0)
        assert sum(run.count for run in broker.runs("bob")) == 1_000
        _has(broker, 500)
        assert sum(run.count for run in broker.runs("bob")) == 2_000
        _has(broker, 3_000)
        assert list(_acknowledged(broker.hear("ann")))[-1] == 3_000
        assert broker.core.status().open_publication_streams == 0

    def test_what_is_held_is_refused_in_the_end(self) -> None:
        broker = _broker(stored_deadline_s=3.0)
        for first in range(1, 2_001, 500):
            _publish(broker, first, count=500)
        broker.run(8.0)
        refused = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert [r.code for r in refused] == [ErrorCode.ERROR_CODE_NOT_STORED] * 4


class TestProof:
    def test_a_store_that_began_later_does_not_have_it(self, broker: LoneBroker) -> None:
        _publish(broker, 1)
        _has(broker, 5, since=1)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 5, since=0, store="s2")
        assert list(_acknowledged(broker.hear("ann"))) == [1]

    def test_another_term_proves_nothing_of_this_one(self, broker: LoneBroker) -> None:
        """A rendezvous point that died with its copies may have had events that no other has."""
        _publish(broker, 1)
        _has(broker, 9, term=_term(broker) + 1)
        assert list(_acknowledged(broker.hear("ann"))) == []

    def test_the_next_term_proves_what_its_history_says(self, broker: LoneBroker) -> None:
        _publish(broker, 1)
        term = _term(broker)
        origin = NodeRef(node_id=5, broker_id="s1", address="s1", incarnation=1)
        mark = Mark((0, 0), (term, 1), (term + 1, 4))
        message = ToStamper(origin=origin, marks=[mark_message(TOPIC, mark)])
        frame = PeerFrame(sender=origin, messages=[PeerMessage(to_stamper=message)])
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        assert list(_acknowledged(broker.hear("ann"))) == [1]

    def test_a_former_life_of_a_store_says_nothing(self, broker: LoneBroker) -> None:
        """It may have lost its disk since."""
        _publish(broker, 1)
        _has(broker, 0, life=2)
        _has(broker, 1, life=1)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 1, life=2)
        assert list(_acknowledged(broker.hear("ann"))) == [1]

    def test_what_no_mark_proves_is_looked_for_anew(self, broker: LoneBroker) -> None:
        """And where it was stamped first is not forgotten: a repeat is told where the topic is."""
        _publish(broker, 1)
        _publish(broker, 2, ack=RP)
        broker.run(11.0)
        assert broker.core.counters.publish_refused_events == 0
        _has(broker, 2, since=1)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 2, since=0, store="s2")
        assert list(_acknowledged(broker.hear("ann"))) == [2]

    def test_what_is_looked_for_anew_is_not_done_with_what_came_after_it(self) -> None:
        """A later event's proof proves nothing of an earlier one."""
        broker = _broker(stored_deadline_s=60.0)
        _publish(broker, 1)
        _publish(broker, 2)
        term = _term(broker)
        # The store began between the two; the first is published again, and waits behind.
        broker.run(5.0)
        _publish(broker, 3)
        broker.run(6.0)
        _has(broker, 3, since=1, term=term)
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 3, since=0, term=term, store="s2")
        assert max(_acknowledged(broker.hear("ann"))) == 3


class TestTooFewStores:
    def test_the_publisher_is_told_that_none_is_known(self) -> None:
        broker = _broker(stored_deadline_s=3.0)
        _publish(broker, 1)
        broker.run(4.0)
        (refused,) = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert refused.code == ErrorCode.ERROR_CODE_NOT_STORED
        assert refused.message == f"published, but no store is known to keep {TOPIC!r}"

    def test_the_publisher_is_told_which_there_are(self) -> None:
        broker = _broker(needed=2, stored_deadline_s=3.0)
        _publish(broker, 1)
        _has(broker, 1, store="s1")
        broker.run(4.0)
        (refused,) = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert "not on the disks of 2 stores in time" in refused.message
        assert "s1" in refused.message

    def test_what_is_behind_it_with_less_to_wait_for_is_not_refused(self) -> None:
        broker = _broker(stored_deadline_s=3.0)
        _publish(broker, 1)
        _publish(broker, 2, ack=RP)
        broker.run(4.0)
        messages = broker.hear("ann")
        assert [m.refused.first_number for m in messages if m.HasField("refused")] == [1]
        assert list(_acknowledged(messages)) == [2]
        assert broker.core.status().open_publication_streams == 0

    def test_the_next_one_is_not_in_its_way(self) -> None:
        broker = _broker(stored_deadline_s=3.0)
        _publish(broker, 1)
        broker.run(4.0)
        broker.hear("ann")
        _publish(broker, 2)
        _has(broker, 2)
        assert list(_acknowledged(broker.hear("ann"))) == [2]


class TestInATree:
    def test_the_publishers_broker_hears_of_stores_itself(self) -> None:
        topology = Topology.from_mapping({"brokers": {"b0": "b0"}})
        broker = LoneBroker(CoreSettings(stores_needed=1), topology=topology)
        broker.connect("ann", bundles=True)
        broker.run(1.0)
        broker.hear("ann")
        _publish(broker, 1)
        broker.run(0.1)
        assert list(_acknowledged(broker.hear("ann"))) == []
        stream = tree_of(broker.core).forwarder.own_stream
        _has(broker, 1, term=stream + (1 << 22))
        assert list(_acknowledged(broker.hear("ann"))) == []
        _has(broker, 1, term=stream, store="s2")
        assert list(_acknowledged(broker.hear("ann"))) == [1]
