"""What this broker and its neighbours tell each other of their tables.

A session begins with the whole table, and changes follow. Both are confirmed from the far ends back
(`confirmations.py`). With advertisements there is a second answer, which comes sooner: that whoever
is beyond has heard a table, and has said what it wants because of it. How far this broker is with
the streams of a neighbour's side is told only then, since that is from where it is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dynatops.kit.bounded import BoundedTable
from dynatops.kit.filters import Filter, FilterError
from dynatops.v1 import overlay_pb2
from dynatops.v1.overlay_pb2 import (
    LinkPositions,
    TableConfirmed,
    TableHeard,
    WantedFilter,
)
from overlay.base.catalogue import is_system
from overlay.forwarding.exchange.confirmations import Confirmations
from overlay.forwarding.forwarding_effects import FilterInPlace
from overlay.forwarding.keeping.fetches import Fetches
from overlay.forwarding.links.neighbours import ServingState, TreeNeighbour
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tables.subscription_tables import EVERYTHING, TableChange
from overlay.forwarding.tree_context import TreeContext

# Filters in one message of a whole table.
_FILTERS_AT_ONCE = 2_000


class TableExchange:
    def __init__(self, context: TreeContext, fetches: Fetches) -> None:
        self._context = context
        self._fetches = fetches
        settings, counters = context.settings, context.counters
        waiting_max, patience_s = settings.waiting_confirmations_max, settings.start_patience_s
        self._confirmations = Confirmations(waiting_max, counters, patience_s, self._confirmed_by)
        # Of advertisements: whether what is wanted because of them is known.
        self.hearings = Confirmations(waiting_max, counters, patience_s, lambda n: n.heard_version)
        # Topics published on here, whether their advertisement is in place.
        self._advertised: BoundedTable[str, bool] = BoundedTable(
            settings.topics_published_max,
            counters,
            "topics_unremembered",
            on_drop=lambda topic, _: context.tables.withdraw(HERE, _as_filter(topic)),
        )
        # What is wanted here, and which time: a filter may be given up and wanted again.
        self._wanted: dict[Filter, int] = {}
        self._wants = 0

    def _confirmed_by(self, neighbour: TreeNeighbour) -> int:
        """With advertisements it is only asked for something once it has said what it has."""
        is_answered = neighbour.confirmed_version >= neighbour.answer_version > 0
        if self._context.topology.advertisements and not is_answered:
            return 0
        return neighbour.confirmed_version

    def want(self, wanted: Filter) -> None:
        self._wants += 1
        self._wanted.setdefault(wanted, self._wants)
        self._context.tables.want(HERE, wanted)
        self.tell_tables()
        self.await_in_place(wanted)

    def unwant(self, wanted: Filter) -> None:
        self._wanted.pop(wanted, None)
        self._context.tables.give_up(HERE, wanted)

    def forget(self, broker_id: str) -> None:
        """The neighbour's session has ended: it is owed no answers."""
        self._confirmations.forget(broker_id)
        self.hearings.forget(broker_id)

    def settle(self, age_s: float) -> None:
        """Answer what is in place. The topology has been in use for so long."""
        self.hearings.settle(self._context.neighbours, age_s)
        self._confirmations.settle(self._context.neighbours, age_s)

    def refill_tables(self) -> None:
        """The tables are new and empty: put into them what this broker itself wants."""
        ads = [_as_filter(topic) for topic in self._advertised]
        self._context.tables.change(HERE, TableChange(tuple(self._wanted), advertise=tuple(ads)))

    def advertise_again(self, topics: Iterable[str]) -> None:
        """These topics, and all that were advertised; none is in place until that is said."""
        for topic in (*topics, *self._advertised):
            self._advertised[topic] = False
        everything = list(self._advertised)
        ads = tuple(map(_as_filter, everything))
        self._context.tables.change(HERE, TableChange(advertise=ads))
        self.tell_tables()
        done = partial(self._advertisements_in_place, everything)
        self._confirmations.wait(HERE, self._context.neighbours.values(), done)

    def tell_whole_table(self, neighbour: TreeNeighbour) -> None:
        whole = self._context.tables.whole(neighbour.broker_id)
        told, ads = whole.add, whole.advertise
        neighbour.told_version = 1
        sends_all = self._context.tables.sends_all(neighbour.broker_id)
        neighbour.standing.begin_session([EVERYTHING] if sends_all else told)
        starts = range(0, max(len(told), len(ads), 1), _FILTERS_AT_ONCE)
        for start in starts:
            end = start + _FILTERS_AT_ONCE
            change = overlay_pb2.TableChange(version=1, whole=True, more=start != starts[-1])
            change.add.extend(map(to_wire, told[start:end]))
            change.advertise.extend(map(to_wire, ads[start:end]))
            neighbour.link.message().table_change.CopyFrom(change)

    def tell_tables(self) -> None:
        """Nothing may go before this that relies on it."""
        for broker_id, news in self._context.tables.changes().items():
            neighbour = self._context.neighbours.get(broker_id)
            if neighbour is not None and neighbour.is_open:
                neighbour.told_version += 1
                neighbour.standing.tell(neighbour.told_version, news.add, news.remove)
                _say_change(neighbour, news)

    def on_table_change(
        self, neighbour: TreeNeighbour, message: overlay_pb2.TableChange, now_s: float
    ) -> None:
        try:
            change = TableChange(
                add=from_wire(message.add),
                remove=from_wire(message.remove),
                advertise=from_wire(message.advertise),
                withdraw=from_wire(message.retract),
            )
        except FilterError:
            self._context.counters.link_frames_strange += 1
            return
        tables, broker_id = self._context.tables, neighbour.broker_id
        neighbour.table_version = message.version
        if message.whole:
            neighbour.incoming += change.add
            neighbour.incoming_ads += change.advertise
            if message.more:
                return
            if not tables.is_wanted_by(broker_id, neighbour.incoming):
                neighbour.is_kept = False
            tables.replace(broker_id, neighbour.incoming, neighbour.incoming_ads)
            neighbour.incoming, neighbour.incoming_ads = [], []
        else:
            is_live = neighbour.state is ServingState.LIVE
            if not is_live and not tables.is_wanted_by(broker_id, change.add):
                neighbour.is_kept, neighbour.is_outdated = False, True
            tables.change(broker_id, change)
        self.tell_tables()
        neighbour.answer_version = neighbour.answer_version or neighbour.told_version
        self._confirmations.wait(
            broker_id,
            self._context.neighbours.values(),
            partial(self._version_in_place, neighbour, neighbour.session, message.version),
        )
        if self._context.topology.advertisements:
            self.hearings.wait(
                broker_id,
                self._context.neighbours.values(),
                partial(self._version_heard, neighbour, neighbour.session, message.version, now_s),
            )

    def _version_heard(
        self, neighbour: TreeNeighbour, session: int, version: int, now_s: float
    ) -> None:
        if neighbour.session != session or not neighbour.is_open:
            return
        neighbour.link.message().table_heard.version = version
        if not neighbour.has_positions:
            self.tell_positions(neighbour, now_s)

    def on_table_heard(self, neighbour: TreeNeighbour, message: TableHeard, now_s: float) -> None:
        neighbour.heard_version = max(neighbour.heard_version, message.version)

    def _version_in_place(self, neighbour: TreeNeighbour, session: int, version: int) -> None:
        if neighbour.session == session:
            neighbour.ready_version = max(neighbour.ready_version, version)

    def on_table_confirmed(
        self, neighbour: TreeNeighbour, message: TableConfirmed, now_s: float
    ) -> None:
        neighbour.confirmed_version = max(neighbour.confirmed_version, message.version)
        places = partial(self._context.places_from, neighbour.broker_id)
        neighbour.standing.confirm(message.version, places)

    def await_in_place(self, wanted: Filter) -> None:
        done = partial(self._filter_in_place, wanted, self._wanted[wanted])
        self._confirmations.wait(HERE, self._context.neighbours.values(), done)

    def _filter_in_place(self, wanted: Filter, which: int) -> None:
        if self._wanted.get(wanted) == which:
            self._context.effects.append(FilterInPlace(wanted, self._context.streams.positions()))

    def is_advertised(self, topic: str) -> bool:
        """Whether events of the topic may go out: everybody who wants them has said so."""
        if not self._context.topology.advertisements:
            return True
        in_place = self._advertised.get(topic)
        if in_place is None:
            self._advertised[topic] = False
            self._context.tables.advertise(HERE, _as_filter(topic))
            self.tell_tables()
            done = partial(self._advertisement_in_place, topic)
            self._confirmations.wait(HERE, self._context.neighbours.values(), done)
        return bool(in_place)

    def _advertisement_in_place(self, topic: str) -> None:
        if topic in self._advertised:
            self._advertised[topic] = True

    def _advertisements_in_place(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._advertisement_in_place(topic)

    def tell_positions(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """What it is to send from here on depends on all that it has been told by now."""
        neighbour.has_positions = True
        positions = LinkPositions(is_new=neighbour.is_new_here)
        positions.places.extend(self._context.places_beyond(neighbour.broker_id))
        neighbour.link.message().positions.CopyFrom(positions)
        self._fetches.opened(neighbour.broker_id, now_s)


def to_wire(each: Filter) -> WantedFilter:
    return WantedFilter(pattern=each.pattern, where=each.where)


def from_wire(filters: Iterable[WantedFilter]) -> tuple[Filter, ...]:
    return tuple(_as_filter(each.pattern, each.where) for each in filters)


def _as_filter(pattern: str, where: str = "") -> Filter:
    """Brokers publish on topics that clients may not name."""
    return Filter.of_system(pattern) if is_system(pattern) else Filter.parse(pattern, where)


def _say_change(neighbour: TreeNeighbour, news: TableChange) -> None:
    change = neighbour.link.message().table_change
    change.version = neighbour.told_version
    for column, filters in (
        (change.add, news.add),
        (change.remove, news.remove),
        (change.advertise, news.advertise),
        (change.retract, news.withdraw),
    ):
        column.extend(map(to_wire, filters))
