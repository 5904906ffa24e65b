"""What integration tests of several subjects start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.security import table


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file of tokens with different rights."""
    path = tmp_path / "tokens.toml"
    path.write_text(
        table("app", "app-token", publish='["app/#"]', subscribe='["app/#", "news"]')
        + table("ops", "ops-token", inspect="true")
        + table("own", "own-token", client_ids='["dev-*"]', publish='["of/%c"]')
    )
    return path
