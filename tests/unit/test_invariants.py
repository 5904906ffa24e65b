"""INV-16: what holds of one broker after every input, broken here on purpose, each in its turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId, SaveNow
from broker_agent.core.invariants import check_invariants
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.sessions.session import Session
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

TOPIC = "quake/ca"


def busy(settings: CoreSettings | None = None) -> LoneBroker:
    """Ann has a session, with answers and events that wait; Bob's is kept, and he is not here."""
    broker = LoneBroker(settings)
    for name, keep_s in (("ann", 0), ("bob", 600)):
        broker.connect(name, keep_s=keep_s)
        broker.subscribe(name, TOPIC, "news/+")
    broker.hear("bob")
    broker.publish("ann", *(publication(TOPIC, number) for number in range(1, 5)))
    broker.core.take_output(ConnectionId("bob"), 1)
    broker.disconnect("bob")
    broker.run(0.5)
    return broker


def session_of(broker: LoneBroker, name: str) -> Session:
    return broker.core.registry.clients[name]


def lose_connection(broker: LoneBroker) -> None:
    del broker.core.registry.connections[ConnectionId("ann")]


def mix_up_connections(broker: LoneBroker) -> None:
    broker.core.registry.connections[ConnectionId("x")] = session_of(broker, "ann")


def mix_up_clients(broker: LoneBroker) -> None:
    broker.core.registry.clients["x"] = session_of(broker, "ann")


def forget_the_absent(broker: LoneBroker) -> None:
    session_of(broker, "ann").connection = None


def miscount_bytes(broker: LoneBroker) -> None:
    session_of(broker, "ann")._bytes += 1


def miscount_events(broker: LoneBroker) -> None:
    session_of(broker, "bob")._events -= 1


def miscount_sent(broker: LoneBroker) -> None:
    session_of(broker, "bob")._sent_bytes += 1


def miscount_answers(broker: LoneBroker) -> None:
    session_of(broker, "ann").answers_bytes += 1


def repeat_a_delivery(broker: LoneBroker) -> None:
    bob = session_of(broker, "bob")
    pieces = bob._pieces or []
    pieces.append(pieces[-1])
    bob._bytes += pieces[-1].content.nbytes
    bob._events += pieces[-1].events


def forget_a_topic(broker: LoneBroker) -> None:
    session_of(broker, "ann").filters["news"] = ()


def forget_a_reader(broker: LoneBroker) -> None:
    (entry,) = [ring_of(broker.core).subscriptions.readers.get(TOPIC)]
    assert entry is not None
    entry.live.members.clear()


def forget_to_leave(broker: LoneBroker) -> None:
    ring_of(broker.core).node.want("old", broker.now_s)


def forget_to_join(broker: LoneBroker) -> None:
    ring_of(broker.core).node.unwant(TOPIC, broker.now_s)


def miscount_open(broker: LoneBroker) -> None:
    ring_of(broker.core).publishing.unsettled_bytes += 1


def settle_twice(broker: LoneBroker) -> None:
    session_of(broker, "ann").unsettled_bytes -= 1


def leave_an_effect(broker: LoneBroker) -> None:
    broker.core._outbox.do(SaveNow())


@pytest.mark.parametrize(
    ("break_it", "violation"),
    [
        (lose_connection, "of 'ann' has connection ann, which is not here"),
        (mix_up_connections, "connection x leads to a session that has ann"),
        (mix_up_clients, "of 'ann' is found as that of client 'x'"),
        (forget_the_absent, "2 sessions have no connection, and 1 are waited for"),
        (miscount_bytes, "of 'ann': .* bytes are queued, and .* counted"),
        (miscount_events, "of 'bob': 4 events are queued, and 3 counted"),
        (miscount_sent, "bytes have been sent and not taken, and"),
        (miscount_answers, "bytes of answers are queued, and 1 counted"),
        (repeat_a_delivery, "deliveries are out of order"),
        (forget_a_topic, "wants 'news', which is not read for it"),
        (forget_a_reader, f"{TOPIC!r} is read for nobody"),
        (forget_to_leave, "'old' is wanted by the node, and not read"),
        (forget_to_join, f"{TOPIC!r} is read, and no tree of the node's"),
        (miscount_open, "0 bytes of publications are open, and 1 counted"),
        (settle_twice, "of 'ann' has -1 bytes of publications open"),
        (leave_an_effect, "1 effects left over"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_is_noticed(break_it: Callable[[LoneBroker], None], violation: str) -> None:
    broker = busy()
    assert check_invariants(broker.core) == []
    break_it(broker)
    found = check_invariants(broker.core)
    with pytest.raises(AssertionError, match=violation):
        assert not found, "\n".join(found)


def test_more_sessions_than_there_may_be() -> None:
    broker = busy()
    broker.core.settings = CoreSettings(sessions_max=1)
    assert "there are 2 sessions; the bound is 1" in check_invariants(broker.core)
