"""What integration tests of several subjects start from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, Cluster
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = Cluster("--brokers", "5")
    os.environ["DYNATOPS_BROKER"] = running.addresses[0]
    yield running
    del os.environ["DYNATOPS_BROKER"]
    assert running.stop() == 0


@pytest.fixture
def listener(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    """Someone subscribed to quake/ca, in place."""
    process = subprocess.Popen(
        [*COMMAND, "sub", "quake/ca", "--stay", "--broker", cluster.addresses[3]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "subscribed to quake/ca through b3" in process.stderr.readline()
    yield process
    process.kill()
    process.communicate()
