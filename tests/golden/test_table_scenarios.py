"""What brokers in a tree tell each other; `pytest tests/golden --rewrite-golden` rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.table_scenario import TableScenario

FOLDER = Path(__file__).parent / "tables"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_table_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    played = TableScenario().play(expected)
    if request.config.getoption("--rewrite-golden"):
        path.write_text(played)
    else:
        assert played == expected


def test_there_are_table_scenarios() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 6
