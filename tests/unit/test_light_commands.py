"""What talks to a network loads nothing of a broker's: not its node, not its libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "broker_agent", "overlay", "simulator", "experiments", "numba", "scipy", "pyarrow", "pyspark",
)  # fmt: skip
# Names of solvers, planners and stores, which `--help` tells; they themselves are not loaded.
OF_THE_MANAGER = {
    "reconfig_manager", "reconfig_manager.solvers", "reconfig_manager.storing",
    "reconfig_manager.store", "reconfig_manager.store.opening",
}  # fmt: skip
# Whatever it loads on its way to a broker that is not there.
NOBODY = "127.0.0.1:1"
PROGRAM = """
import sys
from dynatops.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(code, *sorted(sys.modules))
"""


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """How the command ended, and the modules that it had loaded by then."""
    outcome = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    code, *modules = outcome.stdout.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("pub", "--help"), 0),
        (("pub", "a/b", "x", "--attribute", "price=3", "--broker", NOBODY), 1),
        (("sub", "a/#", "--where", "price < 3", "--broker", NOBODY), 1),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_nothing_of_a_broker_is_loaded(arguments: tuple[str, ...], code: int) -> None:
    ended, modules = loaded(*arguments)
    assert ended == code
    assert ("grpc" in modules) == (code == 1)
    assert not modules & set(HEAVY)
    assert {name for name in modules if name.startswith("reconfig_manager")} <= OF_THE_MANAGER
