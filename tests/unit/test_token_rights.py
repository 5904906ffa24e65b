"""Rights of tokens, as they are declared: whatever is made of a declaration fits it."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import fields

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.rights.access import Access, Grant
from dynatops.cli.brokers.token import add_commands
from dynatops.kit.security.token_rights import (
    DEFAULTS,
    LIMITS,
    NOBODY,
    RIGHTS,
    UNLIMITED,
    RightKind,
    TokenLimits,
    TokenRules,
)
from dynatops.kit.security.tokens_file import parse_tokens
from tests.support.security import table

OF_LIMITS = {RightKind.RATE, RightKind.COUNT, RightKind.COUNT_OR_ZERO}


def test_all_that_a_token_may_say_is_declared() -> None:
    assert {field.name for field in fields(TokenRules)} == {*RIGHTS, "name", "sha256", "limits"}
    assert {field.name for field in fields(TokenLimits)} == set(LIMITS)
    assert not OF_LIMITS & {right.kind for right in RIGHTS.values()}
    assert {limit.kind for limit in LIMITS.values()} == OF_LIMITS


def test_a_table_that_says_nothing_is_what_is_declared() -> None:
    (rules,) = parse_tokens('[[token]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\n', "tokens.toml")
    assert rules == TokenRules(name="a", sha256="0" * 64)
    assert {name: getattr(rules, name) for name in RIGHTS} == DEFAULTS


@pytest.mark.parametrize("name", [name for name, limit in LIMITS.items() if limit.narrows])
def test_a_limit_draws_a_setting_closer_and_never_wider(name: str) -> None:
    core = CoreSettings()
    bound = getattr(core, LIMITS[name].narrows)
    for limit, expected in ((1, 1), (bound + 1, bound)):
        rules = parse_tokens(table("a", "t", limits=f"{{ {name} = {limit} }}"), "tokens.toml")
        grant = Access(core, rules).authenticate("t", "me")
        assert isinstance(grant, Grant)
        assert getattr(grant.settings, LIMITS[name].narrows) == expected


def test_without_tokens_each_right_is_there_and_without_them_none() -> None:
    everything, nothing = Grant(CoreSettings(), None), Grant(CoreSettings())
    assert everything.rights is UNLIMITED
    assert nothing.rights is NOBODY
    for name, right in RIGHTS.items():
        assert getattr(UNLIMITED, name) == right.unlimited
    assert UNLIMITED.limits == TokenLimits()


def test_each_is_an_option_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    usual = parser.parse_args(shlex.split("token create a"))
    for name in (*RIGHTS, *LIMITS):
        assert not getattr(usual, name) or getattr(usual, name) == DEFAULTS[name]
