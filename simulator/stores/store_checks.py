"""What must hold of stores at the end of a run: what was acknowledged as stored is stored, and
nothing is served that nobody published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey
from dynatops.client.core.publications import Ack
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
    kept = {name: Counter(_events_in(disk)) for name, disk in disks.items()}
    yield from _check_stored(world, disks, kept, needed)
    published = {(event.topic, event.publisher, event.number) for event in world.published}
    publishers = {publisher for _, publisher, _ in published}
    for name, events in kept.items():
        if strange := sorted(e for e in events.keys() - published if _is_honest(e, publishers)):
            topic, publisher, number = strange[0]
            yield (
                f"the store {name} serves {len(strange)} events that nobody published, first"
                f" number {number} of {publisher:x} on {topic!r}"
            )


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


def _events_in(kept: StoreDisk) -> Iterable[EventKey]:
    """As whoever reads all of it gets them."""
    log = EventLog.open(kept.disk, LOG_SETTINGS, 1 << 40)
    key = ServedKey("reader", 1, 1)
    place, is_end = b"", False
    while not is_end:
        portion = read_past(
            log, ReadOrder(key, "#", PastRange(with_loss=True), place, _PORTION_BYTES)
        )
        for run in portion.events:
            assert isinstance(run, Run)
            for offset in range(count_of(run)):
                yield run.topic, run.publisher, run.first_number + offset
        place, is_end = portion.place, portion.is_end or bool(portion.error)
