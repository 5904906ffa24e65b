from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time: a test that fails once fails always. `HYPOTHESIS_PROFILE=explore`
# looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write what the golden scenarios now print, instead of comparing",
    )
