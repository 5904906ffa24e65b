"""What a broker has learnt of its topology, on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_agent.runtime.disk.learnt_topology import FILE_NAME, LearntTopology
from overlay.forwarding.tree.topology import Topology


def topology(version: int) -> Topology:
    return Topology.from_mapping({"version": version, "brokers": {"a": "h:1"}, "links": []})


def keep(learnt: LearntTopology, version: int) -> str:
    return asyncio.run(learnt.keep(version, topology(version).to_text()))


def test_the_newest_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    learnt = LearntTopology(str(folder))
    assert learnt.read() is None
    for version in (2, 5, 3):
        assert keep(learnt, version) == ""
    assert LearntTopology(str(folder)).read() == topology(5)
    # Nothing is left of what was written before it took its place.
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]


def test_what_was_read_is_not_overwritten_by_older_ones(tmp_path: Path) -> None:
    keep(LearntTopology(str(tmp_path)), 5)
    learnt = LearntTopology(str(tmp_path))
    learnt.read()
    keep(learnt, 4)
    assert LearntTopology(str(tmp_path)).read() == topology(5)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"version": 1}'])
def test_what_is_damaged_counts_for_nothing(
    raw: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(raw)
    learnt = LearntTopology(str(tmp_path))
    assert learnt.read() is None
    assert "topology.json cannot be used, and counts for nothing" in caplog.text
    assert keep(learnt, 1) == ""
    assert LearntTopology(str(tmp_path)).read() == topology(1)


def test_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    learnt = LearntTopology(str(tmp_path / "file"))
    said = keep(learnt, 2)
    assert said.startswith(f"{tmp_path / 'file' / FILE_NAME} cannot be written: ")
    assert "topology version 2 is not on disk" in caplog.text
