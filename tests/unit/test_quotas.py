"""What one token, or one session, may take of a broker: connections, filters, topics, time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.clients.gate import TOPIC_COUNTS_S, TopicsInUse
from broker_agent.core.rights.throttle import Allowance
from broker_agent.core.sessions.filter_requests import CONDITIONS_MAX, present_filters
from dynatops.kit.security.token_rights import TokenLimits
from dynatops.v1.client_pb2 import ErrorCode, Filter, Subscribe, TopicProblem
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication
from tests.unit.test_gate import broker_for, goodbye, rules

TOPIC = "quake/ca"


def subscribed(
    broker: LoneBroker, client: str, filters: Iterable[tuple[str, str]]
) -> list[TopicProblem]:
    wanted = [Filter(pattern=pattern, where=where) for pattern, where in filters]
    broker.hear(client)
    broker.say(client, subscribe=Subscribe(request=1, filters=wanted))
    broker.run(0.5)
    (answer,) = [m.subscribed for m in broker.hear(client) if m.HasField("subscribed")]
    return list(answer.problems)


def problems(broker: LoneBroker, client: str, *filters: tuple[str, str]) -> list[str]:
    found = subscribed(broker, client, filters)
    assert {p.code for p in found} <= {ErrorCode.ERROR_CODE_TOO_MANY_TOPICS}
    return [problem.topic for problem in found]


def test_an_allowance_is_there_again_after_a_while() -> None:
    allowance = Allowance(100, refill_s=10.0)
    allowance.use(60, 5.0)
    assert not allowance.is_used_up(5.0)
    allowance.use(60, 5.0)
    assert allowance.is_used_up(5.0)
    assert allowance.is_used_up(6.9)
    assert not allowance.is_used_up(7.1)


class TestConnections:
    def broker(self) -> LoneBroker:
        return broker_for(limits=TokenLimits(connections=2))

    def test_further_ones_are_turned_away(self) -> None:
        broker = self.broker()
        for name in ("a", "b", "c"):
            broker.connect(name, token="all")
        last = goodbye(broker, "c")
        assert last.code == ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS
        assert last.message == "the token 'all' has 2 connections with this broker already"
        assert broker.core.counters.connections_over_quota == 1

    def test_absent_sessions_do_not_count(self) -> None:
        broker = self.broker()
        for name in ("a", "b"):
            broker.connect(name, token="all", keep_s=60)
            broker.disconnect(name)
        for name in ("c", "d"):
            broker.connect(name, token="all")
            assert broker.kinds(name) == ["welcome"]

    def test_who_comes_for_its_session_takes_its_own_place(self) -> None:
        broker = self.broker()
        broker.connect("a", token="all", client_id="ann")
        broker.connect("b", token="all")
        for connection in ("a2", "a3"):
            broker.connect(connection, token="all", client_id="ann")
            assert broker.kinds(connection) == ["welcome"]
            broker.disconnect({"a2": "a", "a3": "a2"}[connection])

    def test_other_tokens_have_their_own(self) -> None:
        broker = self.broker()
        for name in ("a", "b"):
            broker.connect(name, token="all")
        broker.connect("c", token="none")
        assert broker.kinds("c") == ["welcome"]


class TestFilters:
    def test_all_sessions_of_a_token_share_a_limit(self) -> None:
        broker = broker_for(limits=TokenLimits(filters=3))
        broker.connect("a", token="all")
        broker.connect("b", token="all")
        assert problems(broker, "a", ("x", ""), ("y", "")) == []
        assert problems(broker, "b", ("x", ""), ("y", "")) == ["y"]
        # What is there is no further one.
        assert problems(broker, "b", ("x", "size < 1")) == []
        broker.unsubscribe("a", "y")
        assert problems(broker, "b", ("y", "")) == []
        broker.disconnect("a")
        assert problems(broker, "b", ("z", "")) == []
        assert broker.core.counters.filters_over_quota == 1

    def test_those_of_a_session_that_comes_back_count_again(self) -> None:
        broker = broker_for(limits=TokenLimits(filters=2))
        for connection in ("c1", "c2"):
            broker.connect(connection, token="all", client_id="ann", keep_s=60)
            if connection == "c1":
                assert problems(broker, "c1", ("x", ""), ("y", "")) == []
            broker.disconnect(connection)
        broker.connect("b", token="all")
        assert problems(broker, "b", ("z", "")) == ["z"]


class TestCosts:
    """A filter counts with what it takes to ask it."""

    def broker(self, **settings: int) -> LoneBroker:
        broker = LoneBroker(replace(CoreSettings(), **settings))
        broker.run(0.3)
        broker.connect("ann")
        return broker

    def condition(self, tests: int, number: int = 0) -> str:
        return " and ".join(f"a{i} > {number}" for i in range(tests))

    def test_tests_of_one_topic_are_bounded(self) -> None:
        broker = self.broker(condition_tests_max=20)
        wanted = [(TOPIC, self.condition(8, number)) for number in range(3)]
        assert problems(broker, "ann", *wanted) == [TOPIC]
        # Another topic has its own.
        assert problems(broker, "ann", ("other", self.condition(8)), ("other", "")) == []
        assert problems(broker, "ann", (TOPIC, self.condition(8, 7))) == [TOPIC]

    def test_those_of_wildcards_are_together(self) -> None:
        broker = self.broker(condition_tests_max=20)
        wanted = [(f"{level}/+", self.condition(8)) for level in "abc"]
        assert problems(broker, "ann", *wanted) == ["c/+"]

    def test_wildcards_are_bounded(self) -> None:
        broker = self.broker(wildcards_per_session_max=2)
        assert problems(broker, "ann", ("a/+", ""), ("b/#", ""), ("c/+", ""), ("d", "")) == ["c/+"]

    def test_conditions_of_a_request_are_read_up_to_a_bound(self) -> None:
        broker = self.broker(condition_bytes_max=100)
        wanted = [(f"{letter}/x", self.condition(8)) for letter in "abc"]
        assert problems(broker, "ann", *wanted, ("d", "")) == ["b/x", "c/x"]
        assert problems(broker, "ann", wanted[1]) == []

    def test_what_a_session_does_not_have_is_given_up_without_being_read(self) -> None:
        broker = self.broker()
        assert problems(broker, "ann", ("here", "a < 1")) == []
        gone = [Filter(pattern=f"elsewhere/{i}", where=f"a < {i}") for i in range(50)]
        gone += [Filter(pattern="here", where=f"b < {i}") for i in range(500)]
        assert len(present_filters(gone, broker.core.registry.clients["ann"])) == CONDITIONS_MAX

    @pytest.mark.parametrize("when", ["at once", "once the catalogue is read"])
    def test_names_that_a_request_is_compared_with_are_bounded(self, when: str) -> None:
        broker = self.broker(wildcard_names_max=1_500)
        broker.connect("pub")
        for levels in product("ab", repeat=6):
            broker.publish("pub", publication("/".join(levels), 1))
        broker.run(1.0)
        if when == "at once":
            broker.connect("bob")
            assert problems(broker, "bob", ("nothing/+", "")) == []
        patterns = ["/".join(levels) for levels in product("+a", repeat=6)][:20]
        refused = problems(broker, "ann", *((pattern, "") for pattern in patterns))
        assert 0 < len(refused) < 20
        session = broker.core.registry.clients["ann"]
        assert set(session.filters) == set(patterns) - set(refused)
        # Another request gets no more of it, later ones do.
        assert problems(broker, "ann", ("+/b/#", "")) == ["+/b/#"]
        broker.run(20.0)
        assert problems(broker, "ann", ("+/b/#", "")) == []
        broker.unsubscribe("ann", "+/b/#")
        # What was granted works.
        broker.publish("pub", publication("/".join("a" * 6), 2, settled=1))
        broker.run(0.2)
        assert [run.topic for run in broker.runs("ann")] == ["a/a/a/a/a/a"]


class TestTopics:
    def refusals(self, broker: LoneBroker, *topics: str) -> list[str]:
        broker.hear("ann")
        for topic in topics:
            broker.publish("ann", publication(topic, 1))
        refused = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert {r.code for r in refused} <= {ErrorCode.ERROR_CODE_TOO_MANY_TOPICS}
        return [r.topic for r in refused]

    @pytest.mark.parametrize("where", ["token", "settings"])
    def test_those_that_a_token_publishes_on_are_bounded(self, where: str) -> None:
        of_token = where == "token"
        core = CoreSettings() if of_token else CoreSettings(topics_per_token_max=2)
        broker = broker_for(core=core, limits=TokenLimits(topics=2) if of_token else None)
        broker.connect("ann", token="all")
        assert self.refusals(broker, "a", "b", "c", "a", "d") == ["c", "d"]
        assert broker.core.counters.topics_over_quota == 2

    def test_one_that_is_left_alone_makes_room(self) -> None:
        topics = TopicsInUse()
        assert topics.use("a", 2, 0.0)
        assert topics.use("b", 2, 10.0)
        assert not topics.use("c", 2, TOPIC_COUNTS_S - 1)
        assert topics.use("a", 2, TOPIC_COUNTS_S)
        assert topics.use("c", 2, TOPIC_COUNTS_S + 10)
        assert not topics.use("b", 2, TOPIC_COUNTS_S + 10)

    def test_without_tokens_there_is_no_bound(self) -> None:
        broker = LoneBroker(CoreSettings(topics_per_token_max=1))
        broker.connect("ann")
        assert self.refusals(broker, "a", "b") == []


class TestClaims:
    """Client ids that are one token's alone, at every broker that knows the rules."""

    def test_others_are_refused_them(self) -> None:
        claiming = rules("billing", client_ids=("billing-*",), claim_client_ids=True)
        broker = broker_for(claiming)
        broker.connect("x", client_id="billing-1", token="all")
        last = goodbye(broker, "x")
        assert last.code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED
        assert last.message == (
            "the client id 'billing-1' is kept for the clients of another token"
        )
        broker.connect("y", client_id="billing-1", token="billing")
        broker.connect("z", client_id="other", token="all")
        assert broker.kinds("y") == broker.kinds("z") == ["welcome"]

    def test_a_token_that_replaces_another_claims_the_same(self) -> None:
        claims = {"client_ids": ("billing-*",), "claim_client_ids": True}
        broker = broker_for(rules("old", **claims), rules("new", **claims))
        for token in ("old", "new"):
            broker.connect(token, client_id=f"billing-{token}", token=token)
            assert broker.kinds(token) == ["welcome"]
