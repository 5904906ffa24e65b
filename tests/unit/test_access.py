"""Rules of tokens: what they grant, what their file may say, how rates are kept."""

from __future__ import annotations

from typing import Any

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.rights.access import (
    Access,
    Grant,
    Refusal,
    RefusalReason,
)
from broker_agent.core.rights.throttle import Bucket
from dynatops.kit.security.token_rights import TokenLimits, TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.kit.security.tokens_file import TokensError, parse_tokens
from dynatops.v1.client_pb2 import ErrorCode
from tests.support.security import table

CORE = CoreSettings()


def rules(name: str = "app", **fields: Any) -> TokenRules:
    return TokenRules(name=name, sha256=hash_of(name), **fields)


def granted(client_id: str = "app-1", **fields: Any) -> Grant:
    grant = Access(CORE, [rules(**fields)]).authenticate("app", client_id)
    assert isinstance(grant, Grant)
    return grant


def refused(token: str, client_id: str, **fields: Any) -> RefusalReason:
    refusal = Access(CORE, [rules(**fields)]).authenticate(token, client_id)
    assert isinstance(refusal, Refusal)
    return refusal.reason


class TestAuthentication:
    def test_without_a_file_everyone_may_do_everything(self) -> None:
        access = Access(CORE)
        grant = access.authenticate("whatever", "")
        assert isinstance(grant, Grant)
        assert grant.may_publish("a")
        assert grant.may_subscribe("#")
        assert grant.settings is CORE
        assert access.inspector("") is None

    def test_with_an_empty_file_nobody_gets_in(self) -> None:
        refusal = Access(CORE, []).authenticate("app", "x")
        assert isinstance(refusal, Refusal)
        assert refusal.code == ErrorCode.ERROR_CODE_NOT_AUTHENTICATED

    def test_who_has_not_been_let_in_may_do_nothing(self) -> None:
        grant = Grant(CORE)
        assert not grant.may_publish("a")
        assert not grant.may_subscribe("a")

    @pytest.mark.parametrize(
        ("token", "client_id", "fields", "reason"),
        [
            ("", "x", {}, RefusalReason.TOKEN_MISSING),
            ("App", "x", {}, RefusalReason.TOKEN_UNKNOWN),
            (hash_of("app"), "x", {}, RefusalReason.TOKEN_UNKNOWN),
            ("app", "x", {"client_ids": ("y",)}, RefusalReason.CLIENT_ID_NOT_ALLOWED),
            ("app", "x", {"client_ids": ()}, RefusalReason.CLIENT_ID_NOT_ALLOWED),
            ("app", "", {"publish": ("a/%c",)}, RefusalReason.CLIENT_ID_UNFIT),
            ("app", "+", {"publish": ("a/%c",)}, RefusalReason.CLIENT_ID_UNFIT),
            ("app", "#", {"subscribe": ("a/%c",)}, RefusalReason.CLIENT_ID_UNFIT),
            ("app", "x/y", {"subscribe": ("a/%c",)}, RefusalReason.CLIENT_ID_UNFIT),
            ("app", "$x", {"subscribe": ("%c/a",)}, RefusalReason.CLIENT_ID_UNFIT),
        ],
    )
    def test_who_is_turned_away(
        self, token: str, client_id: str, fields: dict[str, Any], reason: RefusalReason
    ) -> None:
        assert refused(token, client_id, **fields) is reason

    @pytest.mark.parametrize(
        ("pattern", "client_id", "fits"),
        [
            ("*", "", True),
            ("app-*", "app-1", True),
            ("app-*", "my-app-1", False),
            ("app-*", "app-", True),
            ("a*z", "abcz", True),
            ("a*z", "abc", False),
            ("a.c", "abc", False),
            ("[ab]", "a", False),
            ("app-*", "app-\n1", True),
        ],
    )
    def test_client_ids(self, pattern: str, client_id: str, fits: bool) -> None:
        assert rules(client_ids=(pattern,)).allows_client(client_id) is fits

    def test_inspecting_is_a_right_of_its_own(self) -> None:
        access = Access(CORE, [rules("see", inspect=True), rules("blind", publish=("#",))])
        assert access.inspector("see") is None
        refusal = access.inspector("blind")
        assert refusal is not None
        assert refusal.reason is RefusalReason.MAY_NOT_INSPECT
        refusal = access.inspector("")
        assert refusal is not None
        assert refusal.reason is RefusalReason.TOKEN_MISSING


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "topic", "allowed"),
        [
            ("quake/ca", "quake/ca", True),
            ("quake/+", "quake/ca", True),
            ("quake/+", "quake/ca/la", False),
            ("quake/#", "quake/ca/la", True),
            ("quake/#", "quakes", False),
            ("%c/in", "app-1/in", True),
            ("%c/in", "app-2/in", False),
            ("%c/in", "%c/in", False),
            ("to-%c", "to-app-1", True),
        ],
    )
    def test_publishing(self, rule: str, topic: str, allowed: bool) -> None:
        assert granted(publish=(rule,)).may_publish(topic) is allowed
        assert not granted(subscribe=(rule,)).may_publish(topic)

    @pytest.mark.parametrize(
        ("rule", "pattern", "allowed"),
        [
            ("quake/#", "quake/ca", True),
            ("quake/#", "quake/#", True),
            ("quake/#", "quake/+/la", True),
            ("quake/#", "#", False),
            ("quake/#", "+/ca", False),
            ("quake/+", "quake/#", False),
            ("quake/+", "quake/+", True),
            ("quake/ca", "quake/+", False),
            ("%c/#", "app-1/#", True),
            ("%c/#", "+/#", False),
        ],
    )
    def test_a_subscription_must_be_covered(self, rule: str, pattern: str, allowed: bool) -> None:
        assert granted(subscribe=(rule,)).may_subscribe(pattern) is allowed
        assert not granted(publish=(rule,)).may_subscribe(pattern)

    def test_limits_only_draw_closer(self) -> None:
        limits = TokenLimits(payload_bytes=10, subscriptions=1 << 40)
        settings = granted(limits=limits).settings
        assert settings.payload_bytes_max == 10
        assert settings.filters_per_session_max == CORE.filters_per_session_max

    def test_renewal_follows_the_token_not_its_name(self) -> None:
        grant = granted(publish=("a",))
        renewed = Access(CORE, [rules(publish=("b",))]).renew(grant, "app-1")
        assert renewed is not None
        assert renewed.may_publish("b")
        assert not renewed.may_publish("a")
        other = TokenRules(name="app", sha256=hash_of("another"))
        assert Access(CORE, [other]).renew(grant, "app-1") is None
        assert Access(CORE, [rules(client_ids=("x",))]).renew(grant, "app-1") is None


class TestFile:
    def test_everything_it_may_say(self) -> None:
        text = table(
            "sensors",
            "s3cret",
            client_ids='["sensor-*"]',
            publish='["quake/%c/#"]',
            subscribe='["orders/+"]',
            inspect="true",
            limits="{ publish_events_per_s = 100, sessions = 2 }",
        )
        (found,) = parse_tokens(text, "tokens.toml")
        assert found == TokenRules(
            name="sensors",
            sha256=hash_of("s3cret"),
            client_ids=("sensor-*",),
            publish=("quake/%c/#",),
            subscribe=("orders/+",),
            inspect=True,
            limits=TokenLimits(publish_events_per_s=100.0, sessions=2),
        )

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("[[token", "it is not TOML"),
            ("tokens = []", "tokens: extra inputs"),
            ("token = 3", "token: input should be"),
            ("token = [3]", "token number 1: input should be"),
            ('[[token]]\nname = "a"', "token 'a', sha256: field required"),
            (table("a", "x") + "nonsense = 1", "token 'a', nonsense"),
            (table("a", "x", publish='["a/#/b"]'), "token 'a', publish, 0: filter 'a/#/b' has '#'"),
            (table("a", "x", subscribe='["$sys"]'), "reserved for the system"),
            (table("a", "x", limits="{ sessions = 0 }"), "limits, sessions"),
            (table("a", "x", limits="{ publish_events_per_s = inf }"), "finite"),
            (table("a", "x") + table("a", "y"), "two tokens have the name 'a'"),
            (table("a", "x") + table("b", "x"), "two tokens have the sha256"),
        ],
    )
    def test_what_is_wrong_is_said_and_where(self, text: str, problem: str) -> None:
        with pytest.raises(TokensError) as raised:
            parse_tokens(text, "tokens.toml")
        assert str(raised.value).startswith("tokens file tokens.toml: ")
        assert problem in str(raised.value)
        assert "\n" not in str(raised.value)


class TestBucket:
    def test_a_second_may_come_at_once_and_the_rest_in_time(self) -> None:
        bucket = Bucket(10.0)
        bucket.spend(10, now_s=5.0)
        assert bucket.wait_s(5.0) == 0.0
        bucket.spend(5, now_s=5.0)
        assert bucket.wait_s(5.0) == pytest.approx(0.5)
        assert bucket.wait_s(5.5) == 0.0

    def test_what_is_not_used_is_not_saved_up(self) -> None:
        bucket = Bucket(10.0)
        bucket.spend(1, now_s=0.0)
        bucket.spend(20, now_s=1_000.0)
        assert bucket.wait_s(1_000.0) == pytest.approx(1.0)

    def test_the_rate_is_kept_on_average(self) -> None:
        bucket, now_s, taken = Bucket(50.0), 0.0, 0
        while now_s < 20.0:
            bucket.spend(7, now_s)
            taken += 7
            now_s += bucket.wait_s(now_s)
        assert taken == pytest.approx(50 * 21, abs=8)

    def test_without_a_rate_there_is_no_waiting(self) -> None:
        bucket = Bucket(None)
        bucket.spend(1e9, now_s=0.0)
        assert bucket.wait_s(0.0) == 0.0
