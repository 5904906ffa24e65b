"""INV-1: cores are pure: nothing they import tells the time, rolls dice, or touches the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "analytics",
    "broker_agent",
    "dynatops",
    "overlay",
    "reconfig_manager",
    "simulator",
    "experiments",
)
FORBIDDEN = frozenset(
    {"asyncio", "datetime", "grpc", "logging", "os", "pathlib", "secrets", "socket", "subprocess"}
    | {"threading", "time", "uuid"}
)
# All that is in these folders is pure, with whatever of ours it imports.
PURE = (
    "overlay",
    "broker_agent/core",
    "broker_agent/doors",
    "broker_agent/recording",
    "reconfig_manager/model",
    "reconfig_manager/monitor",
    "reconfig_manager/leader",
    "reconfig_manager/planning",
    "reconfig_manager/execution",
    "reconfig_manager/storing",
    "dynatops/client/core",
    "dynatops/kit/filters",
)
PURE_FILES = ("reconfig_manager/manager.py", "reconfig_manager/store/memory.py")
# Not looked into, and why.
APART = {
    "dynatops/v1/": "generated",
    "dynatops/kit/compiled.py": "keeps compiled loops on disk, and decides nothing",
    "dynatops/lake/fields.py": "counts days and hours of a time that it is given",
    "reconfig_manager/placement/instance.py": "the way in from files; its bounds are used",
    "reconfig_manager/placement/problem.py": "solvers keep time, in a process of their own",
}


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.is_file():
            return found
    return None


@cache
def imports_of(path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(_imported(ast.parse(path.read_text()).body))


def _imported(statements: list[ast.stmt]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for statement in statements:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                yield from ((alias.name, ()) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or "", tuple(alias.name for alias in node.names)


def pure_files() -> list[Path]:
    """Those in the folders, and all that they import of ours."""
    found: dict[Path, None] = {}
    waiting = [path for folder in PURE for path in sorted((ROOT / folder).rglob("*.py"))]
    waiting += [ROOT / name for name in PURE_FILES]
    while waiting:
        path = waiting.pop()
        if path in found or str(path.relative_to(ROOT)).startswith(tuple(APART)):
            continue
        found[path] = None
        for module, names in imports_of(path):
            if module.split(".")[0] in OURS:
                inner = (file_of(f"{module}.{name}") for name in names)
                waiting += [file for file in (file_of(module), *inner) if file is not None]
    return sorted(found)


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_core_is_pure(path: Path) -> None:
    for module, names in imports_of(path):
        assert module.split(".")[0] not in FORBIDDEN
        if module == "random":
            # The type of the generator it is given, never the module's own.
            assert names == ("Random",)


@pytest.mark.parametrize("folder", PURE)
def test_there_is_something_in_the_folder(folder: str) -> None:
    assert any((ROOT / folder).glob("*.py"))
