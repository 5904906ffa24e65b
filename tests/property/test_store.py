"""The file is what the simulated disk is: the same after the same writes, also when opened anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_agent.core.keeping.journal import Changes, Stored
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.runtime.disk.session_store import FILE_NAME, SessionStore, SessionStoreError
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import Run, TermSeq
from dynatops.v1.storage_pb2 import SessionRecord
from simulator.disk import SimulatedDisk

NAMES = ("b0/1/1", "b0/1/2", "b0/2/1")
TOPICS = ("a", "b", "Ü/☃")


def any_cursor(rng: Random) -> Cursor | None:
    if rng.random() < 0.3:
        return None
    return Cursor(seen=[TermSeq(term=rng.getrandbits(60), seq=i) for i in range(rng.randrange(3))])


def any_changes(rng: Random) -> Changes:
    def some(names: tuple[str, ...]) -> list[str]:
        return [name for name in names if rng.random() < 0.4]

    changes = Changes(removed=some(NAMES))
    changes.sessions = {name: SessionRecord(client_id=name * 2) for name in some(NAMES)}
    changes.confirmed = {name: rng.randrange(8) for name in some(NAMES)}
    for name in some(NAMES):
        for serial in range(rng.randrange(5), rng.randrange(5, 10)):
            piece = Piece(
                Content(Run(events=rng.randbytes(9))),
                rng.randrange(3),
                serial,
                rng.choice(TOPICS),
                0.0,
            )
            changes.pieces.append((name, piece))
    changes.cursors = {topic: any_cursor(rng) for topic in some(TOPICS)}
    own = [(name, topic) for name in NAMES for topic in some(TOPICS)]
    changes.own_cursors = {key: any_cursor(rng) for key in own}
    return changes


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), writes=st.integers(1, 6))
def test_it_keeps_what_the_simulated_disk_keeps(seed: int, writes: int) -> None:
    rng = Random(seed)
    disk = SimulatedDisk()
    with TemporaryDirectory() as folder:
        store = SessionStore(Path(folder))
        for _ in range(writes):
            changes = any_changes(rng)
            disk.write(changes)
            store.write(changes)
        assert store.read() == disk.read()
        store.close()
        again, found, _ = SessionStore.open(Path(folder), clock_ms=1)
        again.close()
        assert found == disk.read()


def changes_of(name: str) -> Changes:
    return Changes(sessions={name: SessionRecord(client_id=name)})


def test_each_life_is_newer_than_the_one_before_whatever_the_clock_says(tmp_path: Path) -> None:
    incarnations: list[int] = []
    for clock_ms in (1_000, 1_000, 400, 5_000, 0):
        store, _, incarnation = SessionStore.open(tmp_path, clock_ms)
        store.close()
        incarnations.append(incarnation)
    assert incarnations == [1_000, 1_001, 1_002, 5_000, 5_001]


class TestTrouble:
    def test_a_write_is_whole_or_nothing(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path)
        wrong = changes_of("ann")
        # No serial: the pieces come after the session.
        wrong.pieces.append(("ann", Piece(Content(), 0, None, "a", 0.0)))  # type: ignore[arg-type]
        with pytest.raises(SessionStoreError):
            store.write(wrong)
        assert store.read() == Stored()
        store.write(changes_of("bob"))
        assert list(store.read().sessions) == ["bob"]
        store.close()

    def test_one_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("broker_agent.runtime.disk.session_store._LOCK_PATIENCE_S", 0.0)
        store = SessionStore(tmp_path)
        with pytest.raises(SessionStoreError, match="another broker"):
            SessionStore(tmp_path)
        store.write(changes_of("ann"))
        store.close()
        SessionStore(tmp_path).close()

    def test_a_newer_version_is_left_alone(self, tmp_path: Path) -> None:
        SessionStore(tmp_path).close()
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
            file.execute("PRAGMA user_version = 2")
        with pytest.raises(SessionStoreError, match="version 2, not 1"):
            SessionStore(tmp_path)

    def test_damage_is_noticed_when_it_is_opened(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path)
        for i in range(200):
            store.write(changes_of(f"client {i} with a name that fills pages"))
        store.close()
        raw = bytearray((tmp_path / FILE_NAME).read_bytes())
        raw[8_192:12_288] = bytes(4_096)
        (tmp_path / FILE_NAME).write_bytes(raw)
        with pytest.raises(SessionStoreError, match="damaged"):
            SessionStore.open(tmp_path, clock_ms=1)
        assert (tmp_path / FILE_NAME).read_bytes()[8_192:12_288] == bytes(4_096)

    def test_a_record_that_is_none(self, tmp_path: Path) -> None:
        SessionStore(tmp_path).close()
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
            file.execute("INSERT INTO sessions VALUES ('b0/1/1', x'ffff')")
            file.commit()
        with pytest.raises(SessionStoreError, match="damaged"):
            SessionStore.open(tmp_path, clock_ms=1)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SessionStoreError, match="cannot make the folder"):
            SessionStore(tmp_path / "file" / "below")
