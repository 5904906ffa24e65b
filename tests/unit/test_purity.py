"""INV-1: cores are pure: nothing they import tells the time, rolls dice, or touches the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = frozenset(
    {"asyncio", "datetime", "grpc", "logging", "os", "pathlib", "secrets", "socket", "subprocess"}
    | {"threading", "time", "uuid"}
)
MANAGER = ROOT / "reconfig_manager"
# Its pure folders, and the modules beside them. Solvers keep time; the rest is around the core.
MANAGER_CORE = ("model", "monitor", "leader", "planning", "execution")
CORES = [
    # `compiled` keeps compiled code on disk; it decides nothing.
    *sorted(set((ROOT / "overlay").glob("*.py")) - {ROOT / "overlay" / "compiled.py"}),
    *(path for folder in MANAGER_CORE for path in sorted((MANAGER / folder).glob("*.py"))),
    *(MANAGER / f"{name}.py" for name in ("manager", "ports", "status")),
    MANAGER / "placement" / "decision.py",
    MANAGER / "store" / "memory.py",
    *sorted((ROOT / "broker_agent" / "core").glob("*.py")),
    ROOT / "dynatops" / "client" / "core.py",
    ROOT / "dynatops" / "topics.py",
    ROOT / "dynatops" / "bounded.py",
    *sorted((ROOT / "dynatops" / "filters").glob("*.py")),
]


def imported(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", [alias.name for alias in node.names]


@pytest.mark.parametrize("path", CORES, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_is_pure(path: Path) -> None:
    for module, names in imported(path):
        assert module.split(".")[0] not in FORBIDDEN
        if module == "random":
            # The type of the generator it is given, never the module's own.
            assert names == ["Random"]


def test_the_list_of_cores_is_not_empty() -> None:
    assert len(CORES) > 50
