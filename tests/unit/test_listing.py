"""Names of topics stay in the catalogue while their topics live, whatever becomes of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from dynatops.v1.overlay_pb2 import Acknowledged
from overlay.base.catalogue import Entered, announcement_of, names_in, shard_topic
from overlay.base.context import Context
from overlay.base.counters import OverlayCounters
from overlay.base.effects import Announce
from overlay.base.identifiers import NodeId, TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.base.retention import LogBudget
from overlay.history.listing import Listing
from overlay.history.topic_log import Stamping, TopicLog
from tests.support.nodes import NodeNet, publication

TOPIC = "quake/ca"  # at 0.878 of the circle: n0's on a ring of 4
PART = "$topics/1c"  # n3's; n0 stands by


def names_of_part(part: str, count: int) -> list[str]:
    """Topics whose names belong there."""
    names: list[str] = []
    i = 0
    while len(names) < count:
        if shard_topic(f"topic/{i}") == part:
            names.append(f"topic/{i}")
        i += 1
    return names


class LoneListing:
    """Topics of one node, and a host that answers what it is told to."""

    def __init__(self, **settings: float) -> None:
        self.context = Context.of(
            Peer(NodeId(1), "b0", "b0"),
            replace(OverlaySettings(), **settings),  # type: ignore[arg-type]
            Random(1),
            OverlayCounters(),
        )
        self.listing = Listing(self.context)

    def asked(self) -> list[Announce]:
        effects = [e for e in self.context.effects if isinstance(e, Announce)]
        self.context.effects.clear()
        return effects

    def tick(self, now_s: float) -> list[str]:
        self.listing.tick(now_s)
        return [announce.topic for announce in self.asked()]

    def entered(
        self,
        topic: str,
        term: int,
        seq: int,
        *,
        claim: tuple[int, int] = (0, 0),
        lacks: bool = False,
    ) -> None:
        ack = Acknowledged(topic=shard_topic(topic), term=term, seq=seq, lacks_known=lacks)
        self.listing.entered(Entered(topic, claim, ack), 0.0, is_mine=True)


class TestRounds:
    def test_one_name_of_a_part_now_and_then_each_in_its_turn(self) -> None:
        lone = LoneListing(catalogue_check_s=5.0)
        names = names_of_part(PART, 3)
        for name in names:
            lone.entered(name, 7, 1)
        seen: list[str] = []
        for tenth in range(900):
            for name in lone.tick(tenth / 10):
                seen.append(name)
                lone.entered(name, 7, 3, claim=(7, 1))
        assert len(seen) == 17
        assert [Counter(seen[i : i + 3]) for i in range(0, 15, 3)] == [Counter(names)] * 5

    def test_all_of_many_once_in_a_round(self) -> None:
        lone = LoneListing(catalogue_check_s=5.0, catalogue_round_s=60.0)
        names = names_of_part(PART, 300)
        for name in names:
            lone.entered(name, 7, 1)
        seen: list[str] = []
        for tenth in range(660):
            for name in lone.tick(tenth / 10):
                seen.append(name)
                lone.entered(name, 7, 300, claim=(7, 1))
        assert set(seen) == set(names)
        assert len(seen) <= 330

    def test_while_there_is_no_answer_no_more_are_asked_for(self) -> None:
        lone = LoneListing(catalogue_check_s=5.0)
        for name in names_of_part(PART, 10):
            lone.entered(name, 7, 1)
        (asked,) = [name for second in range(60) for name in lone.tick(second)]
        # Its topic may have gone elsewhere meanwhile: an answer is an answer.
        lone.listing.remove(asked)
        ack = Acknowledged(topic=PART, term=7, seq=10)
        lone.listing.entered(Entered(asked, (7, 1), ack), 60.0, is_mine=False)
        (other,) = [name for second in range(60, 80) for name in lone.tick(second)]
        assert other != asked

    def test_topics_of_the_system_have_no_names(self) -> None:
        lone = LoneListing()
        lone.listing.add(PART, 0.0)
        lone.listing.remove(PART)
        assert [name for second in range(60) for name in lone.tick(second)] == []


class TestHistories:
    NAMES = names_of_part(PART, 4)

    @pytest.fixture
    def lone(self) -> LoneListing:
        lone = LoneListing()
        for seq, name in enumerate(self.NAMES, 1):
            lone.entered(name, 7, seq)
        lone.tick(1.0)
        return lone

    def claim(self, lone: LoneListing) -> tuple[int, int]:
        lone.listing.announce("another", 1.0)
        # Of another part, of which nothing is known.
        assert lone.asked()[0].known == (0, 0)
        lone.listing.announce(self.NAMES[0], 1.0)
        return lone.asked()[0].known

    def test_what_is_claimed_is_where_the_part_was_seen_last(self, lone: LoneListing) -> None:
        assert self.claim(lone) == (7, 4)

    def test_a_term_that_follows_proves_the_names_before_it(self, lone: LoneListing) -> None:
        lone.entered(self.NAMES[0], 9, 1, claim=(7, 4))
        assert self.claim(lone) == (9, 1)
        assert lone.tick(2.0) == []

    @pytest.mark.parametrize("term", [5, 9], ids=["older", "newer"])
    def test_of_another_history_all_are_announced_again_once(
        self, lone: LoneListing, term: int
    ) -> None:
        for seq in (1, 2):
            # Two were under way.
            lone.entered(self.NAMES[seq], term, seq, claim=(7, 4), lacks=True)
        assert self.claim(lone) == (term, 2)
        assert set(lone.tick(2.0)) == {self.NAMES[0], self.NAMES[3]}
        assert lone.context.counters.catalogue_parts_lost == 1
        assert lone.context.counters.names_announced_again == 2

    def test_an_answer_to_an_old_claim_from_another_term_proves_nothing(
        self, lone: LoneListing
    ) -> None:
        lone.entered(self.NAMES[0], 9, 1, claim=(7, 2))
        assert self.claim(lone) == (7, 4)
        assert lone.tick(2.0) == [self.NAMES[0]]

    def test_what_was_taken_over_is_announced_again_and_not_faster_than_it_may(self) -> None:
        lone = LoneListing(catalogue_names_per_s=10.0)
        for name in names_of_part(PART, 50):
            lone.listing.add(name, 0.0)
        lone.listing.add(names_of_part(PART, 1)[0], 0.0)
        seen = [len(lone.tick(second / 2)) for second in range(1, 12)]
        assert seen == [5] * 10 + [0]


class TestPart:
    """What who serves a part says of its history."""

    def test_a_repeat_enters_nothing_however_full_the_part_is(self) -> None:
        log = TopicLog(PART, replace(OverlaySettings(), catalogue_names_max=32 * 10), LogBudget(1))
        log.open_next_term(TermOwner(1))
        names = names_of_part(PART, 30)
        for name in names:
            log.stamp(announcement_of(name), 0.0)
        kept = names_in(log.runs())
        assert kept == names[-10:]
        for name in reversed(kept):
            assert log.stamp(announcement_of(name), 0.0)[0] is Stamping.REPEAT
        # The one asked after longest ago is not forgotten for one that comes.
        assert log.stamp(announcement_of(names[0]), 0.0)[0] is Stamping.NEW
        for name in kept[1:]:
            assert log.stamp(announcement_of(name), 0.0)[0] is Stamping.REPEAT
        # Names of topics that live come back at the expense of the oldest.
        assert names_in(log.runs()) == [*kept[1:], names[0]]

    @pytest.fixture
    def net(self) -> NodeNet:
        net = NodeNet()
        net.ring(i << 62 for i in range(4))
        net.publish("n1", publication(TOPIC, 1))
        net.run(1.0)
        return net

    def test_its_next_rendezvous_point_has_the_history(self, net: NodeNet) -> None:
        assert net.rendezvous_point(PART) == "n3"
        # Its name may have gone with it: it is another's topic.
        net.crash("n3")
        net.run(20.0)
        assert net.rendezvous_point(PART) == net.rendezvous_point(TOPIC) == "n0"
        assert net.nodes["n0"].counters.catalogue_parts_lost == 0
        assert 1 <= net.nodes["n0"].counters.names_announced_again <= 5

    def test_both_of_its_holders_die(self) -> None:
        net = NodeNet()
        net.ring(i << 61 for i in range(8))
        topics = [f"w/{i}" for i in range(60)]
        net.publish("n1", *(publication(topic, 1) for topic in topics))
        net.run(1.0)
        held = {
            topic: [n for n, node in net.nodes.items() if holds(node, topic)] for topic in topics
        }
        assert {len(names) for names in held.values()} == {2}
        victims = ["n3", "n4"]
        for name in victims:
            net.crash(name)
        live = [topic for topic in topics if set(held[topic]) != set(victims)]
        lost = [topic for topic in live if set(holders(net, shard_topic(topic))) <= set(victims)]
        assert len(lost) > 3
        net.run(net.settings.silence_s + net.settings.catalogue_check_s + 4.0)
        assert set(live) <= set(listed(net))
        assert sum(node.counters.catalogue_parts_lost for node in net.nodes.values()) >= 1


def holds(node: object, topic: str) -> bool:
    return topic in node.reigns.by_topic or topic in node.replication.copies  # type: ignore[attr-defined]


def holders(net: NodeNet, topic: str) -> list[str]:
    return [name for name, node in net.nodes.items() if holds(node, topic)]


def listed(net: NodeNet) -> list[str]:
    return [
        name
        for node in net.nodes.values()
        for topic, reign in node.reigns.by_topic.items()
        if topic.startswith("$topics/")
        for name in names_in(reign.log.runs())
    ]
