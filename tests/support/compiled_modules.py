"""Which modules a compiled build compiles, and which are compiled where tests run."""

from __future__ import annotations

import tomllib
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def compiled_table() -> dict[str, Any]:
    """The list of modules, and what compiles them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, Any] = project["tool"]["dynatops"]["compiled"]
    return table


def is_compiled(module: str) -> bool:
    found = find_spec(module)
    assert found is not None, module
    return isinstance(found.loader, ExtensionFileLoader)


def modules_of_other_build(*, compiled: bool) -> list[str]:
    """Those of the list that would come from the wrong place."""
    return [name for name in compiled_table()["modules"] if is_compiled(name) is not compiled]
