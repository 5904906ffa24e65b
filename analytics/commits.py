"""How far a job is: commits, one after the other, each a small file that is there whole or not.

A commit names everything that counts: the state as of the last time the job was finished, and the
parts that batches have added since. Data that no commit names does not exist: whatever a crash left
half written is never read, and swept away later. Two runs of one job at once meet at the next
commit, and the second fails.

    batch ... batch  finish  batch ... batch  finish
    (a part each)    (parts and state -> state, results; the clock moves on)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from analytics.errors import AnalyticsError
from analytics.files import AlreadyThereError, Files

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
    # The last batch that counts, of the stream that has this id.
    stream: str = ""
    batch: int = -1
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

    def progress(self, table: str) -> TableProgress:
        return self.tables.get(table, TableProgress())

    def with_table(self, table: str, progress: TableProgress) -> Commit:
        return replace(self, tables={**self.tables, table: progress})

    @property
    def folders(self) -> set[str]:
        """All that counts."""
        named = {part for progress in self.tables.values() for part in progress.parts}
        return named | {self.state} if self.state else named


class CommitLog:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def latest(self) -> Commit:
        numbers = self._numbers()
        return _from_json(self._files.read(self._path(numbers[-1]))) if numbers else Commit()

    def append(self, commit: Commit) -> Commit:
        """It is the next one after that which it was made from."""
        commit = replace(commit, number=commit.number + 1)
        try:
            self._files.create(self._path(commit.number), json.dumps(asdict(commit), indent=1))
        except AlreadyThereError:
            raise AnalyticsError("another run of this job is under way; nothing is lost") from None
        return commit

    def sweep(self) -> None:
        """Remove the oldest commits: only the last one is ever read."""
        for number in self._numbers()[:-_KEPT]:
            self._files.delete(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012}.json"

    def _numbers(self) -> list[int]:
        names = self._files.names(self._folder)
        return [int(name[:12]) for name in names if name[:12].isdigit() and name.endswith(".json")]


def _from_json(text: str) -> Commit:
    raw: dict[str, Any] = json.loads(text)
    tables = {
        name: TableProgress(**{**values, "parts": tuple(values["parts"])})
        for name, values in raw.pop("tables").items()
    }
    return Commit(**{**raw, "tables": tables, "counts": Counts(**raw["counts"])})
