"""The protocol's conversations, written down; `pytest tests/golden --rewrite-golden` rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.scenario import Scenario

FOLDER = Path(__file__).parent / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    played = Scenario().play(expected)
    if request.config.getoption("--rewrite-golden"):
        path.write_text(played)
    else:
        assert played == expected


def test_there_are_scenarios() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 6
