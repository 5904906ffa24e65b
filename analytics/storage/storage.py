"""What jobs need of a store, and what every implementation promises.

- `create` puts a file there as a whole, once: of two who try, one gets AlreadyThereError. Where a
  store cannot promise that, it says so when it is opened for results.
- `save` makes a folder of rows, in a folder that nobody else has: its name was never used before.
  Rows count once, however many tasks were repeated or lost on the way. It must not be read before
  `save` has returned, and is read by `rows_of`.
- `found` lists whole files only: names that begin with `_` or `.` are being written, and a file
  without a byte has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

# What Spark raises, whatever was wrong.
SparkError = (Py4JJavaError, PySparkException)
# Of content that is handed on in blocks.
BLOCK_BYTES = 8 << 20


class AlreadyThereError(Exception):
    """Somebody else has written the file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already")
        self.path = path


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    # Below the folder that was listed.
    name: str
    size: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class BadFile:
    path: str
    reason: str


class Storage(Protocol):
    """Paths are URLs that begin with `root`, or paths of this machine if that is one."""

    root: str

    def check(self, *, for_results: bool) -> None:
        """Whether it can be reached and, of results, be trusted. Raises AnalyticsError."""

    def exists(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """Names of files and folders in a folder, sorted; none if it does not exist."""

    def found(self, folder: str, suffix: str) -> list[FoundFile]:
        """All files below a folder; none if it does not exist."""

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content of a file."""

    def put(self, path: str, blocks: Iterable[bytes]) -> None:
        """Replace a file as a whole."""

    def create(self, path: str, text: str) -> None:
        """Write a file that must not be there yet. Raises AlreadyThereError."""

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it; nothing if it is not there."""

    def rows_of(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        """Rows of these files; fields that a file does not have are null."""

    def with_paths(self, paths: Sequence[str], schema: StructType, column: str) -> DataFrame:
        """The same, with the path of each row's file in one more column."""

    def saved(self, folders: Sequence[str], schema: StructType | None = None) -> DataFrame:
        """Rows that `save` has put into folders; their schema, if there is one folder at least."""

    def save(self, rows: DataFrame, folder: str) -> None: ...

    def bad_files(self, paths: Sequence[str], schema: StructType) -> list[BadFile]:
        """Those that cannot be read to the end. A failure that is not a file's own is raised."""


def read_text(storage: Storage, path: str) -> str:
    return b"".join(storage.blocks(path)).decode()


def write_text(storage: Storage, path: str, text: str) -> None:
    storage.put(path, [text.encode()])


def is_hidden(name: str) -> bool:
    """Whether somebody is still writing it, or it is no data."""
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def packed(sizes: Mapping[str, int], task_bytes: int, open_bytes: int) -> list[list[str]]:
    """Files in groups of about so many bytes, in order; opening one costs as much as so many."""
    groups: list[list[str]] = []
    room = 0
    for path, size in sizes.items():
        cost = size + open_bytes
        if not groups or cost > room:
            groups.append([])
            room = task_bytes
        groups[-1].append(path)
        room -= cost
    return groups
