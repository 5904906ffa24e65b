"""Rounds of one cluster, on arrays: where each of its users would best be (DYNATOPS III-B).

Clusters have nothing to do with each other, so each is placed by itself, by whichever worker has
its users. `analytics.transforms.selection` says what is computed, and brings users here.

    followers[topic, broker]   how many users there follow it: all that a round has to know
    hits[user, broker]         of how many of its topics there are others: rows of that, summed

Memory is bounded by what has to be known of each user (some 60 bytes), not by what it follows:
users are gone through in chunks, and tables that are large lie in files of the worker's own folder,
of which the system keeps in memory what is used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analytics.transforms.selection_settings import SelectionJobSettings

# Utilities and brokers are ordered as one number: billionths of the utility, then the broker.
BILLION = 1e9
BROKER_BITS = 20
BROKER_MASK = (1 << BROKER_BITS) - 1
# The rank of a broker that is not considered: below all others.
_NOWHERE = np.iinfo(np.int64).min
# Users are gone through in chunks of so many topics at brokers, and tables above so many bytes lie
# in files.
_CHUNK_ENTRIES = 4_000_000
_IN_MEMORY_BYTES_MAX = 64_000_000

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_USER = {
    "user": pa.int64(),
    "at": pa.int32(),
    "origin": pa.int32(),
    "size": pa.int32(),
    "own": pa.int64(),
    "other": pa.int64(),
    "before": pa.int64(),
}
_TOPIC = {"key": pa.int64(), "rank": pa.int64()}
_BROKER = {
    "broker": pa.int32(),
    "load": pa.int64(),
    "load_before": pa.int64(),
    "topics": pa.int64(),
    "topics_before": pa.int64(),
    "rounds": pa.int32(),
}
_KINDS = {"user": _USER, "topic": _TOPIC, "broker": _BROKER}
# As Spark has it: each row says something of a user, of a topic, or of a broker.
PLACED = """
    user struct<user: long, at: int, origin: int, size: int, own: long, other: long, before: long>,
    topic struct<key: long, rank: long>,
    broker struct<broker: int, load: long, load_before: long, topics: long, topics_before: long,
        rounds: int>
"""


def placed_clusters(
    batches: Iterator[pa.RecordBatch], settings: SelectionJobSettings
) -> Iterator[pa.RecordBatch]:
    """PLACED of rows `cluster_number, user, broker, topics`, in the order of clusters.

    In each of them first brokers, without a user; then users with even keys, then others.
    """
    arriving = _Arriving()
    for batch in batches:
        for rows in _by_cluster(batch):
            if arriving.cluster not in (None, rows["cluster_number"][0].as_py()):
                yield from _Rounds(arriving.cluster_users(), settings).outcome()
                arriving = _Arriving()
            arriving.add(rows)
    if arriving.cluster is not None:
        yield from _Rounds(arriving.cluster_users(), settings).outcome()


def _by_cluster(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    clusters = batch["cluster_number"].to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(clusters)) + 1), len(clusters)]
    for begin, end in pairwise(begins):
        if end > begin:
            yield batch.slice(begin, end - begin)


# ---- users of a cluster --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ClusterUsers:
    # Numbers of the cluster's brokers, ascending. Below, brokers are indexes of these.
    brokers: Ints
    users: Longs
    # The first so many users have even keys.
    evens: int
    origin: Ints
    # Of user u: topics[first[u] : first[u + 1]], which are indexes of `keys`.
    first: Longs
    topics: Ints
    keys: Longs


class _Arriving:
    """Rows of a cluster, as they come in."""

    def __init__(self) -> None:
        self.cluster: int | None = None
        self._brokers: list[Longs] = []
        self._users: list[Longs] = []
        self._origins: list[Longs] = []
        self._sizes: list[Longs] = []
        self._keys: Longs = np.empty(0, np.int64)
        self._spool = _file()

    def add(self, rows: pa.RecordBatch) -> None:
        self.cluster = rows["cluster_number"][0].as_py()
        is_broker = pc.is_null(rows["user"])
        self._brokers.append(rows["broker"].filter(is_broker).to_numpy())
        followers = rows.filter(pc.invert(is_broker))
        if not followers.num_rows:
            return
        self._users.append(followers["user"].to_numpy())
        self._origins.append(followers["broker"].to_numpy())
        self._sizes.append(pc.list_value_length(followers["topics"]).to_numpy())
        keys = followers["topics"].flatten().to_numpy()
        self._keys = np.union1d(self._keys, keys)
        self._spool.write(keys.tobytes())

    def cluster_users(self) -> _ClusterUsers:
        brokers = np.sort(_joined(self._brokers)).astype(np.int32)
        users, sizes = _joined(self._users), _joined(self._sizes)
        first = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        topics = _table((int(first[-1]),), np.int32)
        self._spool.flush()
        if len(topics):
            keys = np.memmap(self._spool, np.int64, "r")
            for begin in range(0, len(topics), _CHUNK_ENTRIES):
                chunk = slice(begin, begin + _CHUNK_ENTRIES)
                topics[chunk] = np.searchsorted(self._keys, keys[chunk])
        self._spool.close()
        origin = np.searchsorted(brokers, _joined(self._origins)).astype(np.int32)
        evens = int(np.count_nonzero(users & 1 == 0))
        return _ClusterUsers(brokers, users, evens, origin, first, topics, self._keys)


def _joined(arrays: list[Longs]) -> Longs:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _table(shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
    """Zeros; in memory, or in a file that goes with it."""
    if np.dtype(kind).itemsize * np.prod(shape, dtype=np.int64) <= _IN_MEMORY_BYTES_MAX:
        return np.zeros(shape, kind)
    return np.memmap(_file(), kind, "w+", shape=shape)


def _file() -> Any:
    """A file without a name, where Spark has its own that do not fit into memory."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
    return tempfile.TemporaryFile(dir=folder)


# ---- rounds --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Options:
    """Ranks of brokers for users from `begin` on: as they are, at best elsewhere, as they were."""

    begin: int
    own: Longs
    other: Longs
    before: Longs
    # Indexes of the best elsewhere.
    target: Ints


class _Rounds:
    def __init__(self, cluster: _ClusterUsers, settings: SelectionJobSettings) -> None:
        self._of = cluster
        self._settings = settings
        self._at = cluster.origin.copy()
        self._sizes = np.diff(cluster.first)
        self._followers = _table((len(cluster.keys), len(cluster.brokers)), np.int32)
        for begin, end in self._chunks(0, len(cluster.users), 1):
            self._count(np.arange(begin, end), self._at[begin:end], 1)
        self._is_followed = _table(self._followers.shape, np.uint8)

    def outcome(self) -> Iterator[pa.RecordBatch]:
        """Run, and say where that ends."""
        loads_before, topics_before = self._loads(), self._topics()
        rounds = self._run()
        cluster = self._of
        if len(cluster.users):
            yield from self._placed_users()
            yield from self._gathering()
        yield _rows(
            "broker",
            {
                "broker": cluster.brokers,
                "load": self._loads(),
                "load_before": loads_before,
                "topics": self._topics(),
                "topics_before": topics_before,
                "rounds": np.full(len(cluster.brokers), rounds),
            },
        )

    def _run(self) -> int:
        """How many rounds there were."""
        settings, users = self._settings, len(self._of.users)
        # Rounds in a row in which hardly anybody moved: two, and both halves have been asked.
        number = quiet = 0
        while number < settings.rounds_max and quiet < 2:
            moved = self._round(number)
            quiet = 0 if moved > settings.settled * users else quiet + 1
            number += 1
        return number

    def _round(self, number: int) -> int:
        """Every other user says where it would rather be; how many have moved."""
        evens, users = self._of.evens, len(self._of.users)
        asked = (0, evens) if number % 2 == 0 else (evens, users)
        wanting: list[Longs] = []
        targets: list[Ints] = []
        gains: list[Longs] = []
        margin = round(self._settings.margin * BILLION)
        for options in self._options(*asked):
            gain = (options.other >> BROKER_BITS) - (options.own >> BROKER_BITS)
            wants = np.flatnonzero((options.other != _NOWHERE) & (gain > margin))
            wanting.append(wants + options.begin)
            targets.append(options.target[wants])
            gains.append(gain[wants])
        if not wanting:
            return 0
        movers, to = self._admitted(
            np.concatenate(wanting), np.concatenate(targets), np.concatenate(gains)
        )
        self._count(movers, self._at[movers], -1)
        self._count(movers, to, 1)
        self._at[movers] = to
        return len(movers)

    def _admitted(self, wanting: Longs, targets: Ints, gains: Longs) -> tuple[Longs, Ints]:
        """Those who gain most, while there is room: users, and where they move."""
        order = np.lexsort((self._of.users[wanting], -gains, targets))
        wanting, targets = wanting[order], targets[order]
        taken = np.cumsum(self._sizes[wanting])
        # Of each broker's queue, what was taken before it.
        begins = np.searchsorted(targets, targets, side="left")
        taken_before = np.concatenate(([0], taken))[begins]
        loads, mean = self._loads(), self._mean()
        room = np.minimum(self._settings.capacity * mean - loads, self._settings.intake * mean)[
            targets
        ]
        admitted = (room > 0) & (taken - taken_before <= room)
        return wanting[admitted], targets[admitted]

    # ---- what users gain ------------------------------------------------------------------------

    def _options(self, begin: int, end: int) -> Iterator[_Options]:
        brokers, settings = len(self._of.brokers), self._settings
        np.greater(self._followers, 0, out=self._is_followed, casting="unsafe")
        loads, mean = self._loads(), self._mean()
        least = int(np.argmin(loads))
        for begins, ends in self._chunks(begin, end, brokers):
            rows = np.arange(ends - begins)
            at, origin = self._at[begins:ends], self._of.origin[begins:ends]
            size = self._sizes[begins:ends]
            hits = self._hits(begins, ends)
            is_considered = hits > 0
            is_considered[rows, at] = is_considered[rows, origin] = True
            is_considered[:, least] = True
            # The user itself follows them, too.
            hits[rows, at] -= self._alone(begins, ends)
            load = loads + size[:, None]
            load[rows, at] -= size
            relative = (load + settings.load_floor) / (mean + settings.load_floor)
            utility = hits / size[:, None] - settings.load_weight * relative
            ranks = np.floor(utility * BILLION + 0.5).astype(np.int64) << BROKER_BITS
            ranks += BROKER_MASK - self._of.brokers
            ranks[~is_considered] = _NOWHERE
            own, before = ranks[rows, at], ranks[rows, origin]
            ranks[rows, at] = _NOWHERE
            target = np.argmax(ranks, axis=1).astype(np.int32)
            yield _Options(begins, own, ranks[rows, target], before, target)

    def _hits(self, begin: int, end: int) -> NDArray[Any]:
        """[user, broker]: its topics that somebody there follows, be it itself."""
        first = self._of.first
        topics = self._of.topics[first[begin] : first[end]]
        followed = np.take(self._is_followed, topics, axis=0)
        return np.add.reduceat(followed, first[begin:end] - first[begin], axis=0, dtype=np.int32)

    def _alone(self, begin: int, end: int) -> NDArray[Any]:
        """Of each user: its topics that nobody else follows where it is."""
        first = self._of.first
        topics = self._of.topics[first[begin] : first[end]]
        at = np.repeat(self._at[begin:end], self._sizes[begin:end])
        is_alone = self._followers[topics, at] == 1
        return np.add.reduceat(is_alone, first[begin:end] - first[begin], dtype=np.int32)

    def _chunks(self, begin: int, end: int, brokers: int) -> Iterator[tuple[int, int]]:
        """Users from `begin` to `end`, a part of them at a time."""
        first = self._of.first
        while begin < end:
            most = first[begin] + _CHUNK_ENTRIES // max(1, brokers)
            until = int(np.searchsorted(first, most, side="right")) - 1
            until = min(max(until, begin + 1), end)
            yield begin, until
            begin = until

    # ---- who is where ---------------------------------------------------------------------------

    def _count(self, users: Longs, at: Ints, by: int) -> None:
        """These users follow their topics there, or no longer."""
        sizes = self._sizes[users]
        ends = np.cumsum(sizes)
        # Indexes of all of their topics, one user after the other.
        begins = np.repeat(self._of.first[users] - (ends - sizes), sizes)
        topics = self._of.topics[begins + np.arange(len(begins))]
        np.add.at(self._followers, (topics, np.repeat(at, sizes)), by)

    def _loads(self) -> Longs:
        loads = np.zeros(len(self._of.brokers), np.int64)
        np.add.at(loads, self._at, self._sizes)
        return loads

    def _mean(self) -> float:
        return len(self._of.topics) / len(self._of.brokers)

    def _topics(self) -> Longs:
        return np.asarray(np.count_nonzero(self._followers, axis=0), np.int64)

    # ---- what comes out -------------------------------------------------------------------------

    def _placed_users(self) -> Iterator[pa.RecordBatch]:
        of = self._of
        for options in self._options(0, len(of.users)):
            these = slice(options.begin, options.begin + len(options.own))
            yield _rows(
                "user",
                {
                    "user": of.users[these],
                    "at": of.brokers[self._at[these]],
                    "origin": of.brokers[of.origin[these]],
                    "size": self._sizes[these],
                    "own": options.own,
                    "other": pa.array(options.other, mask=options.other == _NOWHERE),
                    "before": options.before,
                },
            )

    def _gathering(self) -> Iterator[pa.RecordBatch]:
        """Of each topic the broker where most follow it, and how many."""
        of = self._of
        at_once = max(1, _CHUNK_ENTRIES // len(of.brokers))
        for begin in range(0, len(of.keys), at_once):
            followers = self._followers[begin : begin + at_once].astype(np.int64)
            ranks = (followers << BROKER_BITS) + (BROKER_MASK - of.brokers)
            keys = of.keys[begin : begin + at_once]
            yield _rows("topic", {"key": keys, "rank": ranks.max(axis=1)})


def _rows(kind: str, columns: dict[str, Any]) -> pa.RecordBatch:
    """Of one kind; nothing is said of the others."""
    types = _KINDS[kind]
    arrays = [pa.array(columns[name], of) for name, of in types.items()]
    fields = [pa.field(name, of) for name, of in types.items()]
    said = pa.StructArray.from_arrays(arrays, fields=fields)
    nothing = {name: pa.nulls(len(said), pa.struct(of.items())) for name, of in _KINDS.items()}
    return pa.RecordBatch.from_pydict({**nothing, kind: said})
