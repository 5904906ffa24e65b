"""What a store's session is told, as rows for its log: which of it is new, and what it covers.

A place is where the store stands in a unit: it has all after `since`, up to `reached`. What follows
on that makes it longer. What does not, begins another place: what lies between is missing, and
nobody here says that it is stored. A topic whose history is lost may begin anew in a lower term:
that is another branch, which is kept apart.

Where topics share numbers, in a tree, numbers that the store does not see are those of topics that
it does not keep; there a loss is told, and whatever is told as lost ends all places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.store_units import is_side_unit, side_unit
from broker_agent.core.sessions.content import Body, Content
from broker_agent.core.stores.log.log_requests import UnitExtent
from broker_agent.core.stores.log.log_rows import LogRow, Stamp
from broker_agent.core.stores.log.stored_runs import covering_row, row_of_run
from broker_agent.core.stores.marks import Mark
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import pattern_matches
from dynatops.kit.repeats import part_of_run
from dynatops.kit.topics import STREAMS
from dynatops.v1 import overlay_pb2
from dynatops.v1.client_pb2 import Missed, Subscribed
from dynatops.v1.overlay_pb2 import Run

_BEGINNING: Stamp = (0, 0)


class Units(Protocol):
    """What stamps are counted in."""

    @property
    def shares_numbers(self) -> bool:
        """Whether one unit has events of many topics."""

    def unit_of(self, topic: str, term: int) -> str: ...


class Had(NamedTuple):
    topic: str
    mark: Mark


def _whole_since(extent: UnitExtent) -> Stamp:
    return extent.holes[-1][1] if extent.holes else extent.since


class StoreIntake:
    def __init__(
        self,
        units: Units,
        extents: Mapping[str, UnitExtent],
        units_max: int,
        counters: BrokerCounters,
    ) -> None:
        self._units = units
        self._units_max = units_max
        self._counters = counters
        self._places = {
            unit: Mark(_whole_since(extent), _BEGINNING, extent.upto)
            for unit, extent in extents.items()
        }
        # Whether something was told as lost since that was last asked.
        self._has_missed = False
        # Units of which something was missed since they stood there.
        self._interrupted: set[str] = set()
        # Whether anything that it subscribes to has been confirmed; and requests that were, since
        # the last look.
        self.is_in_place = False
        self._confirmed: list[int] = []
        # The request that the session goes on with; what it is told before that is not complete.
        self._awaited: int | None = None

    def goes_on_with(self, request: int) -> None:
        """Nothing counts before the session is told that it goes on, as this request asked."""
        self._awaited = request

    def take_confirmed(self) -> list[int]:
        """Requests that have been confirmed since the last call."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def reached(self, patterns: Iterable[str]) -> dict[str, Stamp]:
        """How far units have come that these patterns of topics are about."""
        wanted = list(patterns)
        return {
            unit: place.reached
            for unit, place in self._places.items()
            if not is_side_unit(unit) and any(pattern_matches(each, unit) for each in wanted)
        }

    def stamp_of(self, unit: str) -> Stamp | None:
        """How far the unit has come to the store; None: it knows nothing of it."""
        place = self._places.get(unit)
        return place.reached if place is not None else None

    def rows_of(self, contents: Iterable[Content], now_us: int) -> tuple[list[LogRow], list[Had]]:
        """Rows for the log, and what is had once they are there."""
        rows: list[LogRow] = []
        had: dict[tuple[str, Stamp], Mark] = {}
        for content in contents:
            for body in content.bodies:
                for row in self._rows_of_body(body, now_us):
                    rows.append(row)
                    if row.events and (mark := self._places.get(row.unit)) is not None:
                        had[row.topic, mark.since] = mark
        return rows, [Had(topic, mark) for (topic, _), mark in had.items()]

    def _rows_of_body(self, body: Body, now_us: int) -> Iterator[LogRow]:
        if isinstance(body, Run):
            yield from self._rows_of_run(body, now_us)
        elif isinstance(body, overlay_pb2.Bundle):
            bundle = Bundle.from_wire(body)
            for place in range(len(bundle)):
                yield from self._rows_of_run(bundle.run_at(place), now_us)
        elif isinstance(body, Missed):
            self._miss(body)
        elif isinstance(body, Subscribed):
            self.is_in_place = True
            self._confirmed.append(body.request)

    def take_missed(self) -> bool:
        """Whether something was told as lost since the last call."""
        has_missed, self._has_missed = self._has_missed, False
        return has_missed

    def filled(self, unit: str, extent: UnitExtent) -> Mark | None:
        """The log has that of the unit, now that it was filled. What it has on its disk of the
        place where the store stands, if that begins earlier than it did."""
        place = self._places.get(unit)
        if place is None:
            if not self.is_in_place or len(self._places) >= self._units_max:
                return None
            place = self._places[unit] = Mark(_whole_since(extent), _BEGINNING, extent.upto)
            return place
        if not extent.since <= place.since <= extent.upto:
            return None
        if any(after < place.since < upto for after, upto in extent.holes):
            return None
        since = max((u for _, u in extent.holes if u <= place.since), default=extent.since)
        if since >= place.since:
            return None
        self._places[unit] = place._replace(since=since)
        # Not all up to where it stands is there yet.
        there = min((a for a, _ in extent.holes if a >= since), default=extent.upto)
        reached = min(place.reached, there)
        prev = place.prev if reached[0] == place.reached[0] else _BEGINNING
        return Mark(since, prev, reached)

    def _miss(self, missed: Missed) -> None:
        self._has_missed = True
        if self._units.shares_numbers or not missed.topic:
            self._interrupted.update(self._places)
        elif missed.topic in self._places:
            self._interrupted.add(missed.topic)

    def _rows_of_run(self, run: Run, now_us: int) -> Iterator[LogRow]:
        if run.topic == STREAMS:
            yield from self._stand(run, now_us)
            return
        if self._awaited is not None:
            return
        unit = self._units.unit_of(run.topic, run.term)
        place = self._places.get(unit)
        if not run.count:
            if place is None and len(self._places) < self._units_max:
                self._begin(unit, run)
            return
        if place is not None and run.term < place.reached[0]:
            # From another branch of the topic's history, which nothing is to be said of.
            unit = side_unit(unit, run.term)
            place = self._places.get(unit)
        if place is None and len(self._places) >= self._units_max:
            self._counters.store_units_refused += 1
            return
        if place is not None and place.reached[0] == run.term:
            had = place.reached[1] - run.first_seq + 1
            if had >= run.count:
                return
            if had > 0:
                run = part_of_run(run, had, run.count - had)
        yield row_of_run(run, unit, now_us, self._follow(unit, run))

    def _begin(self, unit: str, position: Run) -> None:
        """The unit is read from here on."""
        prev = position.prev_term, position.prev_seq
        here = position.term, position.first_seq - 1
        since = _BEGINNING if here[1] == 0 and prev == _BEGINNING else here
        self._places[unit] = Mark(since, prev, here)

    def _stand(self, run: Run, now_us: int) -> Iterator[LogRow]:
        """A stream has come so far, as far as it concerns this store."""
        if not run.term:
            if run.first_seq == self._awaited:
                self._awaited = None
            return
        if self._awaited is not None:
            return
        unit = self._units.unit_of(STREAMS, run.term)
        here = (run.term, run.first_seq - 1)
        place = self._places.get(unit)
        if place is None:
            if len(self._places) < self._units_max:
                self._places[unit] = Mark(here, _BEGINNING, here)
        elif here > place.reached and unit not in self._interrupted:
            yield covering_row(unit, place.reached, here, now_us)
            self._places[unit] = place._replace(reached=here)

    def _follow(self, unit: str, run: Run) -> Stamp:
        """The store stands behind this run, from now on. After which stamp it covers everything."""
        first, last = (run.term, run.first_seq), (run.term, run.first_seq + run.count - 1)
        prev = (run.prev_term, run.prev_seq) if run.first_seq == 1 else None
        alone = first[0], first[1] - 1
        place = self._places.get(unit)
        if place is None:
            since = after = _BEGINNING if prev == _BEGINNING else alone
            former = prev or _BEGINNING
        else:
            since, former, reached = place
            if unit in self._interrupted:
                self._interrupted.discard(unit)
                since = after = alone
                former = prev or _BEGINNING
            elif alone == reached or (reached[0] == run.term and self._units.shares_numbers):
                after = reached
            elif prev == reached:
                after = former = reached
            else:
                since = after = alone
                former = prev or (former if reached[0] == run.term else _BEGINNING)
        self._places[unit] = Mark(since, former, last)
        return after
