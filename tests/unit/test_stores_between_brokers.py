"""Stores of several brokers, whichever way events travel: what is acknowledged as stored is stored.

Brokers are wired together in memory, and their logs are real ones, on disks that work.
"""

from __future__ import annotations

import pytest

from dynatops.v1.manager_pb2 import STORE_ASSIGN, Step
from dynatops.v1.overlay_pb2 import AckLevel
from tests.support.routings import ROUTINGS, MakeRouting
from tests.support.store_brokers import StoreBrokers
from tests.support.wired_brokers import WiredBrokers

STORED = AckLevel.ACK_LEVEL_STORED
NAMES = ("b0", "b1", "b2", "b3")
STORES = {"b0": ["quake/#"], "b3": ["quake/#"]}
TOPIC = "quake/ca"


@pytest.fixture(params=list(ROUTINGS.values()), ids=list(ROUTINGS))
def routing(request: pytest.FixtureRequest) -> MakeRouting:
    made: MakeRouting = request.param
    return made


@pytest.fixture
def net(routing: MakeRouting) -> WiredBrokers:
    net = WiredBrokers(routing, NAMES, stores=STORES)
    net.connect("pub", "b1")
    return net


def numbered(first: int, count: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


def publish(net: WiredBrokers, first: int, count: int) -> None:
    for payload in numbered(first, count):
        net.publish("pub", TOPIC, payload, ack=STORED)


def acknowledged(net: WiredBrokers) -> int:
    return net.clients["pub"].acknowledged(TOPIC)


def test_what_is_acknowledged_is_on_the_disks_of_both(net: WiredBrokers) -> None:
    publish(net, 1, 20)
    net.run(3.0)
    assert acknowledged(net) == 20
    for store in STORES:
        assert net.stored(store, TOPIC) == numbered(1, 20)


def test_it_waits_for_a_store_that_is_away(net: WiredBrokers) -> None:
    publish(net, 1, 5)
    net.run(2.0)
    net.crash("b3")
    publish(net, 6, 5)
    net.run(3.0)
    assert acknowledged(net) == 5
    net.restart("b3")
    net.run(10.0)
    assert acknowledged(net) == 10
    assert net.stored("b3", TOPIC) == numbered(1, 10)


def test_stores_that_restart_one_after_the_other_have_everything_once(net: WiredBrokers) -> None:
    for store, first in (("b0", 1), ("b3", 11), ("b0", 21)):
        publish(net, first, 10)
        net.run(1.0)
        net.crash(store)
        net.run(2.0)
        net.restart(store)
    net.run(10.0)
    assert acknowledged(net) == 30
    for store in STORES:
        assert net.stored(store, TOPIC) == numbered(1, 30)


def test_what_was_acknowledged_is_there_after_all_were_killed(net: WiredBrokers) -> None:
    publish(net, 1, 15)
    net.run(3.0)
    assert acknowledged(net) == 15
    publish(net, 16, 5)
    for name in NAMES:
        net.crash(name)
    for name in NAMES:
        net.restart(name)
    for store in STORES:
        assert net.stored(store, TOPIC)[:15] == numbered(1, 15)
    later = net.connect("later", "b2")
    for payload in numbered(21, 5):
        net.publish("later", TOPIC, payload, ack=STORED)
    net.run(10.0)
    assert later.acknowledged(TOPIC) == 5
    for store in STORES:
        assert net.stored(store, TOPIC)[-5:] == numbered(21, 5)


def test_a_store_keeps_what_it_is_told_and_remembers_that() -> None:
    net = WiredBrokers(ROUTINGS["rendezvous"], NAMES, stores={"b0": [], "b3": [TOPIC]}, capacity=2)
    net.connect("pub", "b1")
    net.publish("pub", TOPIC, *numbered(1, 5))
    net.run(2.0)
    # A new replica begins while the other one goes on.
    net.step("b0", Step(fence=1, plan="p1-1", epoch=1, kind=STORE_ASSIGN, keep=[TOPIC]))
    net.run(2.0)
    publish(net, 6, 5)
    net.run(2.0)
    assert acknowledged(net) == 10
    assert net.stored("b0", TOPIC) == net.stored("b3", TOPIC) == numbered(1, 10)
    # And then the other one leaves, and knows of it after a restart.
    net.step("b3", Step(fence=1, plan="p1-1", epoch=2, kind=STORE_ASSIGN, keep=[]))
    net.crash("b3")
    net.restart("b3")
    net.crash("b0")
    net.restart("b0")
    net.publish("pub", TOPIC, *numbered(11, 5))
    net.run(3.0)
    assert net.stored("b0", TOPIC) == numbered(1, 15)
    assert net.stored("b3", TOPIC) == numbered(1, 10)


def test_a_replica_moves_with_all_that_only_the_former_stores_disk_has() -> None:
    stores: dict[str, list[str]] = {"b0": [], "b3": [TOPIC]}
    net = StoreBrokers(ROUTINGS["rendezvous"], NAMES, stores, capacity=2)
    net.connect("pub", "b1")
    net.publish("pub", TOPIC, *numbered(1, 30))
    net.run(3.0)
    # Nobody else remembers anything.
    for name in NAMES:
        net.crash(name)
    for name in NAMES:
        net.restart(name)
    net.run(10.0)

    def ready() -> bool:
        report = net.cores["b0"].load_report(net.now_s, full=True).store
        return [(unit.pattern, unit.ready) for unit in report.keeps] == [(TOPIC, True)]

    net.step("b0", Step(fence=1, plan="p1-1", epoch=1, kind=STORE_ASSIGN, keep=[TOPIC]))
    assert not ready()
    end_s = net.now_s + 60.0
    while not ready():
        assert net.now_s < end_s, "the new replica does not catch up"
        net.run(1.0)
    net.step("b3", Step(fence=1, plan="p1-1", epoch=2, kind=STORE_ASSIGN, keep=[]))
    net.crash("b3")
    net.run(10.0)
    asked = net.ask("b1", TOPIC)
    assert asked.payloads == numbered(1, 30)
    assert asked.lossy == 0
