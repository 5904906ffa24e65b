"""Passwords of Redis servers: where they come from, and that they are in no command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynatops.kit.redis_access import (
    PASSWORD_VARIABLE,
    RedisPasswordError,
    exposed_password,
    password_options,
)

URL = "redis://host:6379/0"
WITH_PASSWORD = "redis://:pw@host:6379/0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("of the file\n")
    return path


def test_the_file_the_url_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert password_options(URL, "") == {}
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    assert password_options(URL, "") == {"password": "of the environment"}
    assert password_options(WITH_PASSWORD, "") == {}
    assert password_options(WITH_PASSWORD, str(file)) == {"password": "of the file"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot read .*: No such file"), (b"\xff\xfe", "is not UTF-8"), (b" \n", "is empty")],
)
def test_files_that_are_no_use(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RedisPasswordError, match=problem):
        password_options(URL, str(path))


@pytest.mark.parametrize(
    ("value", "is_exposed"),
    [
        (URL, False),
        (WITH_PASSWORD, True),
        ("rediss://ann:pw@host", True),
        ("rediss://ann@host", False),
        ("unix:///run/x.sock", False),
        ("100", False),
        ("redis://:p[w@host]x", True),
    ],
)
def test_what_a_command_line_shows(value: str, is_exposed: bool) -> None:
    warning = exposed_password(["", value], "store.password")
    assert ("(store.password)" in warning) == is_exposed
    assert "pw" not in warning
