"""What a broker's core notes for the lake, and how counts have several takers."""

from __future__ import annotations

import pytest

from broker_agent.core.reports.logbook import LogbookPage
from broker_agent.core.routing.tallies import Tallies
from dynatops.v1.client_pb2 import Subscribe
from overlay.base.counters import OverlayCounters
from overlay.history.reigns import TopicTally
from simulator.disk import SimulatedDisk
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication


def logging_broker(rows_max: int = 100, disk: SimulatedDisk | None = None) -> LoneBroker:
    return LoneBroker(logged_rows_max=rows_max, disk=disk)


def page_of(broker: LoneBroker) -> LogbookPage:
    return broker.core.take_logbook_page(broker.now_s)


def sessions(page: LogbookPage) -> list[tuple[str, str]]:
    return [(row.user_id, row.op) for row in page.sessions]


def subscriptions(page: LogbookPage) -> list[tuple[str, str, str]]:
    return [(row.user_id, row.topic, row.op) for row in page.subscriptions]


class TestSessions:
    def test_come_and_go(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        broker.disconnect("ann")
        assert sessions(page_of(broker)) == [("ann", "open"), ("ann", "leave")]
        assert sessions(page_of(broker)) == []

    def test_are_kept_and_resumed_and_expire(self) -> None:
        broker = logging_broker()
        broker.connect("c1", client_id="ann", keep_s=10)
        broker.disconnect("c1")
        broker.connect("c2", client_id="ann", keep_s=10)
        broker.disconnect("c2")
        broker.run(13.0)
        assert [op for _, op in sessions(page_of(broker))] == [
            "open", "close", "resume", "close", "leave",
        ]  # fmt: skip

    def test_are_taken_over(self) -> None:
        broker = logging_broker()
        broker.connect("c1", client_id="ann", keep_s=10)
        broker.connect("c2", client_id="ann", keep_s=10)
        # The former connection ends; it has no session.
        broker.disconnect("c1")
        assert [op for _, op in sessions(page_of(broker))] == ["open", "close", "resume"]

    def test_end_before_the_client_begins_anew(self) -> None:
        broker = logging_broker()
        broker.connect("c1", client_id="ann", keep_s=10)
        broker.subscribe("c1", "fire")
        broker.connect("c2", client_id="ann", keep_s=10, clean=True)
        page = page_of(broker)
        assert [op for _, op in sessions(page)] == ["open", "leave", "open"]
        ops = [(row.at_us, row.op) for row in page.sessions]
        ops += [(row.at_us, row.op) for row in page.subscriptions]
        assert [op for _, op in sorted(ops)] == [
            "open",
            "subscribe",
            "unsubscribe",
            "leave",
            "open",
        ]

    def test_those_turned_away_are_no_rows(self) -> None:
        broker = logging_broker()
        broker.connect("old", protocol=99)
        broker.disconnect("old")
        assert len(page_of(broker)) == 0

    def test_have_the_place_that_the_client_says(self) -> None:
        broker = logging_broker()
        broker.connect("ann", latitude=48.2, longitude=16.4)
        broker.connect("bob", latitude=48.2)
        broker.disconnect("ann")
        rows = page_of(broker).sessions
        assert [row.place for row in rows] == [(48.2, 16.4), None, (48.2, 16.4)]
        assert broker.core.logbook._places == {}

    @pytest.mark.parametrize("place", [(91.0, 0.0), (0.0, -181.0), (float("nan"), 0.0)])
    def test_are_refused_to_clients_that_are_nowhere(self, place: tuple[float, float]) -> None:
        broker = logging_broker()
        broker.connect("ann", latitude=place[0], longitude=place[1])
        assert broker.is_closing("ann")
        assert len(page_of(broker)) == 0


class TestSubscriptions:
    def test_rows_are_changes(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        broker.subscribe("ann", "fire", "quake/+")
        broker.subscribe("ann", "fire")
        broker.unsubscribe("ann", "quake/+", "never")
        broker.disconnect("ann")
        assert subscriptions(page_of(broker)) == [
            ("ann", "fire", "subscribe"),
            ("ann", "quake/+", "subscribe"),
            ("ann", "quake/+", "unsubscribe"),
            ("ann", "fire", "unsubscribe"),
        ]

    def test_the_brokers_own_are_no_rows(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        # The catalogue is read for this.
        broker.subscribe("ann", "#")
        assert subscriptions(page_of(broker)) == [("ann", "#", "subscribe")]

    def test_each_row_has_an_instant_of_its_own(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        broker.subscribe("ann", *(f"t/{i}" for i in range(50)))
        page = page_of(broker)
        instants = [row.at_us for row in page.sessions]
        instants += [row.at_us for row in page.subscriptions]
        assert instants == sorted(set(instants))

    def test_restored_ones_are_rows_again(self) -> None:
        disk = SimulatedDisk()
        broker = logging_broker(disk=disk)
        broker.connect("ann", keep_s=100)
        broker.subscribe("ann", "fire")
        broker.flush()
        next_life = LoneBroker(disk=disk, life=2, logged_rows_max=10)
        assert subscriptions(page_of(next_life)) == [("ann", "fire", "subscribe")]

    def test_the_last_page_ends_what_is_left(self) -> None:
        broker = logging_broker()
        broker.connect("ann", keep_s=100)
        broker.subscribe("ann", "fire")
        broker.disconnect("ann")
        page_of(broker)
        page = broker.core.end_logbook(broker.now_s)
        assert sessions(page) == [("ann", "leave")]
        assert subscriptions(page) == [("ann", "fire", "unsubscribe")]


class TestCounts:
    def test_publications_and_their_windows(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        broker.run(0.5)
        broker.publish("ann", publication("fire", 1), publication("fire", 2))
        broker.run(0.5)
        page = page_of(broker)
        assert page.publications["fire"].events == 2
        assert page.publications["fire"].nbytes > 0
        assert page.until_us - page.since_us == pytest.approx(1_000_000, abs=2)
        broker.run(0.5)
        later = page_of(broker)
        assert "fire" not in later.publications
        assert later.since_us == page.until_us

    def test_who_comes_with_a_place_asks_for_the_past(self) -> None:
        broker = logging_broker()
        broker.connect("ann")
        # Anew: from now on.
        broker.subscribe("ann", "fire")
        assert page_of(broker).requests == {}
        for name in ("bob", "eve"):
            broker.connect(name)
            wanted = Subscribe(request=1, resume=True)
            wanted.filters.add(pattern="fire")
            broker.say(name, subscribe=wanted)
        assert page_of(broker).requests == {"fire": 2}


class TestBounds:
    def test_past_it_rows_are_dropped_and_counted(self) -> None:
        broker = logging_broker(rows_max=3)
        broker.connect("ann")
        broker.subscribe("ann", *(f"t/{i}" for i in range(5)))
        page = page_of(broker)
        assert (len(page), page.dropped) == (3, 3)
        broker.subscribe("ann", "t/6")
        page = page_of(broker)
        assert (len(page), page.dropped) == (1, 0)

    def test_without_room_nothing_is_noted(self) -> None:
        broker = LoneBroker()
        broker.connect("ann", latitude=1.0, longitude=1.0)
        broker.subscribe("ann", "fire")
        page = page_of(broker)
        assert (len(page), page.dropped, page.publications) == (0, 0, {})
        assert broker.core.logbook._places == {}


class TestTallies:
    def test_each_taker_gets_all_since_it_began(self) -> None:
        tallies = Tallies(100, OverlayCounters(), "tallies_dropped")
        tallies.open("lake")
        tallies.add({"fire": TopicTally(1, 10, 0)})
        tallies.open("manager")
        tallies.add({"fire": TopicTally(2, 20, 1)})
        assert tallies.take_tally("lake") == {"fire": TopicTally(3, 30, 1)}
        assert tallies.take_tally("lake") == {}
        tallies.add({"fire": TopicTally(4, 40, 0)})
        assert tallies.take_tally("manager") == {"fire": TopicTally(6, 60, 1)}
        assert tallies.take_tally("lake") == {"fire": TopicTally(4, 40, 0)}

    def test_to_begin_twice_loses_nothing(self) -> None:
        tallies = Tallies(100, OverlayCounters(), "tallies_dropped")
        for _ in range(2):
            tallies.open("lake")
            tallies.add({"fire": TopicTally(1, 1, 1)})
        assert tallies.take_tally("lake") == {"fire": TopicTally(2, 2, 2)}

    def test_strangers_get_nothing(self) -> None:
        tallies = Tallies(100, OverlayCounters(), "tallies_dropped")
        tallies.add({"fire": TopicTally(1, 1, 1)})
        assert tallies.take_tally("lake") == {}
