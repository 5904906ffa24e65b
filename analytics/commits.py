"""How far a job is: commits, one after the other, each a small file that is there whole or not.

A commit names everything that counts: the state as of the last time the job was finished, and the
parts that batches have added since. Data that no commit names does not exist: whatever a crash left
half written is never read, and swept away later.

Nothing relies on renaming, which no store of objects does in one step. All that a commit names was
written before it, under a name with the commit's number that nobody else has; so it makes no
difference who writes beside it. The commit itself is created where there is none (`Storage.create`,
which the store decides): of two runs that went on from the same commit one makes the next, the
other fails, and what it wrote nobody names. Sweeping leaves alone whatever has a number that has no
commit yet: another run may be about to make it.

    batch ... batch  finish  batch ... batch  finish
    (a part each)    (parts and state -> state, results; the clock moves on)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

from analytics.errors import AnalyticsError
from analytics.storage.storage import AlreadyThereError, Storage, read_text

_KEPT = 20


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the job was finished last."""

    files: int = 0
    rows: int = 0
    quarantined_files: int = 0
    quarantined: int = 0
    late: int = 0
    dropped: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, others = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True, slots=True)
class TableProgress:
    # Files with names of what was taken in, and when the newest of it was written.
    taken: tuple[str, ...] = ()
    newest_us: int | None = None
    # Folders of what batches have added.
    parts: tuple[str, ...] = ()
    # The newest row so far; and as of the last finish, before which rows are late.
    seen_us: int | None = None
    settled_us: int | None = None
    # Rows before this came too late: the job was finished without them.
    closed_us: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    number: int = 0
    tables: Mapping[str, TableProgress] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    # Folder of the state; and the version of the results, which is the number of a finish.
    state: str = ""
    version: int = 0
    # Names of versions of the results that are there, the newest first.
    results: tuple[str, ...] = ()
    # Folder in quarantine of rows of the batch that this is the commit of.
    quarantined: str = ""
    # Nobody else's.
    id: str = ""

    def progress(self, table: str) -> TableProgress:
        return self.tables.get(table, TableProgress())

    def with_table(self, table: str, progress: TableProgress) -> Commit:
        return replace(self, tables={**self.tables, table: progress})

    @property
    def folders(self) -> set[str]:
        """All that counts."""
        tables = self.tables.values()
        named = {path for progress in tables for path in (*progress.parts, *progress.taken)}
        return named | {self.state} if self.state else named


class OvertakenError(AnalyticsError):
    def __init__(self) -> None:
        super().__init__("another run of this job is under way; nothing is lost")


class CommitLog:
    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        # The newest that was read or made here.
        self._seen = 0

    def latest(self) -> Commit:
        self._seen = self._newest()
        return self._read(self._seen) if self._seen else Commit()

    def is_overtaken(self) -> bool:
        """Whether another run went on from what was the latest here: it may have swept away what
        that names."""
        return self._newest() > self._seen

    def find(self, number: int) -> Commit | None:
        """One of the last; None if it was swept away, or never was."""
        return self._read(number) if number in self._numbers() else None

    def append(self, commit: Commit) -> Commit:
        """It is the next one after that which it was made from."""
        commit = replace(commit, number=commit.number + 1, id=uuid4().hex)
        try:
            self._storage.create(self._path(commit.number), json.dumps(asdict(commit), indent=1))
        except AlreadyThereError:
            raise OvertakenError from None
        self._seen = commit.number
        return commit

    def sweep(self) -> None:
        """Remove the oldest commits: only the last one is ever read."""
        for number in self._numbers()[:-_KEPT]:
            self._storage.delete(self._path(number))

    def _read(self, number: int) -> Commit:
        return _from_json(read_text(self._storage, self._path(number)))

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012}.json"

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        names = self._storage.names(self._folder)
        return [int(name[:12]) for name in names if name[:12].isdigit() and name.endswith(".json")]


def _from_json(text: str) -> Commit:
    raw: dict[str, Any] = json.loads(text)
    tables = {
        name: TableProgress(
            **{**values, "parts": tuple(values["parts"]), "taken": tuple(values["taken"])}
        )
        for name, values in raw.pop("tables").items()
    }
    counts, results = Counts(**raw.pop("counts")), tuple(raw.pop("results"))
    return Commit(**raw, tables=tables, counts=counts, results=results)
