"""Stores that get from each other what their logs lack, whichever way events travel.

Brokers are wired together in memory, and remember few events themselves; the logs are real ones, on
disks that work, but where a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from broker_agent.core.routing.forwarding.forwarding import in_tree
from broker_agent.core.routing.rendezvous.rendezvous import on_ring
from broker_agent.core.stores.log.log_requests import UnitExtent
from broker_agent.core.stores.log.recovery import segment_name
from dynatops.v1.overlay_pb2 import AckLevel, PastError
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.stores.past_settings import PastSettings
from tests.support.routings import MakeRouting, chain
from tests.support.store_brokers import StoreBrokers

REPLICATED = AckLevel.ACK_LEVEL_REPLICATED
STORED = AckLevel.ACK_LEVEL_STORED
NAMES = ("b0", "b1", "b2", "b3")
STORES = {"b0": ["quake/#"], "b3": ["quake/#"]}
TOPIC = "quake/ca"
# So few events brokers remember.
FEW = 5

FORGETFUL: Mapping[str, MakeRouting] = {
    "rendezvous": lambda names: on_ring(OverlaySettings(log_events_max=FEW)),
    "forwarding": lambda names: in_tree(
        chain(names), ForwardingSettings(tree_log_entries_max=FEW, own_log_entries_max=FEW)
    ),
}


@pytest.fixture(params=list(FORGETFUL.values()), ids=list(FORGETFUL))
def routing(request: pytest.FixtureRequest) -> MakeRouting:
    made: MakeRouting = request.param
    return made


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%040d" % number for number in range(first, first + count)]


class CatchingUpBrokers(StoreBrokers):
    def __init__(
        self,
        routing: MakeRouting,
        stores: Mapping[str, Sequence[str]] = STORES,
        past: PastSettings | None = None,
    ) -> None:
        super().__init__(routing, NAMES, stores, past)
        self.published = 0
        self.connect("pub", "b1")
        # Whoever subscribes with a wildcard hears of the topic.
        self.publish_more(1)

    def restart_empty(self, name: str) -> None:
        """Until something has come from other stores; not all."""
        self.forget_disk(name)
        self.begin(name)
        end_s = self.now_s + 30.0
        while not self.counted(name)["catch_up_events"]:
            assert self.now_s < end_s
            self.run(0.05)

    def publish_more(self, count: int, topic: str = TOPIC) -> list[bytes]:
        payloads = numbered(self.published + 1, count)
        for payload in payloads:
            self.publish("pub", topic, payload, ack=REPLICATED)
        self.published += count
        self.run(2.0)
        return payloads

    def all(self) -> list[bytes]:
        return numbered(1, self.published)

    def has(self, name: str, topic: str = TOPIC) -> list[bytes]:
        """In the order of numbers: what filled a hole is later in the log."""
        return sorted(self.stored(name, topic), key=int)

    def counted(self, name: str) -> dict[str, int]:
        return self.cores[name].storing.past.counters.as_dict()


def test_a_store_with_an_empty_disk_gets_the_whole_past(routing: MakeRouting) -> None:
    net = CatchingUpBrokers(routing)
    net.publish_more(30)
    net.crash("b3")
    net.forget_disk("b3")
    net.publish_more(10)
    net.restart("b3")
    assert net.has("b3") == net.all()
    net.publish_more(10)
    assert net.has("b3") == net.has("b0") == net.all()
    assert net.counted("b3")["catch_up_events"] >= 20
    # What it was given is served as if it had always been there.
    net.crash("b0")
    net.run(20.0)
    asked = net.ask("b1", TOPIC)
    assert (sorted(asked.payloads, key=int), asked.error) == (net.all(), 0)


def test_a_store_that_was_away_for_long_gets_what_it_missed(routing: MakeRouting) -> None:
    net = CatchingUpBrokers(routing)
    net.publish_more(10)
    net.crash("b3")
    net.publish_more(60)
    net.restart("b3")
    net.run(10.0)
    assert net.has("b3") == net.all()
    net.publish_more(5)
    net.run(10.0)
    assert net.has("b3") == net.all()
    # On the ring another life of the topic may have begun; what was before it nobody can say.
    assert extents(net, "b3") == extents(net, "b0")


def extents(net: CatchingUpBrokers, name: str) -> Mapping[str, UnitExtent]:
    return net.logs[name].extents()


def damage(net: CatchingUpBrokers, name: str) -> None:
    """A bit flips in the first events that are on that disk; nobody knows yet."""
    raw = net.files(name).of(segment_name(1))
    at = raw.find(numbered(5, 1)[0])
    raw[at] ^= 0x10


def test_what_is_damaged_is_had_again_from_another_store(routing: MakeRouting) -> None:
    net = CatchingUpBrokers(routing)
    for _ in range(8):
        net.publish_more(5)
    damage(net, "b3")
    # Whoever reads finds it.
    net.ask("b3", TOPIC)
    assert net.logs["b3"].counters.log_frames_damaged == 1
    assert len(net.has("b3")) < 41
    net.run(150.0)
    assert net.has("b3") == net.all()
    assert net.is_ready("b3")


def test_damage_that_is_found_at_the_start_is_mended(routing: MakeRouting) -> None:
    net = CatchingUpBrokers(routing)
    for _ in range(8):
        net.publish_more(5)
    net.crash("b3")
    damage(net, "b3")
    net.restart("b3")
    net.run(20.0)
    assert net.has("b3") == net.all()


def test_all_start_at_once_with_different_logs(routing: MakeRouting) -> None:
    """Each has what no other one has."""
    net = CatchingUpBrokers(routing)
    net.publish_more(10)
    net.crash("b0")
    net.publish_more(20)
    net.crash("b3")
    net.restart("b0")
    net.publish_more(20)
    held = {name: set(net.has(name)) for name in ("b0",)}
    for name in ("b0", "b1", "b2"):
        net.crash(name)
    net.restart(*NAMES)
    net.run(20.0)
    assert set(net.has("b3")) >= held["b0"] | set(numbered(1, 30))
    assert net.has("b0") == net.has("b3")


def test_a_peer_that_dies_in_the_middle_is_gone_on_with(routing: MakeRouting) -> None:
    past = PastSettings(portion_bytes=600, catch_up_bytes=1_000)
    net = CatchingUpBrokers(routing, {**STORES, "b2": ["quake/#"]}, past)
    net.publish_more(60)
    net.crash("b3")
    net.restart_empty("b3")
    asked = net.cores["b3"].storing.past.readiness.asked
    assert len(net.has("b3")) < 60
    net.crash(asked)
    net.run(60.0)
    assert net.has("b3") == net.all()
    assert net.is_ready("b3")


def test_a_full_disk_holds_it_up_and_no_more(routing: MakeRouting) -> None:
    past = PastSettings(portion_bytes=600, catch_up_bytes=1_000)
    net = CatchingUpBrokers(routing, past=past)
    for _ in range(12):
        net.publish_more(5)
    net.crash("b3")
    net.restart_empty("b3")
    net.files("b3").room_bytes = 0
    net.run(30.0)
    assert len(net.has("b3")) < 60
    assert not net.is_ready("b3")
    # No more came than may be under way.
    assert net.counted("b3")["catch_up_events"] < 60
    net.files("b3").room_bytes = 1 << 40
    net.run(30.0)
    assert net.has("b3") == net.all()
    assert net.is_ready("b3")


def test_clients_do_not_find_a_store_that_catches_up(routing: MakeRouting) -> None:
    net = CatchingUpBrokers(routing, {"b3": ["quake/#"], "b0": ["news/#"]})
    net.publish_more(10)
    net.crash("b3")
    net.begin("b3")
    net.run(1.0)
    assert net.ask("b0", TOPIC).error == PastError.PAST_ERROR_NOT_STORED
    net.run(20.0)
    assert net.ask("b0", TOPIC).payloads == net.all()


def test_what_was_published_before_a_store_began_is_proven(routing: MakeRouting) -> None:
    """It waits for a second store, which is given it by the first one."""
    net = CatchingUpBrokers(routing, past=PastSettings(catch_up_again_s=0.5))
    net.publish_more(20)
    net.crash("b3")
    net.forget_disk("b3")
    net.publish("pub", TOPIC, b"22", ack=STORED)
    net.publish("pub", TOPIC, b"23", ack=REPLICATED)
    net.run(2.0)
    assert net.clients["pub"].acknowledged(TOPIC) == 21
    net.restart("b3")
    net.run(5.0)
    assert net.clients["pub"].acknowledged(TOPIC) == 23
