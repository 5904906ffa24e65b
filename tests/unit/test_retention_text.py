"""Rules of what a store keeps, as people write them."""

from __future__ import annotations

import re

import pytest

from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.retention_text import retention_rules


def test_rules_are_read_in_their_order() -> None:
    text = "quake/# age=7d bytes=1.5GB; devices/+/state last;prices last=symbol ; # events=1000"
    assert retention_rules(text) == (
        RetentionRule(pattern="quake/#", age_s=604_800, bytes_max=3 << 29),
        RetentionRule(pattern="devices/+/state", is_compacted=True),
        RetentionRule(pattern="prices", is_compacted=True, key="symbol"),
        RetentionRule(pattern="#", events_max=1_000),
    )


def test_nothing_is_no_rule() -> None:
    assert retention_rules("") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("quake/#", "quake/#: say what of it is kept: age=7d, events=1000, bytes=1GB, last"),
        ("# age=7", "'age=7' needs a number, in s, m, h, d, w"),
        ("# events=1k", "'events=1k' needs a number, in no unit"),
        ("# bytes=much", "'bytes=much' needs a number, in B, KB, MB, GB, TB"),
        ("# for=ever", "#: 'for=ever' is none of age=7d, events=1000"),
        ("a/#/b age=1d", "#"),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        retention_rules(text)
