"""Sessions in a file: what `broker_agent.core.keeping.journal` wants written, in SQLite.

One broker has the file at a time. A write survives the death of the process at once, and that of
the machine some seconds later (WAL, without waiting for the platter): sessions lose their last
moments then, and read them again. Nothing here ever deletes what it cannot read.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from google.protobuf.message import DecodeError

from broker_agent.core.keeping.journal import Changes, Stored
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.doors.frames import FRAMES
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.storage_pb2 import SessionRecord

FILE_NAME = "sessions.db"
# Says that a file is ours, and which version of the tables below it has.
_APPLICATION_ID = 0x44594E53
_VERSION = 1
# A broker that is just ending gets so long to let go of the file.
_LOCK_PATIENCE_S = 2.0

_TABLES = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE pieces (
    id TEXT NOT NULL, serial INTEGER NOT NULL, topic TEXT NOT NULL, events INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (id, serial)
) WITHOUT ROWID;
CREATE TABLE cursors (topic TEXT PRIMARY KEY, cursor BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE own_cursors (
    id TEXT NOT NULL, topic TEXT NOT NULL, cursor BLOB NOT NULL, PRIMARY KEY (id, topic)
) WITHOUT ROWID;
"""
# Files of before have none.
_LIVES = "CREATE TABLE IF NOT EXISTS lives (incarnation INTEGER PRIMARY KEY)"


class SessionStoreError(Exception):
    """The sessions on disk cannot be had, or cannot be written; the message says why."""


class SessionStore:
    """Opened by its constructor, which raises SessionStoreError. Methods: in any thread."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._is_open = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SessionStoreError(f"cannot make the folder {folder}: {error.strerror}") from error
        with self._complaints():
            self._file = sqlite3.connect(
                self.path, timeout=_LOCK_PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._file.close()
                raise

    @classmethod
    def open(cls, folder: Path, clock_ms: int) -> tuple[Self, Stored, int]:
        """The store, what is in it, and the incarnation of the broker that opens it now."""
        store = cls(folder)
        try:
            return store, store.read(), store._begin_life(clock_ms)
        except BaseException:
            store.close()
            raise

    def _prepare(self) -> None:
        self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            (application,) = self._file.execute("PRAGMA application_id").fetchone()
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            (tables,) = self._file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (application, version, tables) == (0, 0, 0):
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._file.execute(statement)
                self._file.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._file.execute(f"PRAGMA user_version = {_VERSION}")
            elif application != _APPLICATION_ID:
                raise SessionStoreError(
                    f"{self.path} is not a file of sessions; name another folder as data_dir, or "
                    "move the file away"
                )
            elif version != _VERSION:
                raise SessionStoreError(
                    f"{self.path} was written by another version of this program (its tables are "
                    f"version {version}, not {_VERSION}); start that version, or move the file "
                    "away: its sessions begin anew then"
                )

    def _begin_life(self, clock_ms: int) -> int:
        """The incarnation of the broker that has opened the file: by the clock, and more than that
        of any before it, even if the clock was set back. Raises SessionStoreError."""
        with self._lock, self._complaints(), self._transaction():
            self._file.execute(_LIVES)
            (newest,) = self._file.execute("SELECT max(incarnation) FROM lives").fetchone()
            incarnation = max(clock_ms, (newest or 0) + 1)
            self._file.execute("DELETE FROM lives")
            self._file.execute("INSERT INTO lives VALUES (?)", (incarnation,))
            return incarnation

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        """Errors of SQLite, with what to do about them."""
        try:
            yield
        except sqlite3.OperationalError as error:
            # The low byte is the kind of error, the rest its cause.
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                message = f"another broker has {self.path} open; each needs a data_dir of its own"
                raise SessionStoreError(message) from error
            raise SessionStoreError(
                f"{self.path}: {error}; see that the folder can be written and its disk has room"
            ) from error
        except (sqlite3.DatabaseError, DecodeError) as error:
            raise SessionStoreError(
                f"{self.path} is damaged ({error}); put a copy of it back, or move it away: its "
                "sessions begin anew then"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    # ---- reading and writing --------------------------------------------------------------------

    def read(self) -> Stored:
        """Everything. Raises SessionStoreError."""
        with self._lock, self._complaints():
            (found,) = self._file.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(str(found))
            stored = Stored()
            for origin_id, record in self._rows("SELECT id, record FROM sessions"):
                stored.sessions[origin_id] = SessionRecord.FromString(record)
            for origin_id, serial, topic, events, data in self._rows(
                "SELECT id, serial, topic, events, data FROM pieces ORDER BY id, serial"
            ):
                piece = Piece(Content.from_encoded(FRAMES, data), events, serial, topic, 0.0)
                stored.pieces.setdefault(origin_id, []).append(piece)
            for topic, cursor in self._rows("SELECT topic, cursor FROM cursors"):
                stored.cursors[topic] = Cursor.FromString(cursor)
            for origin_id, topic, cursor in self._rows("SELECT id, topic, cursor FROM own_cursors"):
                stored.own_cursors[origin_id, topic] = Cursor.FromString(cursor)
            return stored

    def _rows(self, query: str) -> Iterable[tuple]:  # type: ignore[type-arg]  # as the query says
        with closing(self._file.cursor()) as cursor:
            yield from cursor.execute(query)

    def write(self, changes: Changes) -> None:
        """All of it, or (SessionStoreError) nothing."""
        with self._lock:
            if not self._is_open:
                raise SessionStoreError(f"{self.path} is closed")
            with self._complaints(), self._transaction():
                self._write(changes)

    def _write(self, changes: Changes) -> None:
        many = self._file.executemany
        for table in ("sessions", "pieces", "own_cursors"):
            statement = f"DELETE FROM {table} WHERE id = ?"  # noqa: S608  # one of those above
            many(statement, [(origin_id,) for origin_id in changes.removed])
        many(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?)",
            [(name, record.SerializeToString()) for name, record in changes.sessions.items()],
        )
        many("DELETE FROM pieces WHERE id = ? AND serial <= ?", changes.confirmed.items())
        many("DELETE FROM pieces WHERE id = ? AND serial = ?", changes.taken)
        many(
            "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?)",
            [
                (name, p.serial, p.topic, p.events, p.content.encoded(FRAMES))
                for name, p in changes.pieces
            ],
        )
        many(
            "DELETE FROM cursors WHERE topic = ?",
            [(topic,) for topic, cursor in changes.cursors.items() if cursor is None],
        )
        many(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?)",
            [(t, c.SerializeToString()) for t, c in changes.cursors.items() if c is not None],
        )
        many(
            "DELETE FROM own_cursors WHERE id = ? AND topic = ?",
            [key for key, cursor in changes.own_cursors.items() if cursor is None],
        )
        many(
            "INSERT OR REPLACE INTO own_cursors VALUES (?, ?, ?)",
            [(*k, c.SerializeToString()) for k, c in changes.own_cursors.items() if c is not None],
        )

    def close(self) -> None:
        """Let go of the file; a write in another thread is waited for."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._file.close()
