"""A client that goes from broker to broker in a simulated tree, with what it knows of its place.

What a broker's core does for it is done by the core's own `CatchUpGroup`; what its client does is
to remember how far it is in each stream, and to take nothing twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.forwarding.catch_up_group import CatchUpGroup
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, attributes_of
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Run
from overlay.forwarding.forwarding_effects import FetchedPart
from overlay.forwarding.streams.portions import Portion

EventKey = tuple[int, str, int]


@dataclass(eq=False)
class Wanderer:
    wanted: Filter
    # None while it is nowhere.
    broker: str | None = None
    # Its client's: stream -> the last number that it had, or was told it was at.
    cursor: dict[int, int] = field(default_factory=dict)
    got: set[EventKey] = field(default_factory=set)
    highest: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    told_s: list[float] = field(default_factory=list)
    confirmed_s: float | None = None
    # While it waits for its filter, or catches up.
    is_awaited: bool = False
    group: CatchUpGroup | None = None
    fetch_id: int = 0

    @property
    def is_live(self) -> bool:
        return self.broker is not None and not self.is_awaited and self.group is None

    def come(self, broker: str) -> None:
        self.broker, self.is_awaited = broker, True
        session = Session("", "", 0, CoreSettings())
        session.filters[self.wanted.pattern] = (self.wanted,)
        group = CatchUpGroup({session: None}, dict(self.cursor))
        self.group = group if self.confirmed_s is not None else None

    def leave(self) -> None:
        self.broker, self.group, self.is_awaited, self.fetch_id = None, None, False, 0

    def in_place(self, positions: Mapping[int, int], now_s: float) -> None:
        self.is_awaited = False
        if self.confirmed_s is None:
            self.confirmed_s = now_s
            self._reach(positions)

    def _reach(self, places: Mapping[int, int]) -> None:
        for stream, number in places.items():
            self.cursor[stream] = max(number, self.cursor.get(stream, 0))

    def on_portion(self, portion: Portion) -> None:
        if self.group is not None:
            self.group.hold(portion)
        elif not self.is_awaited:
            self._take(portion)

    def on_part(self, part: FetchedPart, now_s: float, positions: Mapping[int, int]) -> bool:
        """Whether it is to be fetched again."""
        group = self.group
        if group is None:
            return False
        for portion in group.advance(part.portions):
            self._take(portion)
        if part.losses:
            self.told_s.append(now_s)
            group.reach({loss.stream: loss.upto for loss in part.losses if loss.upto})
        group.reach(part.ends)
        if not part.done:
            return False
        if group.is_incomplete:
            group.begin_again()
            return True
        for portion in group.advance(group.take_held()):
            self._take(portion)
        self.group, self.fetch_id = None, 0
        self._reach(positions)
        return False

    def _take(self, portion: Portion) -> None:
        if isinstance(portion, Bundle):
            for place in range(len(portion)):
                self._take_run(portion.run_at(place))
        else:
            self._take_run(portion)

    def _take_run(self, run: Run) -> None:
        events = events_of(run)
        assert events is not None
        offsets = run.selected if run.partial else range(run.count)
        for offset, event in zip(offsets, events, strict=True):
            self._reach({run.term: run.first_seq + offset})
            number = run.first_number + offset
            source = (run.publisher, run.topic)
            is_wanted = self.wanted.matches(run.topic, attributes_of(event.attributes))
            if is_wanted and number > self.highest[source]:
                self.highest[source] = number
                self.got.add((run.publisher, run.topic, number))
