"""What must hold however events travel, said without the code that is to make it hold.

Checkers read the state of simulated brokers and the histories of simulated clients, compare them
with each other, and return violations as sentences. They change nothing.

`check_deliveries` holds at the end of every run, `check_brokers` always: what holds of each broker
by itself, whatever the network does, is in `broker_agent.core.invariants`. What holds of a ring, or
of a tree, is beside the rest of it (`simulator.ring`, `simulator.tree`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from broker_agent.core.invariants import check_invariants
from dynatops.client.core.publications import Ack
from overlay.base.identifiers import show_term
from simulator.clients import HeardEvent, PublishedEvent, SimulatedSubscription
from simulator.world import SimulatedBroker, World

# An acknowledgement may have been on its way for so long.
_ACKNOWLEDGING_S = 1.0


# ---- each broker by itself -----------------------------------------------------------------------


def check_brokers(brokers: Iterable[SimulatedBroker]) -> list[str]:
    """INV-16: a broker's parts agree about its sessions, topics and publications."""
    return [
        f"{broker.broker_id}: {violation}"
        for broker in brokers
        if broker.alive
        for violation in check_invariants(broker.core)
    ]


# ---- deliveries ----------------------------------------------------------------------------------


def check_deliveries(world: World) -> list[str]:
    """Acknowledged events reach whoever stayed subscribed: once, and in order."""
    return [
        *_check_stamps(world.subscriptions),
        *(v for s in world.subscriptions for v in _check_order(s, stamps_anew=world.stamps_anew)),
        *_check_completeness(world),
        *_check_acknowledgements(world.published),
    ]


def _check_stamps(subscriptions: Iterable[SimulatedSubscription]) -> Iterable[str]:
    """INV-3: one stamp is one event, whoever heard it."""
    stamped: dict[tuple[str, int, int], tuple[int, int]] = {}
    ambiguous: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for subscription in subscriptions:
        for heard in subscription.heard:
            event = (heard.publisher, heard.number)
            first = stamped.setdefault((heard.topic, heard.term, heard.seq), event)
            if first != event:
                ambiguous[heard.topic, heard.term].add(heard.seq)
    for (topic, term), seqs in ambiguous.items():
        more = f", and so do {len(seqs) - 1} more of the term" if len(seqs) > 1 else ""
        yield f"{topic!r} {show_term(term)}/{min(seqs)} stands for two events{more}"


def _check_order(
    subscription: SimulatedSubscription, *, stamps_anew: bool = False
) -> Iterable[str]:
    """INV-4: each event once; those of one publisher, and those of one term, in order.

    Where a partition leaves both copies of a topic's history on the other side, subscribers are
    told that it is broken. What was stamped over there then comes when it is known, if need be
    late. So it does when a publisher goes to the other side of a partition: the events that it
    leaves behind are said to be missing. A client that has forgotten everything may get again what
    it had not confirmed; and where a term is all that one broker publishes (`stamps_anew`), from
    its beginning, if it left before it was told where its session stood.
    """
    lives: defaultdict[tuple[str, int], list[HeardEvent]] = defaultdict(list)
    for heard in subscription.heard:
        lives[heard.topic, heard.life].append(heard)
    for (topic, life), events in lives.items():
        who = f"{subscription.client} on {topic!r}"
        yield from _check_order_of(who, events, subscription.broken_s.get(topic))
        if not (stamps_anew and life > 1):
            yield from _check_stamps_of(who, events)


def _check_order_of(who: str, events: list[HeardEvent], broken_s: float | None) -> Iterable[str]:
    repeats = Counter((heard.publisher, heard.number) for heard in events)
    for (publisher, number), times in repeats.items():
        if times > 1:
            yield f"{who}: event {number} of {publisher:x} came {times} times"
    last_number: dict[int, int] = {}
    for heard in events:
        publisher, number, at_s = heard.publisher, heard.number, heard.at_s
        told = heard.is_late or (broken_s is not None and broken_s <= at_s)
        if number <= last_number.get(publisher, 0) and not told:
            yield f"{who}: event {number} of {publisher:x} came after a later one, at {at_s:.3f} s"
        last_number[publisher] = max(number, last_number.get(publisher, 0))


def _check_stamps_of(who: str, events: list[HeardEvent]) -> Iterable[str]:
    last_seq: dict[int, int] = {}
    for heard in events:
        if heard.seq <= last_seq.get(heard.term, 0):
            stamp = f"{show_term(heard.term)}/{heard.seq}"
            yield f"{who}: {stamp} came after a later one, at {heard.at_s:.3f} s"
        last_seq[heard.term] = heard.seq


def _check_completeness(world: World) -> Iterable[str]:
    """INV-5: a subscription that lasted until the end heard all published since it began.

    It lasts through whatever happens to its connections. What a fault took away for good need not
    be heard; that something is missing must have been told, after it was published.
    """
    acknowledged = [
        event
        for event in world.published
        if event.acknowledged_s is not None and world.is_owed(event)
    ]
    for subscription in world.subscriptions:
        if subscription.until_s is not None:
            continue
        heard = {(event.topic, event.publisher, event.number) for event in subscription.heard}
        wanted = subscription.filter
        owed = [
            event
            for event in acknowledged
            if event.at_s > subscription.since_s and wanted.matches(event.topic, event.attributes)
        ]
        lost = [e for e in owed if (e.topic, e.publisher, e.number) not in heard]
        kept = [event for event in lost if not may_be_gone(event, world)]
        untold = [event for event in lost if not _is_told(event, subscription)]
        if kept:
            yield _describe_lost("lost", kept, owed, subscription)
        if untold:
            yield _describe_lost("lost, and it was not told", untold, owed, subscription)


def _describe_lost(
    what: str,
    lost: Sequence[PublishedEvent],
    owed: Sequence[PublishedEvent],
    subscription: SimulatedSubscription,
) -> str:
    first = lost[0]
    return (
        f"{subscription.client} on {str(subscription.filter)!r}"
        f" since {subscription.since_s:.3f} s: {len(lost)} of {len(owed)} events {what},"
        f" first number {first.number} of {first.publisher:x} on {first.topic!r},"
        f" published at {first.at_s:.3f} s"
    )


def may_be_gone(event: PublishedEvent, world: World, patience_s: float = _ACKNOWLEDGING_S) -> bool:
    """Whether a fault may have taken away all that there was of it."""
    acknowledged_s = event.acknowledged_s or event.at_s
    return any(acknowledged_s <= at_s + patience_s for at_s in world.taken_away)


def _is_told(event: PublishedEvent, subscription: SimulatedSubscription) -> bool:
    """Whether the subscriber was told of a gap when the event was one of those that are missing."""
    told_s = subscription.told_s
    newest_s = max(told_s.get(event.topic, 0.0), told_s.get(subscription.filter.pattern, 0.0))
    return newest_s >= event.at_s


def _check_acknowledgements(published: Iterable[PublishedEvent]) -> Iterable[str]:
    """In the end every publication is acknowledged: publishers do not give up in a simulation. Of
    one that is to be stored they may be told that too few stores have it."""
    open_events = [
        event
        for event in published
        if event.acknowledged_s is None and event.not_stored_s is None and event.ack is not Ack.NONE
    ]
    if open_events:
        first = open_events[0]
        yield (
            f"{len(open_events)} publications were never acknowledged, first number {first.number}"
            f" of {first.publisher:x} on {first.topic!r}, at {first.at_s:.3f} s"
        )
