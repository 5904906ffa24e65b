"""What must hold of stores at the end of a run: what was acknowledged as stored is stored, nothing
is served that nobody published, and what one store has others have that keep it, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker_agent.core.base.store_units import stream_of_unit
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_rows import Stamp
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey
from dynatops.client.core.publications import Ack
from dynatops.kit.filters import pattern_covers, pattern_matches
from dynatops.kit.run_events import count_of
from dynatops.v1.overlay_pb2 import PastRange, Run
from simulator.stores.simulated_store import LOG_SETTINGS, StoreDisk

if TYPE_CHECKING:
    from simulator.world import World

_PORTION_BYTES = 700
# Topic, publisher, and the publisher's number.
EventKey = tuple[str, int, int]


def check_stores(world: World, disks: dict[str, StoreDisk], needed: int) -> Iterator[str]:
    """Of disks that kept their word as many have what was acknowledged as are needed, but for those
    that did not."""
    read = {name: _read(disk) for name, disk in disks.items()}
    kept = {name: Counter(each.events) for name, each in read.items()}
    yield from _check_stored(world, disks, kept, needed)
    yield from _check_same(disks, read)
    published = {(event.topic, event.publisher, event.number) for event in world.published}
    publishers = {publisher for _, publisher, _ in published}
    for name, events in kept.items():
        if strange := sorted(e for e in events.keys() - published if _is_honest(e, publishers)):
            topic, publisher, number = strange[0]
            yield (
                f"the store {name} serves {len(strange)} events that nobody published, first"
                f" number {number} of {publisher:x} on {topic!r}"
            )


@dataclass(slots=True)
class _ReadLog:
    log: EventLog
    # With their stamps, as whoever reads all of it gets them.
    events: dict[EventKey, Stamp] = field(default_factory=dict)


def _check_same(disks: Mapping[str, StoreDisk], read: Mapping[str, _ReadLog]) -> Iterator[str]:
    """What a store has each other one has that keeps it, and whose disk kept its word. In a tree a
    store can only be given what one has that keeps all that it keeps."""
    for name, mine in read.items():
        if disks[name].disk.betrayals:
            continue
        wanted = [each.pattern for each in disks[name].filters]
        for other, theirs in read.items():
            kept = [each.pattern for each in disks[other].filters]
            keeps_all = all(any(pattern_covers(one, each) for one in kept) for each in wanted)
            lost = sorted(
                event
                for event in theirs.events.keys() - mine.events.keys()
                if any(pattern_matches(pattern, event[0]) for pattern in wanted)
                and _may_have(mine.log, event[0], theirs.events[event], keeps_all=keeps_all)
            )
            if lost:
                topic, publisher, number = lost[0]
                yield (
                    f"the store {name} lacks {len(lost)} events that {other} has, first number"
                    f" {number} of {publisher:x} on {topic!r}"
                )


def _may_have(log: EventLog, topic: str, stamp: Stamp, *, keeps_all: bool) -> bool:
    """On a ring an event may be of a branch that is no part of the topic's history: then what the
    log has of that has no room for it."""
    if any(stream_of_unit(unit) is not None for unit in log.units()):
        return keeps_all
    return bool(log.coverage(topic).missing_in((stamp[0], stamp[1] - 1), stamp))


def _is_honest(event: EventKey, publishers: set[int]) -> bool:
    """Of somebody whose books are known: brokers and hostile clients publish, too. What nobody
    acknowledges may have been published before its publisher knew its number."""
    topic, publisher, _ = event
    return publisher in publishers and not publisher & 1 and topic.startswith("topic/")


def _check_stored(
    world: World, disks: dict[str, StoreDisk], kept: dict[str, Counter[EventKey]], needed: int
) -> Iterator[str]:
    liars = sum(disk.disk.betrayals > 0 for disk in disks.values())
    least = max(needed - liars, 0)
    lost = [
        event
        for event in world.published
        if event.ack is Ack.STORED
        and event.acknowledged_s is not None
        and sum((event.topic, event.publisher, event.number) in events for events in kept.values())
        < least
    ]
    if lost:
        first = lost[0]
        yield (
            f"{len(lost)} events that were acknowledged as stored are not on {least} disks, first"
            f" number {first.number} of {first.publisher:x} on {first.topic!r}, acknowledged at"
            f" {first.acknowledged_s:.3f} s"
        )


def _read(kept: StoreDisk) -> _ReadLog:
    read = _ReadLog(EventLog.open(kept.disk, LOG_SETTINGS, 1 << 40))
    key = ServedKey("reader", 1, 1)
    place, is_end = b"", False
    while not is_end:
        order = ReadOrder(key, "#", PastRange(with_loss=True), place, _PORTION_BYTES)
        portion = read_past(read.log, order)
        for run in portion.events:
            assert isinstance(run, Run)
            for offset in range(count_of(run)):
                event = run.topic, run.publisher, run.first_number + offset
                read.events[event] = run.term, run.first_seq + offset
        place, is_end = portion.place, portion.is_end or bool(portion.error)
    return read
