"""What brokers tell each other of stores; `pytest tests/golden --rewrite-golden` rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.store_scenario import StoreScenario

FOLDER = Path(__file__).parent / "stores"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_store_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    played = StoreScenario().play(expected)
    if request.config.getoption("--rewrite-golden"):
        path.write_text(played)
    else:
        assert played == expected


def test_there_are_store_scenarios() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 4
