"""How long advice is fresh."""

from __future__ import annotations

import math

import pytest

from dynatops.kit.advice.freshness import fresh_for_s, is_fresh


@pytest.mark.parametrize(
    ("bounds", "left_s"),
    [
        ({}, math.inf),
        ({"left_s": 7.0}, 7.0),
        ({"age_s": 3.0, "ttl_s": 10.0}, 7.0),
        ({"age_s": 12.0, "ttl_s": 10.0}, -2.0),
        # Computed by a clock that is ahead.
        ({"age_s": -5.0, "ttl_s": 10.0}, 10.0),
        ({"left_s": 5.0, "age_s": 3.0, "ttl_s": 10.0}, 5.0),
        ({"left_s": 9.0, "age_s": 3.0, "ttl_s": 10.0}, 7.0),
    ],
)
def test_what_ends_first_ends_it(bounds: dict[str, float], left_s: float) -> None:
    assert fresh_for_s(**bounds) == left_s


def test_at_the_end_it_is_fresh_no_more() -> None:
    assert is_fresh(9.9, 10.0)
    assert not is_fresh(10.0, 10.0)
