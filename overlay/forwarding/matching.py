"""Who is to get what of a portion. A run is looked into only if it has to be: once, for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import Run
from overlay.forwarding.plain_tables import HERE, PlainTables, TopicMatch
from overlay.forwarding.portions import Portion, RunSelection, plain_event_meets


@dataclass(frozen=True, slots=True)
class Match:
    # Neighbours that get it; and what those get that do not want all of it.
    targets: frozenset[str]
    parts: Mapping[str, Portion] = field(default_factory=dict)
    is_wanted_here: bool = False
    # What subscribers here may want of a bundle; None is all of it.
    local: Portion | None = None
    is_readable: bool = True


def match_portion(tables: PlainTables, portion: Portion, source: str) -> Match:
    """For all but the source: the neighbour that it came from, or `HERE` for own events, which
    subscribers here get, too."""
    if isinstance(portion, Bundle):
        return _match_bundle(tables, portion, source)
    found = tables.match(portion.topic)
    if not found.conditional:
        return Match(found.whole - {HERE, source}, is_wanted_here=HERE in found.whole)
    return _match_conditions(found, portion, source)


def _match_conditions(found: TopicMatch, run: Run, source: str) -> Match:
    selection = RunSelection(run)
    targets, parts = set(found.whole), {}
    for holder, conditions in found.conditional.items():
        part = selection.of(conditions)
        if part is None:
            continue
        targets.add(holder)
        if part is not run:
            parts[holder] = part
    return Match(
        frozenset(targets - {HERE, source}),
        parts,
        HERE in targets,
        is_readable=selection.is_readable,
    )


def _match_bundle(tables: PlainTables, bundle: Bundle, source: str) -> Match:
    places: dict[str, list[int]] = {}
    for place, topic in enumerate(bundle.topics):
        found = tables.match(topic)
        for holder in found.whole:
            places.setdefault(holder, []).append(place)
        for holder, conditions in found.conditional.items():
            if plain_event_meets(conditions):
                places.setdefault(holder, []).append(place)
    here = places.pop(HERE, None)
    if source != HERE:
        places.pop(source, None)
    # Mostly several want the same of it.
    made: dict[tuple[int, ...], Portion] = {}
    parts: dict[str, Portion] = {}
    for holder, wanted in places.items():
        if len(wanted) < len(bundle):
            key = tuple(wanted)
            if key not in made:
                made[key] = bundle.pick(wanted)
            parts[holder] = made[key]
    return Match(frozenset(places), parts, here is not None, bundle.pick(here) if here else None)
