"""Who is to get what of a portion. A run is looked into only if it has to be: once, for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import TopicHolders, attributes_of
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import Run
from overlay.forwarding.streams.portions import Portion, selected_part
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tables.subscription_tables import SubscriptionTables

# Of each who gets some of the events, which ones.
_Places = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Match:
    # Neighbours that get it; and what those get that do not want all of it.
    targets: AbstractSet[str]
    parts: Mapping[str, Portion] = field(default_factory=dict)
    is_wanted_here: bool = False
    # What subscribers here may want of a bundle; None is all of it.
    local: Portion | None = None
    is_readable: bool = True


def match_portion(tables: SubscriptionTables, portion: Portion, source: str) -> Match:
    """For all but the source: the neighbour that it came from, or `HERE` for own events, which
    subscribers here get, too."""
    if isinstance(portion, Bundle):
        return _match_bundle(tables, portion, source)
    known = tables.index.of_topic(portion.topic)
    if known.conditions:
        return _match_conditions(tables, known, portion, source)
    return _whole(tables, known.all_events, source)


def _whole(
    tables: SubscriptionTables, takers: AbstractSet[str], source: str, *, is_readable: bool = True
) -> Match:
    takes_all = tables.takes_all
    if takes_all is not None:
        takers = takers | {takes_all}
    return Match(takers - {HERE, source}, is_wanted_here=HERE in takers, is_readable=is_readable)


def _match_conditions(
    tables: SubscriptionTables, known: TopicHolders[str], run: Run, source: str
) -> Match:
    events = events_of(run)
    if events is None:
        # What cannot be read meets all conditions: a client that can read it is asked.
        return _whole(tables, tables.may_take(run.topic), source, is_readable=False)
    index = tables.index
    places = _places_of_who_takes_all(tables, len(events))
    for place, event in enumerate(events):
        for holder in index.match_known(known, attributes_of(event.attributes)):
            places.setdefault(holder, []).append(place)
    here = places.pop(HERE, None)
    targets, parts = _parts(places, source, len(events), partial(selected_part, run, events))
    return Match(targets, parts, is_wanted_here=here is not None)


def _match_bundle(tables: SubscriptionTables, bundle: Bundle, source: str) -> Match:
    of_topic = tables.index.of_topic
    places = _places_of_who_takes_all(tables, len(bundle))
    for place, topic in enumerate(bundle.topics):
        # Events in bundles have no attributes.
        for holder in of_topic(topic).bare_events:
            places.setdefault(holder, []).append(place)
    here = places.pop(HERE, None)
    targets, parts = _parts(places, source, len(bundle), bundle.pick)
    return Match(targets, parts, here is not None, bundle.pick(here) if here else None)


def _places_of_who_takes_all(tables: SubscriptionTables, count: int) -> _Places:
    return {} if tables.takes_all is None else {tables.takes_all: [*range(count)]}


def _parts(
    places: _Places, source: str, count: int, pick: Callable[[list[int]], Portion]
) -> tuple[AbstractSet[str], dict[str, Portion]]:
    """Who gets something, and of those who do not get all of it what they get."""
    places.pop(source, None)
    # Mostly several want the same of it.
    made: dict[tuple[int, ...], Portion] = {}
    parts: dict[str, Portion] = {}
    for holder, wanted in places.items():
        if len(wanted) < count:
            key = tuple(wanted)
            if key not in made:
                made[key] = pick(wanted)
            parts[holder] = made[key]
    return places.keys(), parts
