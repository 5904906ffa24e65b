"""A realistic lake, made up: for analytics to be tried, tested and measured with.

    rows = generate(Lake.open(url), LakeSpec(users=1_000_000, days=7))

It goes hour by hour, so that memory depends on users and on what happens in an hour, not on days.
The same specification makes the same rows. Unlike those of brokers, a file holds rows of many
brokers: a lake of small files, put together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dynatops.lake.fields import (
    CLOSE,
    LEAVE,
    OPEN,
    PUBLICATIONS,
    REQUESTS,
    RESUME,
    SESSION_OPS,
    SESSIONS,
    SUBSCRIBE,
    SUBSCRIPTION_OPS,
    SUBSCRIPTIONS,
    TABLES,
    UNSUBSCRIBE,
    Table,
    file_name,
)
from dynatops.lake.files import Lake, LakeError, arrow_schema
from dynatops.local.made_up_lake.days import HOURS, LEAVE_LAG_MAX_S, Days, Hour
from dynatops.local.made_up_lake.traffic import Traffic
from dynatops.local.made_up_lake.world import Floats, Ints, LakeSpec, LakeWorld

FILE_ROWS_MAX = 1_000_000
# Files that wait to be written.
_WRITES_MAX = 4
_WRITERS = 2
_ARRIVALS_AT_ONCE = 100_000
# Of topics that a user brings along, those whose past it asks for.
_REQUESTED = 0.5
_REQUEST_WINDOW_S = 300
_OWNER = "generated"

# Of hours, and rows so far by table.
Progress = Callable[[int, int, Counter[str]], None]


def generate(lake: Lake, spec: LakeSpec, progress: Progress | None = None) -> Counter[str]:
    """Rows by table. Raises LakeError, or OSError if it cannot be written to."""
    for name in TABLES:
        if lake.has(name):
            raise LakeError(f"{lake.root} has {name} already: choose another lake")
    world = LakeWorld(spec, np.random.default_rng([spec.seed, 1]))
    with _Files(lake, spec) as files:
        made = _Rows(world, files)
        days = Days(world, np.random.default_rng([spec.seed, 2]))
        traffic = Traffic(world, np.random.default_rng([spec.seed, 3]))
        for day in range(spec.days):
            for hour, happenings in enumerate(days.day(day)):
                number = day * HOURS + hour
                files.begin_hour(number)
                if not number:
                    made.arrivals(*days.arrivals())
                made.hour(happenings)
                for block in traffic.hour(hour):
                    made.publications(*block, traffic.window_s)
                if progress is not None:
                    progress(number + 1, spec.days * HOURS, files.rows)
        return files.end()


class _Files:
    """Puts rows together to files, and writes them while more are made."""

    def __init__(self, lake: Lake, spec: LakeSpec) -> None:
        self.rows: Counter[str] = Counter()
        self._lake = lake
        self._spec = spec
        self._hour_s = 0.0
        self._number = 0
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        self._writer = ThreadPoolExecutor(_WRITERS)
        self._writes: list[Future[int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown(cancel_futures=True)

    @property
    def hour_us(self) -> int:
        return int(self._hour_s) * 1_000_000

    def begin_hour(self, number: int) -> None:
        self._flush()
        start = self._spec.start.replace(minute=0, second=0, microsecond=0)
        self._hour_s = (start + timedelta(hours=number)).timestamp()

    def add(self, table: Table, *columns: pa.Array) -> None:
        part = pa.table(list(columns), names=table.names)
        if not len(part):
            return
        self.rows[table.name] += len(part)
        self._parts[table.name].append(part)
        if sum(map(len, self._parts[table.name])) >= FILE_ROWS_MAX:
            self._write(table)

    def end(self) -> Counter[str]:
        self._flush()
        for write in self._writes:
            write.result()
        return self.rows

    def _flush(self) -> None:
        for name, parts in self._parts.items():
            if parts:
                self._write(TABLES[name])

    def _write(self, table: Table) -> None:
        parts, self._parts[table.name] = self._parts[table.name], []
        name = file_name(_OWNER, self._spec.seed, self._number)
        self._number += 1
        while len(self._writes) >= _WRITES_MAX:
            self._writes.pop(0).result()
        write = self._writer.submit(_write, self._lake, table, self._hour_s, name, parts)
        self._writes.append(write)


def _write(lake: Lake, table: Table, hour_s: float, name: str, parts: list[pa.Table]) -> int:
    schema = arrow_schema(table)
    content = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
    return lake.write(table, hour_s, name, content.select(schema.names))


class _Rows:
    """Columns of the tables out of what happens."""

    def __init__(self, world: LakeWorld, files: _Files) -> None:
        self._world = world
        self._files = files
        self._rng = np.random.default_rng([world.spec.seed, 4])
        digits = len(str(world.spec.users - 1))
        self._users = pa.array([f"u{i:0{digits}}" for i in range(world.spec.users)])
        self._brokers = pa.array(world.broker_names)
        self._topics = pa.array(world.topic_names)

    def arrivals(self, at_s: Floats, users: NDArray[np.int64]) -> None:
        for first in range(0, len(users), _ARRIVALS_AT_ONCE):
            part = slice(first, first + _ARRIVALS_AT_ONCE)
            come = users[part]
            self._sessions(at_s[part], come, self._world.at[come], OPEN)
            self._subscribe_all(at_s[part], come, self._world.at[come], SUBSCRIBE)

    def hour(self, hour: Hour) -> None:
        lag_s = self._rng.uniform(0.05, LEAVE_LAG_MAX_S, len(hour.mover))
        self._sessions(hour.moved_s, hour.mover, hour.to, OPEN)
        self._sessions(hour.moved_s + lag_s, hour.mover, hour.former, LEAVE)
        self._sessions(hour.dozed_s, hour.dozer, self._world.at[hour.dozer], CLOSE)
        self._sessions(hour.woke_s, hour.dozer, self._world.at[hour.dozer], RESUME)
        # Before minds are changed: none of these users changes its mind in this hour.
        self._subscribe_all(hour.moved_s, hour.mover, hour.to, SUBSCRIBE)
        self._subscribe_all(hour.moved_s + lag_s, hour.mover, hour.former, UNSUBSCRIBE)
        self._requests(hour)
        self._changes(hour)

    def _changes(self, hour: Hour) -> None:
        when_s = np.empty(self._world.spec.users, np.float32)
        when_s[hour.changer] = hour.changed_s
        users, former, new = self._world.change_minds(hour.changer)
        at_s, brokers = when_s[users].astype(np.float64), self._world.at[users]
        self._subscriptions(at_s, users, brokers, former, UNSUBSCRIBE)
        self._subscriptions(at_s, users, brokers, new, SUBSCRIBE)

    def _requests(self, hour: Hour) -> None:
        """Who comes asks for the past of some topics."""
        world = self._world
        topics = world.follows[hour.mover]
        who, slot = np.nonzero(self._rng.random(topics.shape) < _REQUESTED)
        window = (hour.moved_s[who] // _REQUEST_WINDOW_S).astype(np.int64)
        pair = window * world.spec.brokers + hour.to[who]
        asked, counts = np.unique(pair * world.spec.topics + topics[who, slot], return_counts=True)
        pair, topic = np.divmod(asked, world.spec.topics)
        window, broker = np.divmod(pair, world.spec.brokers)
        self._files.add(
            REQUESTS,
            self._times(window.astype(np.float64) * _REQUEST_WINDOW_S),
            pa.array(np.full(len(asked), float(_REQUEST_WINDOW_S))),
            _named(self._brokers, broker),
            _named(self._topics, topic),
            pa.array(counts.astype(np.int64)),
        )

    def publications(
        self, window: NDArray[np.int64], topic: NDArray[np.int64],
        events: NDArray[np.int64], nbytes: NDArray[np.int64], window_s: int,
    ) -> None:  # fmt: skip
        self._files.add(
            PUBLICATIONS,
            self._times(window.astype(np.float64) * window_s),
            pa.array(np.full(len(window), float(window_s))),
            _named(self._brokers, self._world.topic_broker[topic]),
            _named(self._topics, topic),
            pa.array(events),
            pa.array(nbytes),
        )

    def _sessions(self, at_s: Floats, users: NDArray[np.int64], brokers: Ints, op: str) -> None:
        self._files.add(
            SESSIONS,
            self._times(at_s),
            self._users.take(pa.array(users)),
            _named(self._brokers, brokers),
            _constant(SESSION_OPS, op, len(users)),
            pa.array(self._world.broker_latitude[brokers]),
            pa.array(self._world.broker_longitude[brokers]),
        )

    def _subscribe_all(
        self, at_s: Floats, users: NDArray[np.int64], brokers: Ints, op: str
    ) -> None:
        """To everything that they follow, or to nothing of it any more."""
        each = self._world.spec.topics_per_user
        topics = self._world.follows[users].ravel()
        when_s, who = np.repeat(at_s, each), np.repeat(users, each)
        self._subscriptions(when_s, who, np.repeat(brokers, each), topics, op)

    def _subscriptions(
        self, at_s: Floats, users: NDArray[np.int64] | Ints, brokers: Ints, topics: Ints, op: str
    ) -> None:
        self._files.add(
            SUBSCRIPTIONS,
            self._times(at_s),
            _named(self._brokers, brokers),
            self._users.take(pa.array(users)),
            _named(self._topics, topics),
            _constant(SUBSCRIPTION_OPS, op, len(users)),
        )

    def _times(self, since_hour_s: Floats) -> pa.Array:
        at_us = self._files.hour_us + (since_hour_s * 1e6).astype(np.int64)
        return pa.array(at_us).cast(pa.timestamp("us", tz="UTC"))


def _named(names: pa.Array, indices: NDArray[np.int64] | Ints) -> pa.Array:
    """Names by their number: as a dictionary, but for one that would be larger than the rows."""
    if len(names) * 4 > len(indices):
        return names.take(pa.array(indices)).dictionary_encode()
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), names)


def _constant(values: tuple[str, ...], value: str, count: int) -> pa.Array:
    indices = np.full(count, values.index(value), np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values))
