"""A class name stands once in the project: who reads it knows which is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("analytics", "benchmarks", "broker_agent", "dynatops", "overlay", "reconfig_manager"),
    *("simulator", "experiments", "tools"),
)
GENERATED = ROOT / "dynatops" / "v1"


def test_every_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if GENERATED in path.parents:
                continue
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
