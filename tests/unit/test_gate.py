"""What a broker with tokens says to its clients, and how it keeps them to their limits."""

from __future__ import annotations

from typing import Any

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.rights.access import Access
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.kit.security.token_rights import TokenLimits, TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.client_pb2 import ErrorCode, Goodbye
from tests.support.brokers import LoneBroker
from tests.support.nodes import events, publication

TOPIC = "quake/ca"


def rules(name: str, **fields: Any) -> TokenRules:
    return TokenRules(name=name, sha256=hash_of(name), **fields)


def broker_for(
    *tokens: TokenRules, core: CoreSettings | None = None, limits: TokenLimits | None = None
) -> LoneBroker:
    """With the tokens "all", to which the limits apply, "none", and others."""
    settings = core or CoreSettings()
    every = rules("all", publish=("#",), subscribe=("#",), limits=limits or TokenLimits())
    return LoneBroker(settings, access=Access(settings, [every, rules("none"), *tokens]))


def goodbye(broker: LoneBroker, client: str) -> Goodbye:
    (last,) = [m.goodbye for m in broker.hear(client) if m.HasField("goodbye")]
    return last


class TestLettingIn:
    @pytest.mark.parametrize(
        ("token", "message"),
        [
            ("", "this broker asks for a token, and none was given"),
            ("guess", "this broker does not know the token"),
        ],
    )
    def test_nobody_without_a_token(self, token: str, message: str) -> None:
        broker = broker_for()
        broker.connect("ann", token=token)
        said = goodbye(broker, "ann")
        assert (said.code, said.message) == (ErrorCode.ERROR_CODE_NOT_AUTHENTICATED, message)
        assert broker.is_closing("ann")
        assert broker.core.counters.authentication_refused == 1

    def test_what_comes_behind_a_refused_hello_is_ignored(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="guess")
        broker.subscribe("ann", TOPIC)
        broker.publish("ann", publication(TOPIC, 1))
        assert broker.kinds("ann") == ["goodbye"]
        assert ring_of(broker.core).node.interests.wanted == []

    def test_a_token_has_so_many_sessions(self) -> None:
        broker = broker_for(limits=TokenLimits(sessions=1))
        broker.connect("ann", token="all")
        broker.connect("bob", token="all")
        assert goodbye(broker, "bob").code == ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS
        broker.disconnect("bob")
        broker.disconnect("ann")
        broker.connect("eve", token="all")
        assert broker.kinds("eve") == ["welcome"]

    def test_a_connection_that_says_nothing_is_ended(self) -> None:
        broker = broker_for(core=CoreSettings(hello_timeout_s=2.0))
        broker.keep(broker.core.open_connection(ConnectionId("ann"), broker.now_s))
        broker.run(1.5)
        assert not broker.is_closing("ann")
        broker.run(1.0)
        assert goodbye(broker, "ann").message == "no hello within 2 s"
        assert broker.core.counters.hello_timeouts == 1

    def test_connections_that_say_nothing_are_few(self) -> None:
        broker = broker_for(core=CoreSettings(unnamed_max=1))
        broker.keep(broker.core.open_connection(ConnectionId("ann"), broker.now_s))
        broker.connect("bob", token="all")
        assert goodbye(broker, "bob").code == ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS
        assert broker.core.counters.connections_refused == 1
        broker.say("ann", hello={"protocol": 1, "token": "all"})
        assert broker.kinds("ann") == ["welcome"]


class TestRules:
    def test_publishing_elsewhere_is_refused_and_leaves_no_trace(self) -> None:
        broker = broker_for(rules("here", publish=("here/#",), subscribe=("#",)))
        broker.connect("ann", token="here")
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        broker.publish("ann", publication(TOPIC, 1))
        (message,) = broker.hear("ann")
        assert message.refused.code == ErrorCode.ERROR_CODE_NOT_ALLOWED
        assert message.refused.last_number == 1
        assert "token 'here' does not allow" in message.refused.message
        assert broker.core.counters.publish_not_allowed == 1
        assert ring_of(broker.core).publishing.open_streams == 0
        broker.publish("ann", publication("here/now", 1))
        assert broker.kinds("ann") == ["acknowledged"]

    def test_nobody_can_use_up_the_numbers_of_another(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="all")
        broker.connect("eve", token="none")
        broker.hear("ann")
        forged = publication(TOPIC, 1, count=50)
        forged.events = events(b"x" * (2 << 20))
        broker.publish("eve", forged)
        broker.publish("ann", publication(TOPIC, 1))
        (message,) = broker.hear("ann")
        assert message.acknowledged.number == 1

    def test_subscribing_elsewhere_is_refused_and_the_rest_is_not(self) -> None:
        broker = broker_for(rules("here", subscribe=("here/#",)))
        broker.connect("ann", token="here")
        broker.hear("ann")
        broker.subscribe("ann", TOPIC, "here/now")
        (answer,) = broker.hear("ann")
        (problem,) = answer.subscribed.problems
        assert (problem.topic, problem.code) == (TOPIC, ErrorCode.ERROR_CODE_NOT_ALLOWED)
        assert ring_of(broker.core).node.interests.wanted == ["here/now"]
        assert broker.core.counters.subscribe_not_allowed == 1

    def test_limits_of_subscriptions_and_payloads_are_the_tokens(self) -> None:
        broker = broker_for(limits=TokenLimits(subscriptions=1, payload_bytes=10))
        broker.connect("ann", token="all")
        (message,) = broker.hear("ann")
        assert message.welcome.payload_bytes_max == 10
        broker.subscribe("ann", "a", "b")
        (answer,) = broker.hear("ann")
        assert [p.code for p in answer.subscribed.problems] == [
            ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
        ]
        large = publication("b", 1)
        large.events = events(b"x" * 11)
        broker.publish("ann", large)
        (refusal,) = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert refusal.code == ErrorCode.ERROR_CODE_PAYLOAD_TOO_LARGE


class TestRates:
    def test_a_publisher_is_made_to_wait_and_then_goes_on(self) -> None:
        broker = broker_for(limits=TokenLimits(publish_events_per_s=10))
        broker.connect("ann", token="all")
        broker.publish("ann", publication(TOPIC, 1, count=10))
        assert not broker.is_paused("ann")
        broker.publish("ann", publication(TOPIC, 11, count=20))
        assert broker.is_paused("ann")
        assert broker.core.counters.throttle_pauses == 1
        broker.run(1.9)
        assert broker.is_paused("ann")
        broker.run(0.2)
        assert not broker.is_paused("ann")
        assert "refused" not in broker.kinds("ann")

    def test_bytes_count_too(self) -> None:
        broker = broker_for(limits=TokenLimits(publish_bytes_per_s=1_000))
        broker.connect("ann", token="all")
        large = publication(TOPIC, 1)
        large.events = events(b"x" * 1_500)
        broker.publish("ann", large)
        assert broker.is_paused("ann")

    def test_the_clients_of_a_token_share_its_rate(self) -> None:
        broker = broker_for(limits=TokenLimits(publish_events_per_s=10))
        broker.connect("ann", token="all")
        broker.connect("bob", token="all")
        broker.publish("ann", publication(TOPIC, 1, count=10))
        broker.publish("bob", publication("other", 1))
        assert not broker.is_paused("ann")
        assert broker.is_paused("bob")

    def test_one_that_left_in_debt_comes_back_in_debt(self) -> None:
        broker = broker_for(limits=TokenLimits(publish_events_per_s=10))
        broker.connect("ann", token="all")
        broker.publish("ann", publication(TOPIC, 1, count=100))
        broker.disconnect("ann")
        broker.connect("bob", token="all")
        broker.publish("bob", publication("other", 1))
        broker.run(5.0)
        assert broker.is_paused("bob")

    def test_what_would_wait_for_too_long_is_refused(self) -> None:
        core = CoreSettings(throttle_wait_max_s=5.0)
        broker = broker_for(core=core, limits=TokenLimits(publish_events_per_s=1))
        broker.connect("ann", token="all")
        broker.hear("ann")
        broker.publish("ann", publication(TOPIC, 1, count=20), publication(TOPIC, 21))
        (refused,) = [m.refused for m in broker.hear("ann") if m.HasField("refused")]
        assert refused.code == ErrorCode.ERROR_CODE_TOO_FAST
        assert refused.first_number == 21
        broker.run(21.0)
        assert not broker.is_paused("ann")
        broker.publish("ann", publication(TOPIC, 22))
        assert broker.kinds("ann") == ["acknowledged"]

    def test_waiting_for_a_rate_and_for_room_must_both_be_over(self) -> None:
        settings = CoreSettings(publish_window_bytes=100)
        every = rules("all", publish=("#",), limits=TokenLimits(publish_events_per_s=1))
        broker = LoneBroker(settings, joining=True, access=Access(settings, [every]))
        broker.connect("ann", token="all")
        large = publication(TOPIC, 1, count=4)
        large.events = events(*[b"x" * 50] * 4)
        broker.publish("ann", large)
        broker.found_a_ring()
        broker.run(1.5)
        assert not broker.core.registry.clients["ann"].paused
        assert broker.is_paused("ann")
        broker.run(2.0)
        assert not broker.is_paused("ann")


class TestNewRules:
    def replace(self, broker: LoneBroker, *tokens: TokenRules) -> None:
        access = Access(broker.core.settings, tokens)
        broker.keep(broker.core.replace_access(access, broker.now_s))

    def test_hold_at_once(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="none")
        broker.hear("ann")
        self.replace(broker, rules("none", publish=("#",)))
        broker.publish("ann", publication(TOPIC, 1))
        assert broker.kinds("ann") == ["acknowledged"]

    def test_end_sessions_whose_token_is_gone(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="all")
        broker.connect("bob", token="none")
        self.replace(broker, rules("none"))
        assert goodbye(broker, "ann").code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED
        assert not broker.is_closing("bob")

    def test_end_sessions_that_hear_what_they_may_not(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="all")
        broker.subscribe("ann", TOPIC)
        self.replace(broker, rules("all", subscribe=("quake/#",)))
        assert not broker.is_closing("ann")
        self.replace(broker, rules("all", subscribe=("fire/#",)))
        assert goodbye(broker, "ann").code == ErrorCode.ERROR_CODE_NOT_ALLOWED

    def test_sessions_are_still_counted(self) -> None:
        broker = broker_for()
        broker.connect("ann", token="all")
        self.replace(broker, rules("all", limits=TokenLimits(sessions=1)))
        broker.connect("bob", token="all")
        assert goodbye(broker, "bob").code == ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS
        broker.disconnect("bob")
        broker.disconnect("ann")
        broker.connect("eve", token="all")
        assert broker.kinds("eve") == ["welcome"]
