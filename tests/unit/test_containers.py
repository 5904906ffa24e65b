"""INV-6: what can grow has a bound: every container of the cores is of a bounded type, or is known
with the reason why it needs none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.containers import BOUNDED_OTHERWISE

ROOT = Path(__file__).resolve().parents[2]
CORES = ("overlay", "broker_agent/core", "broker_agent/runtime", "dynatops/kit")
CONTAINERS = {"dict", "list", "set", "deque", "OrderedDict", "Counter", "defaultdict", "Queue"}


def _is_container(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict() | ast.List() | ast.Set() | ast.DictComp() | ast.ListComp() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) if name in CONTAINERS:
            return True
        case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in CONTAINERS:
            return True
        case ast.Call(func=ast.Attribute(attr=name)) if name in CONTAINERS | {"fromkeys"}:
            return True
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            factories = (k.value for k in keywords if k.arg == "default_factory")
            return any(isinstance(f, ast.Name) and f.id in CONTAINERS for f in factories)
    return False


def _attributes(owner: ast.ClassDef) -> Iterator[str]:
    """Fields of a dataclass; whatever an instance is given that is a container."""
    for statement in owner.body:
        if isinstance(statement, ast.AnnAssign) and _is_container(statement.value):
            assert isinstance(statement.target, ast.Name)
            yield statement.target.id
    for node in ast.walk(owner):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_container(node.value):
            for target in targets:
                match target:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name):
                        yield name


def containers() -> set[str]:
    found = set()
    for folder in CORES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found |= {f"{module}.{node.name}.{name}" for name in _attributes(node)}
    return found


def test_every_container_has_a_bound_or_a_reason() -> None:
    known = {name for names in BOUNDED_OTHERWISE.values() for name in names.split()}
    found = containers()
    assert len(found) > 50
    assert sorted(found - known) == [], (
        "make it a BoundedTable or BoundedQueue (dynatops/kit/bounded.py), or say in "
        "tests/support/containers.py why it cannot grow"
    )
    assert sorted(known - found) == [], "these are gone: take them out of the list"


def test_no_container_has_two_reasons() -> None:
    names = [name for names in BOUNDED_OTHERWISE.values() for name in names.split()]
    assert len(names) == len(set(names))
