"""The HTTP side does what its OpenAPI schema says, whatever is sent (schemathesis, all checks)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, from_schema
from schemathesis.engine.events import EngineEvent, NonFatalError, ScenarioFinished
from schemathesis.openapi import from_asgi

from reconfig_manager.rest.app import SCHEMA_PATH, create_app
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import leading
from tests.support.security import table

CONFIG = Path(__file__).resolve().parents[2] / "schemathesis.toml"
TOKEN = "an-admin's-token"
EXAMPLES = 20


def configured() -> SchemathesisConfig:
    """What is in the file, for whoever runs the tool by hand, and bounds."""
    config = SchemathesisConfig.from_path(CONFIG)
    config.update(seed=1, max_failures=5)
    project = config.projects.default
    project.headers = {"Authorization": f"Bearer {TOKEN}"}
    project.generation.max_examples = EXAMPLES
    project.generation.deterministic = True
    project.workers = 1
    return config


@pytest.fixture
def schema(tmp_path: Path) -> Any:
    """A manager that leads eight brokers, and the schema of its HTTP side."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(table("ops", TOKEN, role='"admin"'))
    # Streams of events end at once: they would never.
    rest = RestSettings(tokens=str(tokens), watch_max_s=0.001)
    driver = asyncio.run(leading(rest))
    app = create_app(driver.facade, rest)
    return from_asgi(SCHEMA_PATH, app, config=configured(), headers={"Host": "127.0.0.1"})


def complaints(event: EngineEvent) -> Iterator[str]:
    if isinstance(event, NonFatalError):
        yield f"{event.label}: {event.value!r}"
    if not isinstance(event, ScenarioFinished):
        return
    for case_id, checks in event.recorder.checks.items():
        for check in checks:
            if check.status is Status.FAILURE and check.failure_info is not None:
                failure = check.failure_info.failure
                sent = event.recorder.cases[case_id].value.as_curl_command()
                yield f"{event.phase.name} {event.label}: {failure}\n    {sent}"


def test_every_answer_is_as_described(schema: Any) -> None:
    found: list[str] = []
    scenarios = 0
    for event in from_schema(schema).execute():
        found += complaints(event)
        scenarios += isinstance(event, ScenarioFinished) and event.status is Status.SUCCESS
    assert not found, "\n".join(found)
    assert scenarios >= 2 * len(list(schema.get_all_operations()))
