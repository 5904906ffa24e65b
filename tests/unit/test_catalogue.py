"""Names of topics get into the catalogue, once, before anything of the topic is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dynatops.kit import topics
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Acknowledged,
    Adopt,
    Event,
    Events,
    PeerFrame,
    Publication,
    Replicate,
    Run,
)
from overlay.base import catalogue
from overlay.base.catalogue import Entered, announcement_of, names_in, shard_topic, shard_topics
from overlay.base.effects import Accepted, Announce
from overlay.base.identifiers import TermOwner, key_of
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget
from overlay.history.topic_log import Merging, Stamping, TopicLog
from tests.support.nodes import NodeNet, publication

TOPIC = "quake/ca"  # at 0.878 of the circle: n0's on a ring of 4
SHARD = "$topics/1c"  # n3's


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    return net


def carries_announcements(frame: PeerFrame) -> bool:
    return any(p.topic == SHARD for m in frame.messages for p in m.publish.publications)


def lose_if(net: NodeNet, loses: Callable[[PeerFrame], bool]) -> None:
    net.drops = lambda source, destination, frame: loses(frame)


def lose_nothing(net: NodeNet) -> None:
    lose_if(net, lambda frame: False)


def announcements(net: NodeNet, topic: str = TOPIC) -> list[str]:
    """Which nodes asked for it, in order, not knowing that it had been announced before."""
    return [
        name
        for _, name, effect in net.effects
        if isinstance(effect, Announce) and effect.topic == topic and not effect.again
    ]


def listed(net: NodeNet, shard: str = SHARD) -> list[str]:
    return names_in(net.nodes[net.rendezvous_point(shard)].reigns.by_topic[shard].log.runs())


class TestNames:
    def test_shards_divide_the_keys_evenly(self) -> None:
        assert shard_topics()[0] == "$topics/00"
        assert shard_topics()[-1] == "$topics/1f"
        assert len(shard_topics()) == catalogue.CATALOGUE_SHARDS
        assert {shard_topic(f"topic/{i}") for i in range(1_000)} == set(shard_topics())
        assert shard_topic(TOPIC) == f"$topics/{key_of(TOPIC) >> 59:02x}" == SHARD

    def test_what_is_the_systems_is_what_clients_may_not_name(self) -> None:
        assert catalogue.SYSTEM_PREFIX == topics.RESERVED_PREFIX
        assert all(map(catalogue.is_system, shard_topics()))
        assert all(map(catalogue.is_catalogue, shard_topics()))
        assert not catalogue.is_system(TOPIC)

    def test_an_announcement_is_the_only_event_of_its_publisher(self) -> None:
        one, other = announcement_of("quake/ca"), announcement_of("quake/nv")
        assert one == announcement_of("quake/ca")
        assert one.publisher not in {other.publisher, key_of("quake/ca")}
        assert (one.first_number, one.count) == (1, 1)
        run = Run(events=one.events)
        assert names_in([run, Run(events=other.events)]) == ["quake/ca", "quake/nv"]

    def test_what_is_no_name_is_left_out(self) -> None:
        no_text = Events(events=[Event(payload=b"\xff")]).SerializeToString()
        assert names_in([Run(events=b"\xff\xff"), Run(events=no_text)]) == []


class TestAnnouncing:
    def test_a_topic_is_announced_with_its_first_event_and_never_again(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        assert announcements(net) == []
        for number in range(1, 4):
            net.publish("n1", publication(TOPIC, number))
            net.run(0.5)
        assert announcements(net) == ["n0"]
        assert listed(net) == [TOPIC]
        assert net.acknowledged("n1", TOPIC) == 3

    def test_topics_of_the_system_are_not_announced(self, net: NodeNet) -> None:
        net.publish("n1", publication(TOPIC, 1))
        net.run(1.0)
        assert [e for *_, e in net.effects if isinstance(e, Announce)] == [Announce(TOPIC)]

    def test_an_announcement_that_is_lost_is_sent_again(self, net: NodeNet) -> None:
        lose_if(net, carries_announcements)
        net.publish("n1", publication(TOPIC, 1))
        net.run(0.3)
        lose_nothing(net)
        net.run(1.0)
        assert listed(net) == [TOPIC]
        assert net.acknowledged("n1", TOPIC) == 1

    def test_refused_numbers_make_no_topic(self, net: NodeNet) -> None:
        refused = Publication(
            topic=TOPIC, publisher=7, first_number=1, count=2, void=True,
            ack=AckLevel.ACK_LEVEL_REPLICATED,
        )  # fmt: skip
        net.publish("n1", refused)
        net.run(1.0)
        assert announcements(net) == []
        assert net.acknowledged("n1", TOPIC) == 2


class TestAcknowledgements:
    """The catalogue is out of reach; then it is not."""

    @pytest.fixture
    def net(self, net: NodeNet) -> NodeNet:
        net.want("n2", TOPIC)
        net.run(1.0)
        lose_if(net, carries_announcements)
        return net

    @pytest.mark.parametrize("level", ["RP", "REPLICATED"])
    def test_they_wait_and_events_do_not(self, net: NodeNet, level: str) -> None:
        ack = AckLevel.Value(f"ACK_LEVEL_{level}")
        net.publish("n1", publication(TOPIC, 1, ack=ack))
        net.publish("n1", publication(TOPIC, 2, ack=ack))
        net.run(3.0)
        assert net.delivered("n2", TOPIC) == [1, 2]
        assert net.acknowledged("n1", TOPIC) == 0
        lose_nothing(net)
        net.run(3.0)
        assert net.acknowledged("n1", TOPIC) == 2

    def test_who_asked_for_none_is_not_made_to_wait(self, net: NodeNet) -> None:
        net.publish("n1", publication(TOPIC, 1, ack=AckLevel.ACK_LEVEL_NONE))
        net.run(0.1)
        assert net.acknowledged("n1", TOPIC) == 1
        assert announcements(net) == ["n0"]

    def test_unless_it_would_acknowledge_what_waits(self, net: NodeNet) -> None:
        net.publish("n1", publication(TOPIC, 1))
        net.publish("n1", publication(TOPIC, 2, ack=AckLevel.ACK_LEVEL_NONE))
        net.run(0.1)
        assert net.acknowledged("n1", TOPIC) == 0

    def test_retries_do_not_pile_up_and_publishers_are_bounded(self, net: NodeNet) -> None:
        reign = net.nodes["n0"].reigns.by_topic[TOPIC]
        for _ in range(5):
            net.publish("n1", publication(TOPIC, 1), publication(TOPIC, 2))
            net.run(0.1)
        assert [held[2].number for held in (reign.held or {}).values()] == [2]
        most = net.settings.publishers_max
        net.publish("n1", *(publication(TOPIC, 1, publisher=100 + i) for i in range(most)))
        net.run(0.1)
        assert len(reign.held or {}) == most

    def test_an_announced_topic_still_waits_for_its_replica(self, net: NodeNet) -> None:
        net.publish("n1", publication(TOPIC, 1))
        net.run(0.1)
        lose_if(net, lambda frame: any(m.HasField("replica_ack") for m in frame.messages))
        net.publish("n1", publication(TOPIC, 2))
        net.run(0.1)
        ack = Acknowledged(topic=SHARD, publisher=announcement_of(TOPIC).publisher, number=1)
        net.perform("n0", net.nodes["n0"].announced([Entered(TOPIC, (0, 0), ack)], net.now_s))
        net.run(0.1)
        assert net.acknowledged("n1", TOPIC) == 0
        lose_nothing(net)
        net.run(1.0)
        assert net.acknowledged("n1", TOPIC) == 2


class TestTakeOver:
    def crash(self, net: NodeNet) -> None:
        net.crash("n0")
        net.run(8.0)
        assert net.rendezvous_point(TOPIC) == "n1"

    @pytest.mark.parametrize("has_state", [True, False])
    def test_an_announced_topic_is_not_announced_again(
        self, net: NodeNet, *, has_state: bool
    ) -> None:
        if has_state:
            net.want("n2", TOPIC)
            net.run(1.0)
        net.publish("n1", publication(TOPIC, 1))
        net.run(1.0)
        assert net.nodes["n1"].replication.copies[TOPIC].log.announced
        self.crash(net)
        net.publish("n2", publication(TOPIC, 2, settled=1))
        net.run(0.5)
        assert announcements(net) == ["n0"]
        assert net.acknowledged("n2", TOPIC) == 2

    def test_a_topic_that_was_not_yet_is_and_its_acknowledgements_wait(self, net: NodeNet) -> None:
        lose_if(net, carries_announcements)
        net.publish("n2", publication(TOPIC, 1))
        net.run(1.0)
        self.crash(net)
        net.publish("n2", publication(TOPIC, 1))
        net.run(1.0)
        assert net.acknowledged("n2", TOPIC) == 0
        lose_nothing(net)
        net.run(3.0)
        assert announcements(net) == ["n0", "n1"]
        assert listed(net) == [TOPIC]
        assert net.acknowledged("n2", TOPIC) == 1

    def test_a_replica_that_was_not_told_announces_again_and_the_name_is_there_once(
        self, net: NodeNet
    ) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        lose_if(net, lambda frame: any(m.replicate.announced for m in frame.messages))
        net.publish("n2", publication(TOPIC, 1))
        net.run(1.0)
        assert net.acknowledged("n2", TOPIC) == 1
        lose_nothing(net)
        self.crash(net)
        assert announcements(net) == ["n0", "n1"]
        assert listed(net) == [TOPIC]

    def test_it_is_handed_over_with_the_topic(self, net: NodeNet) -> None:
        net.publish("n2", publication(TOPIC, 1))
        net.run(1.0)
        net.add("late", ["n1"], int(0.9 * (1 << 64)))
        net.settle()
        net.run(1.0)
        assert net.rendezvous_point(TOPIC) == "late"
        assert announcements(net) == ["n0"]

    def test_the_catalogue_outlives_its_rendezvous_point(self, net: NodeNet) -> None:
        net.publish("n2", publication(TOPIC, 1))
        net.run(1.0)
        assert net.rendezvous_point(SHARD) == "n3"
        net.crash("n3")
        net.run(8.0)
        assert listed(net) == [TOPIC]


def test_of_two_histories_either_may_know_that_the_topic_is_announced() -> None:
    def log(*, announced: bool, events: int) -> TopicLog:
        log = TopicLog(TOPIC, OverlaySettings(), LogBudget(1 << 20))
        log.open_next_term(TermOwner(events))
        for number in range(1, events + 1):
            log.stamp(publication(TOPIC, number), 0.0)
        log.announced = announced
        return log

    for events, outcome in ((0, Merging.NOTHING), (1, Merging.JOINED)):
        history = log(announced=False, events=2)
        assert history.merge(log(announced=True, events=events), TermOwner(9))[0] is outcome
        assert history.announced
    blank = log(announced=True, events=0)
    assert blank.merge(log(announced=False, events=2), TermOwner(9))[0] is Merging.REPLACED
    assert blank.announced


def test_a_replica_learns_it_from_a_state_and_does_not_unlearn_it(net: NodeNet) -> None:
    owner, replica = net.nodes["n0"].me, net.nodes["n1"]
    log = TopicLog(TOPIC, OverlaySettings(), LogBudget(1 << 20))
    for announced in (False, True, False):
        if not announced:
            log.open_next_term(owner.term_owner)
        log.announced = announced
        frame = PeerFrame(sender=owner.ref, to=replica.me.node_id)
        frame.messages.add(replicate=Replicate(states=[log.to_state([])]))
        before = TOPIC in replica.replication.copies
        replica.handle(frame, net.now_s)
        assert replica.replication.copies[TOPIC].log.announced is before


@pytest.mark.parametrize("events_there", [0, 1])
def test_a_history_from_beyond_a_partition_releases_what_was_held_back(
    net: NodeNet, events_there: int
) -> None:
    lose_if(net, carries_announcements)
    net.publish("n1", publication(TOPIC, 1))
    net.run(1.0)
    assert net.acknowledged("n1", TOPIC) == 0
    there = TopicLog(TOPIC, OverlaySettings(), LogBudget(1 << 20))
    there.open_next_term(net.nodes["n2"].me.term_owner)
    for number in range(1, events_there + 1):
        there.stamp(publication(TOPIC, number, publisher=8), 0.0)
    there.announced = True
    sender = net.nodes["n2"].me.ref
    frame = PeerFrame(sender=sender, to=net.nodes["n0"].me.node_id)
    frame.messages.add(adopt=Adopt(state=there.to_state([]), origin=sender))
    net.perform("n0", net.nodes["n0"].handle(frame, net.now_s))
    net.run(1.0)
    assert net.acknowledged("n1", TOPIC) == 1


class TestBounds:
    def part(self, **bounds: int) -> TopicLog:
        log = TopicLog(SHARD, OverlaySettings(**bounds), LogBudget(2_000))
        log.open_next_term(TermOwner(1))
        return log

    def enter(self, log: TopicLog, *names: str) -> None:
        for name in names:
            announcement = announcement_of(name)
            announcement.topic = SHARD
            outcome, _ = log.stamp(announcement, 0.0)
            assert outcome is Stamping.NEW

    def test_a_part_has_its_share_of_all_names_and_the_oldest_go(self) -> None:
        log = self.part(catalogue_names_max=32 * 10)
        names = [f"topic/{i}" for i in range(25)]
        self.enter(log, *names)
        assert names_in(log.runs()) == names[-10:]
        assert len(log.publishers) == 10
        # One that went may come again.
        self.enter(log, names[0])
        assert names_in(log.runs()) == [*names[-9:], names[0]]

    def test_a_part_has_so_many_bytes(self) -> None:
        log = self.part(catalogue_part_bytes_max=3_000)
        self.enter(log, *(f"topic/{i}" for i in range(25)))
        assert log.nbytes <= 3_000
        assert 5 < log.events < 25

    def test_names_give_way_to_nobodys_events(self) -> None:
        budget = LogBudget(2_000)
        log = TopicLog(SHARD, OverlaySettings(), budget)
        log.open_next_term(TermOwner(1))
        self.enter(log, *(f"topic/{i}" for i in range(50)))
        busy = TopicLog("t", OverlaySettings(), budget)
        busy.open_next_term(TermOwner(1))
        for number in range(1, 30):
            busy.stamp(publication("t", number), 0.0)
        assert log.events == 50
        assert budget.used == busy.nbytes <= 2_000
        log.discard()
        assert budget.used == busy.nbytes

    def test_dropped_names_are_counted(self) -> None:
        net = NodeNet(settings=replace(OverlaySettings(), catalogue_names_max=32))
        net.ring([0])
        for i in range(100):
            net.publish("n0", publication(f"topic/{i}", 1))
        net.run(0.2)
        counters = net.nodes["n0"].counters
        assert counters.catalogue_names_dropped == 100 - 32
        assert all(net.acknowledged("n0", f"topic/{i}") == 1 for i in range(100))

    def test_names_stay_when_their_topics_are_forgotten(self) -> None:
        net = NodeNet(settings=replace(OverlaySettings(), topic_idle_s=30.0))
        net.ring(i << 62 for i in range(4))
        net.publish("n1", publication(TOPIC, 1))
        net.run(60.0)
        assert TOPIC not in net.nodes["n0"].reigns.by_topic
        assert listed(net) == [TOPIC]
        net.publish("n1", publication(TOPIC, 2, settled=1))
        net.run(0.5)
        assert net.acknowledged("n1", TOPIC) == 2
        assert announcements(net) == ["n0", "n0"]
        assert listed(net) == [TOPIC]


def test_on_a_ring_of_one_the_name_is_there_before_the_acknowledgement() -> None:
    net = NodeNet()
    net.ring([5])
    net.publish("n0", publication(TOPIC, 1))
    assert net.acknowledged("n0", TOPIC) == 1
    accepted = [e.ack.acknowledged[0].topic for *_, e in net.effects if isinstance(e, Accepted)]
    assert accepted == [SHARD, TOPIC]
