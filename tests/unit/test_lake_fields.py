"""Names that writers and readers of the lake agree on."""

from __future__ import annotations

import pytest

from dynatops.lake.fields import (
    SESSIONS,
    TABLES,
    file_name,
    file_owner,
    owner_name,
    partition_path,
)


@pytest.mark.parametrize(
    ("time_s", "path"),
    [
        (0.0, "date=1970-01-01/hour=00"),
        (1_767_225_599.999, "date=2025-12-31/hour=23"),
        (1_767_225_600, "date=2026-01-01/hour=00"),
    ],
)
def test_a_row_lies_in_its_hour(time_s: float, path: str) -> None:
    assert partition_path(time_s) == path


def test_tables_have_their_time() -> None:
    for table in TABLES.values():
        assert table.time_field in table.names
        assert set(table.values) <= set(table.names)
    assert [f.name for f in SESSIONS.fields if f.nullable] == ["latitude", "longitude"]


@pytest.mark.parametrize("name", ["b0", "host:7400", "a/../b", "_x", ".x", "", "ü", "x" * 300])
def test_files_say_whose_they_are(name: str) -> None:
    file = file_name(name, 0x19A, 7)
    assert file.endswith("-19a-000007.parquet")
    assert file[0] not in "_."
    assert "/" not in file
    assert len(file) < 200
    assert file_owner(file) == owner_name(name)


def test_brokers_that_look_alike_have_files_of_their_own() -> None:
    assert len({owner_name(name) for name in ("a:1", "a_1", "a-1", "a/1")}) == 4


@pytest.mark.parametrize("name", ["", "b0.parquet", "b0-1-2-3.parquet", "b0-1-2.txt"])
def test_other_files_are_nobodys(name: str) -> None:
    assert file_owner(name) == ""
