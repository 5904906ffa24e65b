"""`dynatops lake`, as a person types it, and brokers that are told of a lake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynatops.cli.brokers.broker import settings_from
from dynatops.cli.errors import UsageError
from dynatops.cli.main import _parser, main

SMALL = ("--users", "50", "--brokers", "5", "--topics", "20", "--days", "1", "--rows", "1e3")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_generate_and_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    code, out, _ = run(capsys, "lake", "generate", lake, *SMALL, "--start", "2026-05-01")
    assert code == 0
    assert "rows in" in out
    code, out, _ = run(capsys, "lake", "describe", lake)
    assert code == 0
    assert out.splitlines()[2].startswith("publications")
    assert "2026-05-01" in out
    code, out, _ = run(capsys, "lake", "describe", lake, "--json")
    tables = json.loads(out)["tables"]
    assert tables[0]["rows"] == pytest.approx(1_000, rel=0.2)
    assert [table["bad"] for table in tables] == [[], [], [], []]


def test_what_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "lake", "generate", tmp_path, *SMALL, "--json")
    file = min((tmp_path / "sessions").rglob("*.parquet"))
    file.write_bytes(b"PAR1 and not much more")
    code, out, _ = run(capsys, "lake", "describe", tmp_path)
    assert code == 1
    assert f"cannot be read: {file}" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("describe", "{}/none"), 1, "there is no lake at"),
        (("describe", "gopher://x/y"), 2, "gopher://x/y cannot be opened"),
        (("generate", "{}/x", "--topics", "15"), 2, "15 is no multiple"),
        (("generate", "{}/x", "--topics", "10", "--rows", "1e9"), 2, "10 topics make at most"),
    ],
)
def test_what_cannot_be_done(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    done, _, err = run(capsys, "lake", *(part.format(tmp_path) for part in arguments))
    assert done == code
    assert message in err


@pytest.mark.parametrize(
    "option", [("--users", "1.5"), ("--users", "many"), ("--start", "tomorrow"), ("--days", "-1")]
)
def test_options_that_are_none(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["lake", "generate", "x", *option])
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err


def test_brokers_are_told_of_a_lake() -> None:
    parser = _parser()
    arguments = parser.parse_args(
        ["broker", "--lake", "/x/lake", "--set", "lake.window_s=2", "--set", "lake.file_rows_max=9"]
    )
    lake = settings_from(arguments).lake
    assert (lake.url, lake.window_s, lake.file_rows_max) == ("/x/lake", 2.0, 9)
    arguments = parser.parse_args(["broker", "--set", "lake.buffer_rows_max=9"])
    with pytest.raises(UsageError, match="no file would ever be full"):
        settings_from(arguments)
