"""The runtime asks the core by its own methods: it never reaches for what the core is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import getattr_static, isfunction
from pathlib import Path
from typing import get_type_hints

import pytest

from broker_agent.core.broker import Broker

RUNTIME = Path(__file__).resolve().parents[2] / "broker_agent" / "runtime"
# What may be read of it beside its methods and the numbers and yes or no that its properties give.
VALUES = {"identity": "who the broker is: frozen, and the same all its life"}
PLAIN = (bool, int, float, str)


def is_public_answer(name: str) -> bool:
    """Whether the core has a method of this name, or a property that gives a plain value."""
    found = getattr_static(Broker, name, None)
    if isinstance(found, property):
        return get_type_hints(found.fget)["return"] in PLAIN
    return isfunction(found) and not name.startswith("_")


def names_of_core(tree: ast.Module) -> set[str]:
    """What the core is called in this module: variables, arguments and attributes."""
    names = {"core", "_core"}
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.Name(id="Broker"), arg=name):
                names.add(name)
            case ast.AnnAssign(annotation=ast.Name(id="Broker")):
                names |= _called(node.target)
    while True:
        known = len(names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names |= _aliases(target, node.value, names)
        if len(names) == known:
            return names


def _called(node: ast.expr) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
    return set()


def _aliases(target: ast.expr, value: ast.expr, names: set[str]) -> set[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return {name for one, other in pairs for name in _aliases(one, other, names)}
    return _called(target) if is_core(value, names) else set()


def is_core(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Attribute(value=owner, attr=name) if name in names:
            # The settings of the core are no core.
            return "settings" not in _called(owner)
        case ast.Name(id=name):
            return name in names
    return False


def reaches(source: str) -> Iterator[str]:
    """Where a module reads or writes more of the core than it is to know."""
    tree = ast.parse(source)
    names = names_of_core(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_core(node.value, names):
            is_read = isinstance(node.ctx, ast.Load)
            if not is_read or not (is_public_answer(node.attr) or node.attr in VALUES):
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "path", sorted(RUNTIME.rglob("*.py")), ids=lambda path: str(path.relative_to(RUNTIME))
)
def test_nobody_reaches_into_the_core(path: Path) -> None:
    assert list(reaches(path.read_text())) == [], (
        "ask Broker.status(), or give the core a method or a property that answers this"
    )


@pytest.mark.parametrize(
    "source",
    [
        "self.core.node.ring.status",
        "len(agent.core.registry)",
        "self._core.counters.inputs_failed += 1",
        "core.gate = None",
        "core._settle(1.0)",
        "node = self._agent.core.node",
        "inner = self.core\ninner.registry",
        "a, self._b = 1, core\nself._b.registry",
        "def f(broker: Broker): return broker.node",
    ],
)
def test_what_reaches_in_is_found(source: str) -> None:
    assert len(list(reaches(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "self.core.status().node.ring",
        "agent.core.identity.broker_id",
        "host(self.core.namesakes, core.is_member)",
        "settings.core.sessions_max",
        "self.settings.core.sessions_max",
    ],
)
def test_what_does_not_is_none(source: str) -> None:
    assert list(reaches(source)) == []


@pytest.mark.parametrize("name", VALUES)
def test_exceptions_are_still_needed(name: str) -> None:
    assert any(f"core.{name}" in path.read_text() for path in RUNTIME.rglob("*.py"))
