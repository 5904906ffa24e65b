"""Sessions as operators see them."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.broker import Broker
from dynatops.v1.client_pb2 import Filter, Hello, Subscribe
from dynatops.v1.inspection_pb2 import DescribeSessionRequest, ListSessionsRequest, SessionsReport
from dynatops.v1.overlay_pb2 import TermSeq
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication


def names(page: SessionsReport) -> list[str]:
    return [session.client_id for session in page.sessions]


def page(core: Broker, **request: object) -> SessionsReport:
    return core.list_sessions(ListSessionsRequest(**request))  # type: ignore[arg-type]


def keep(broker: LoneBroker, client: str, expiry_s: int = 60) -> None:
    """A client whose session outlives its connection."""
    broker.say(client, hello=Hello(protocol=1, client_id=client, expiry_s=expiry_s))


class TestPages:
    def test_pages_are_in_the_order_of_ids(self) -> None:
        broker = LoneBroker()
        assert not page(broker.core).sessions
        for client in ("d", "a", "c", "b"):
            broker.connect(client)
        first = page(broker.core, limit=3)
        assert (names(first), first.more) == (["a", "b", "c"], True)
        second = page(broker.core, limit=3, after="c")
        assert (names(second), second.more) == (["d"], False)

    def test_a_prefix(self) -> None:
        broker = LoneBroker()
        for client in ("a", "ab", "abc", "abd", "b"):
            broker.connect(client)
        assert names(page(broker.core, prefix="ab")) == ["ab", "abc", "abd"]
        some = page(broker.core, prefix="ab", limit=1, after="ab")
        assert (names(some), some.more) == (["abc"], True)
        last = page(broker.core, prefix="ab", limit=1, after="abc")
        assert (names(last), last.more) == (["abd"], False)
        assert names(page(broker.core, prefix="x")) == []
        assert names(page(broker.core, prefix="ab", after="a")) == ["ab", "abc", "abd"]

    def test_who_went_since_the_first_page_is_not_on_the_second(self) -> None:
        broker = LoneBroker()
        for client in "abcd":
            broker.connect(client)
        assert names(page(broker.core, limit=1)) == ["a"]
        broker.disconnect("b")
        rest = page(broker.core, after="a", limit=2)
        assert (names(rest), rest.more) == (["c", "d"], False)
        broker.connect("e")
        assert names(page(broker.core)) == ["a", "c", "d", "e"]

    def test_one_goes_and_another_comes(self) -> None:
        broker = LoneBroker()
        broker.connect("a")
        assert names(page(broker.core)) == ["a"]
        broker.disconnect("a")
        broker.connect("b")
        assert names(page(broker.core)) == ["b"]

    def test_a_page_has_a_limit_of_its_own(self) -> None:
        broker = LoneBroker(CoreSettings(unnamed_max=2_000))
        for i in range(1_001):
            broker.connect(f"{i:04}")
        first = page(broker.core, limit=5_000)
        assert (len(first.sessions), first.more) == (1_000, True)


class TestReports:
    def test_connected_and_away(self) -> None:
        broker = LoneBroker()
        broker.core.open_connection("ann", broker.now_s)  # type: ignore[arg-type]
        keep(broker, "ann")
        broker.subscribe("ann", "quake/ca", "fire")
        broker.hear_all("ann")
        (session,) = page(broker.core).sessions
        assert session.connected
        assert (session.absent_s, session.keep_s, session.expires_in_s) == (0, 60, 60)
        assert (session.filters, session.queued_events, session.delivered_events) == (2, 0, 0)
        broker.disconnect("ann")
        broker.connect("publisher")
        broker.publish("publisher", publication("quake/ca", 1, count=3))
        broker.run(10.0)
        (session, _) = page(broker.core).sessions
        assert not session.connected
        assert abs(session.absent_s - 10) < 0.2
        assert abs(session.expires_in_s - 50) < 0.2
        assert (session.queued_events, session.delivered_events) == (3, 3)
        assert session.queued_bytes > 0

    def test_details(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        filters = [Filter(pattern="quake/#", where="a<1.0"), Filter(pattern="fire")]
        broker.say("ann", subscribe=Subscribe(request=1, filters=filters))
        broker.connect("publisher")
        for topic in ("quake/1", "quake/2"):
            broker.publish("publisher", publication(topic, 1))
        broker.run(1.0)
        details = broker.core.describe_session(DescribeSessionRequest(client_id="ann"))
        assert details.session.client_id == "ann"
        assert details.session.followed_topics == 2
        assert [(f.pattern, f.where) for f in details.filters] == [
            ("fire", ""),
            ("quake/#", "a < 1"),
        ]
        assert list(details.catching_up) == []
        nobody = broker.core.describe_session(DescribeSessionRequest(client_id="nobody"))
        assert not nobody.HasField("session")

    def test_topics_that_it_has_not_caught_up_with(self) -> None:
        broker = LoneBroker(joining=True)
        broker.connect("ann")
        behind = Subscribe(request=1, filters=[Filter(pattern="fire")], resume=True)
        behind.cursors.add(topic="fire", seen=[TermSeq(term=1, seq=1)])
        broker.say("ann", subscribe=behind)
        details = broker.core.describe_session(DescribeSessionRequest(client_id="ann"))
        assert list(details.catching_up) == ["fire"]


class TestIds:
    def test_what_reports_call_a_session_gives_nobody_the_power_to_end_it(self) -> None:
        broker = LoneBroker()
        broker.core.open_connection("ann", broker.now_s)  # type: ignore[arg-type]
        keep(broker, "ann")
        session = broker.core.registry.clients["ann"]
        (report,) = page(broker.core).sessions
        assert report.session_id == session.session_id[: -len("-0123456789abcdef")]
        assert not session.is_called(report.session_id)

    def test_so_it_is_after_a_restart(self) -> None:
        broker = LoneBroker()
        broker.core.open_connection("ann", broker.now_s)  # type: ignore[arg-type]
        keep(broker, "ann")
        session = broker.core.registry.clients["ann"]
        first = session.shown_id
        session.session_id = session.renamed(session.session_id)
        assert session.shown_id == f"{first}~{first}"
