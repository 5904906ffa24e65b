from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.compiled_modules import modules_of_other_build

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


def pytest_configure(config: pytest.Config) -> None:
    """`DYNATOPS_EXPECT_COMPILED=1` (`make test-compiled`): tests run on what a compiled build
    compiles. Without it they run on the sources; whichever it is, none of the other is there."""
    compiled = os.environ.get("DYNATOPS_EXPECT_COMPILED") == "1"
    if wrong := modules_of_other_build(compiled=compiled):
        kind = "pure Python" if compiled else "compiled"
        raise pytest.UsageError(f"these modules are {kind}, and must not be: {wrong}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("DYNATOPS_EXPECT_COMPILED") == "1":
        reason = "replaces a method of a compiled module: the others there do not see it"
        for item in items:
            if item.get_closest_marker("sabotage"):
                item.add_marker(pytest.mark.skip(reason=reason))
