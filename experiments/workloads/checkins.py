"""Check-in files: where users were, and when, from somebody's records.

Two layouts, plain or gzipped, told apart by their first row:

    user,time,lat,lon[,...]                      with a head; further columns are ignored
    user<TAB>time<TAB>lat<TAB>lon<TAB>place      SNAP's (Gowalla, Brightkite), without a head

Times are ISO 8601 with a zone. A row that cannot be used is counted under its reason and named by
its line; the caller decides how many are too many, and nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import gzip
import io
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np

from experiments.sites import Floats
from experiments.workloads.grid import Grid
from experiments.workloads.visits import Visits

_EXAMPLES_MAX = 5
# SNAP's rows of which the place is not known.
_NOWHERE = (0.0, 0.0)
_NAMES = {
    "user": ("user", "user_id", "userid"),
    "time": ("time", "timestamp", "utc"),
    "latitude": ("lat", "latitude"),
    "longitude": ("lon", "lng", "longitude"),
}


class CheckinError(Exception):
    """The file cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Checkin:
    user: str
    at_s: float
    latitude: float
    longitude: float


@dataclass(slots=True)
class BadRows:
    """What was left out: how many for each reason, and the first lines of each."""

    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.reasons.total()

    def note(self, line: int, reason: str) -> None:
        self.reasons[reason] += 1
        lines = self.examples.setdefault(reason, [])
        if len(lines) < _EXAMPLES_MAX:
            lines.append(line)

    def __str__(self) -> str:
        if not self.count:
            return f"all {self.rows:,} rows are used"
        parts = [
            f"{count:,} {reason} (line {', '.join(map(str, self.examples[reason]))}"
            f"{', ...' if count > len(self.examples[reason]) else ''})"
            for reason, count in self.reasons.most_common()
        ]
        return f"{self.count:,} of {self.rows:,} rows are left out: {'; '.join(parts)}"


class _RowError(Exception):
    """Why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class Area:
    """From south-west to north-east, in degrees."""

    south: float
    west: float
    north: float
    east: float

    def cells(self, latitude: Floats, longitude: Floats, grid: Grid) -> tuple[Floats, Floats]:
        rows = (latitude - self.south) / (self.north - self.south) * grid.rows
        columns = (longitude - self.west) / (self.east - self.west) * grid.columns
        return np.floor(rows), np.floor(columns)


# The forty-eight states, nearly: the paper's 20 x 60 degrees.
UNITED_STATES = Area(south=29.0, west=-126.0, north=49.0, east=-66.0)


@dataclass(frozen=True, slots=True)
class CheckinFile:
    visits: Visits
    bad: BadRows


def read_checkins(path: Path, bad: BadRows) -> Iterator[Checkin]:
    """The usable rows one by one; the others are noted."""
    try:
        with _opened(path) as lines:
            yield from _checkins(lines, bad, path)
    except (OSError, EOFError) as error:
        raise CheckinError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise CheckinError(f"{path}: not UTF-8 ({error.reason})") from None


def visits_of_file(path: Path, grid: Grid, area: Area | None = None) -> CheckinFile:
    """All of the file on the grid; without an area, on the smallest that holds all of it."""
    bad = BadRows()
    names: dict[str, int] = {}
    # Files have millions of rows: numbers, and no objects.
    users, times, latitudes, longitudes = array("i"), array("d"), array("d"), array("d")
    for checkin in read_checkins(path, bad):
        users.append(names.setdefault(checkin.user, len(names)))
        times.append(checkin.at_s)
        latitudes.append(checkin.latitude)
        longitudes.append(checkin.longitude)
    if not users:
        raise CheckinError(f"{path}: no row can be used; {bad}")
    user = np.array(users, dtype=np.int32)
    at_s, latitude, longitude = (np.array(a) for a in (times, latitudes, longitudes))
    if area is None:
        area = _smallest(latitude, longitude)
    row, column = area.cells(latitude, longitude, grid)
    inside = (row >= 0) & (row < grid.rows) & (column >= 0) & (column < grid.columns)
    outside = int((~inside).sum())
    if outside:
        bad.reasons["outside the area"] += outside
        bad.examples["outside the area"] = []
    if not inside.any():
        raise CheckinError(f"{path}: no check-in is inside the area; {bad}")
    kept, owner = np.unique(user[inside], return_inverse=True)
    at_h = (at_s[inside] - at_s[inside].min()) / 3600.0
    cell = (row[inside] * grid.columns + column[inside]).astype(np.int32)
    return CheckinFile(Visits.of(owner.astype(np.int32), cell, at_h, len(kept)), bad)


def _smallest(latitude: Floats, longitude: Floats) -> Area:
    # The edges belong to it.
    room = 1e-6
    return Area(
        float(latitude.min()),
        float(longitude.min()),
        float(latitude.max()) + room,
        float(longitude.max()) + room,
    )


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _checkins(lines: TextIO, bad: BadRows, path: Path) -> Iterator[Checkin]:
    first = lines.readline()
    rows: Iterator[list[str]]
    columns: tuple[int, ...]
    if "\t" in first:
        columns, before = (0, 1, 2, 3), 0
        rows = csv.reader(_again(first, lines), delimiter="\t")
    else:
        columns, before = _columns(next(csv.reader([first]), []), path), 1
        rows = csv.reader(lines)
    for number, row in enumerate(rows, before + 1):
        if not row:
            continue
        bad.rows += 1
        try:
            yield _checkin(row, columns)
        except _RowError as error:
            bad.note(number, str(error))


def _again(first: str, lines: TextIO) -> Iterator[str]:
    yield first
    yield from lines


def _columns(head: list[str], path: Path) -> tuple[int, ...]:
    names = [name.strip().lower() for name in head]
    found = []
    for wanted, spellings in _NAMES.items():
        places = [i for i, name in enumerate(names) if name in spellings]
        if not places:
            raise CheckinError(
                f"{path}: no column {wanted!r} in its first line; it must be "
                "user,time,lat,lon, or rows of SNAP's layout, separated by tabs"
            )
        found.append(places[0])
    return tuple(found)


def _checkin(row: list[str], columns: tuple[int, ...]) -> Checkin:
    if len(row) <= max(columns):
        raise _RowError("with too few columns")
    user, time, latitude, longitude = (row[i].strip() for i in columns)
    if not user:
        raise _RowError("without a user")
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        raise _RowError("with a time that is none") from None
    if at.tzinfo is None:
        raise _RowError("with a time without a zone")
    try:
        place = (float(latitude), float(longitude))
    except ValueError:
        raise _RowError("with a place that is no number") from None
    # Not a number is neither.
    if not (-90.0 <= place[0] <= 90.0 and -180.0 <= place[1] <= 180.0):
        raise _RowError("with a place that is nowhere on earth")
    if place == _NOWHERE:
        raise _RowError("with an unknown place (0, 0)")
    return Checkin(user, at.timestamp(), *place)
