"""Bundles at one broker: what is refused of them, and what a slow subscriber is told."""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.rights.access import Access
from dynatops.kit.bundles import Bundle
from dynatops.kit.security.token_rights import TokenLimits, TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.client_pb2 import ErrorCode, ServerMessage
from dynatops.v1.overlay_pb2 import AckLevel
from tests.support.brokers import LoneBroker

TOKEN = "t0ken"
TOPICS = ("t/0", "t/1", "t/2")


class Bundled:
    """A publisher that sends bundles to a broker."""

    def __init__(self, settings: CoreSettings | None = None, access: Access | None = None) -> None:
        self.broker = LoneBroker(settings, access=access)
        self.broker.connect("publisher", bundles=True, token=TOKEN)
        self.broker.run(0.3)
        self._numbers: dict[str, int] = {}

    @property
    def publisher(self) -> int:
        return self.broker.core.registry.connections[ConnectionId("publisher")].publisher

    def publish(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._numbers[topic] = self._numbers.get(topic, 0) + 1
        numbers = [self._numbers[topic] for topic in topics]
        count = len(topics)
        bundle = Bundle(self.publisher, topics, numbers, [1] * count, [b"x"] * count)
        bundle.pending = [0] * count
        bundle.ack = AckLevel.ACK_LEVEL_REPLICATED
        self.broker.say("publisher", bundle=bundle.to_wire())

    def hear(self, client: str) -> list[ServerMessage]:
        return self.broker.hear(client)


def test_what_is_dropped_is_told_once_of_each_topic() -> None:
    bundled = Bundled(CoreSettings(session_queue_events_max=4, reader_patience_s=0.001))
    bundled.broker.connect("reader", bundles=True)
    bundled.broker.subscribe("reader", *TOPICS)
    for _ in range(2):
        bundled.publish(TOPICS)
        bundled.broker.run(1.0)
        bundled.hear("reader")
    # Three fit; the next ones are dropped, until it reads.
    for _ in range(4):
        bundled.publish(TOPICS)
    assert bundled.broker.core.counters.dropped_events == 9
    heard = bundled.hear("reader")
    assert len(heard[0].bundle.topics) == 3
    assert {(m.missed.topic, m.missed.count) for m in heard[1:]} == {(t, 3) for t in TOPICS}
    bundled.publish(TOPICS)
    (last,) = bundled.hear("reader")
    assert [*last.bundle.topics] == [*TOPICS]


def test_what_was_dropped_is_told_before_what_follows() -> None:
    bundled = Bundled(CoreSettings(session_queue_events_max=6, reader_patience_s=0.001))
    bundled.broker.connect("reader", bundles=True)
    bundled.broker.subscribe("reader", *TOPICS)
    bundled.publish(TOPICS)
    bundled.broker.run(1.0)
    bundled.hear("reader")
    bundled.publish(TOPICS)
    bundled.publish(TOPICS)
    bundled.publish(TOPICS[:1])
    session = bundled.broker.core.registry.connections[ConnectionId("reader")]
    assert session.untold()
    # Room again, for one event only, as its client takes what it can.
    session.take_output(1, bundled.broker.now_s)
    bundled.publish(TOPICS[:1])
    kinds = [str(message.WhichOneof("body")) for message in bundled.hear("reader")]
    assert kinds == ["bundle", "missed", "bundle"]


def test_what_is_not_allowed_is_counted_once() -> None:
    rules = TokenRules(
        name="ann", sha256=hash_of(TOKEN), publish=("t/0", "t/1"), limits=TokenLimits(topics=1)
    )
    bundled = Bundled(access=Access(CoreSettings(), [rules]))
    bundled.publish(("t/0",))
    bundled.broker.run(0.5)
    bundled.hear("publisher")
    bundled.publish(TOPICS)
    refused = [m.refused for m in bundled.hear("publisher") if m.HasField("refused")]
    assert {(each.topic, each.code) for each in refused} == {
        ("t/1", ErrorCode.ERROR_CODE_TOO_MANY_TOPICS),
        ("t/2", ErrorCode.ERROR_CODE_NOT_ALLOWED),
    }
    counters = bundled.broker.core.counters
    assert (counters.publish_not_allowed, counters.topics_over_quota) == (1, 1)
    bundled.broker.run(0.5)
    # What is allowed of it has gone its way.
    assert counters.published_events == 2
