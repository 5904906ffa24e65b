"""Publications of this broker's own clients: stamped, once each, with the numbers of its stream.

A publisher's numbers on a topic tell repeats. What cannot be taken yet is left alone: publishers'
brokers send again what is not acknowledged. Where brokers advertise, the first events of a topic
wait until its advertisement is in place everywhere.

Streams come to a reader one after the other, in whatever order. So each event of a publisher that
has published elsewhere, or in a former stream of this broker, says from which number on all of
them are in this stream: those before may yet come, and are no repeats then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dynatops.kit.bounded import BoundedTable
from dynatops.kit.bundles import Bundle
from dynatops.kit.repeats import Publishers, PublisherWindow, part_of_events
from dynatops.v1.overlay_pb2 import AckLevel, Publication, PublishAck, Run
from overlay.base.effects import Accepted
from overlay.forwarding.keeping.copies import CopySending
from overlay.forwarding.streams.portions import Portion
from overlay.forwarding.tree_context import TreeContext


class StreamOrigin:
    def __init__(
        self,
        context: TreeContext,
        copies: CopySending,
        route: Callable[[Portion], None],
        is_advertised: Callable[[str], bool],
    ) -> None:
        # 0 until what former lives published is known.
        self.stream = 0
        self._context = context
        self._copies = copies
        self._route = route
        self._is_advertised = is_advertised
        self._topics: BoundedTable[str, Publishers] = BoundedTable(
            context.settings.topics_published_max, context.counters, "topics_unremembered"
        )
        # Of a publisher and a topic, the newest number in former lives' logs, and where it is.
        self._former: BoundedTable[tuple[int, str], tuple[int, tuple[int, int]]] = BoundedTable(
            context.settings.topics_published_max, context.counters, "topics_unremembered"
        )
        # Publishers that have published in other streams, too.
        self._moved: BoundedTable[int, None] = BoundedTable(
            context.settings.topics_published_max, context.counters, "topics_unremembered"
        )
        # Of a publisher and a topic, up to where in the own log there must be copies before any
        # more is said: what is said of a number is said of all before it.
        self._copies_due: BoundedTable[tuple[int, str], int] = BoundedTable(
            context.settings.pending_acks_max, context.counters, "pending_acks_dropped"
        )

    def begin(self, stream: int) -> None:
        """From now on events are stamped with this stream's numbers."""
        context = self._context
        self.stream = stream
        for publishers in self._topics.values():
            for publisher in publishers.begin_elsewhere():
                self._moved[publisher] = None
        context.own.begin(stream)
        context.streams.add(stream, context.my_id, 0)
        self._copies.add_stream(stream)

    def remember(self) -> None:
        """What the log of former lives says of publishers."""
        for entry in self._context.own.log:
            item = entry.item
            if isinstance(item, Bundle):
                places = zip(item.terms, item.seqs, strict=True)
                for topic, number, place in zip(item.topics, item.numbers, places, strict=True):
                    self._remember(item.publisher, topic, number, place)
            elif isinstance(item, Run):
                number = item.first_number + item.count - 1
                place = item.term, item.first_seq + item.count - 1
                self._remember(item.publisher, item.topic, number, place)

    def _remember(self, publisher: int, topic: str, number: int, place: tuple[int, int]) -> None:
        self._publishers(topic).window(publisher).cover(number)
        self._former[publisher, topic] = number, place

    def _place_of(self, publication: Publication, number: int) -> tuple[int, int] | None:
        """Where former lives stamped it, if they did."""
        last = self._former.get((publication.publisher, publication.topic))
        return last[1] if last is not None and number <= last[0] else None

    def _publishers(self, topic: str) -> Publishers:
        publishers = self._topics.get(topic)
        if publishers is None:
            publishers = Publishers(self._context.settings.topic_publishers_max)
            self._topics[topic] = publishers
        else:
            self._topics.move_to_end(topic)
        return publishers

    def publish(self, publication: Publication, now_s: float) -> None:
        counters = self._context.counters
        window = self._publishers(publication.topic).window(publication.publisher)
        if not self.stream or not self._is_advertised(publication.topic):
            counters.publications_early += 1
            return
        if self._awaits_others(publication, now_s):
            counters.publications_early += 1
            return
        admitted = window.admit_next(
            publication.first_number, publication.count, publication.settled
        )
        if admitted is None:
            counters.publications_early += 1
            return
        window.gap_since_s = None
        repeats, _ = admitted
        fresh = publication.count - repeats
        if fresh and not publication.void:
            self._stamp(publication, window, repeats, fresh)
        else:
            counters.published_repeats += 1
        self._acknowledge(publication, fresh)

    def _awaits_others(self, publication: Publication, now_s: float) -> bool:
        """Whether its publisher has published elsewhere what has not come here yet."""
        known = self._context.streams.get(publication.known_term)
        if known is None or known.number >= publication.known_seq or known.end is not None:
            return False
        window = self._publishers(publication.topic).window(publication.publisher)
        if window.gap_since_s is None:
            window.gap_since_s = now_s
        return now_s - window.gap_since_s < self._context.settings.order_patience_s

    def _next(self) -> int:
        return self._context.own.highs[self.stream] + 1

    def _stamp(
        self, publication: Publication, window: PublisherWindow, repeats: int, fresh: int
    ) -> None:
        events = publication.events
        if repeats:
            events = part_of_events(events, repeats, fresh)
        run = Run(
            topic=publication.topic,
            term=self.stream,
            first_seq=self._next(),
            count=fresh,
            publisher=publication.publisher,
            first_number=publication.first_number + repeats,
            events=events,
        )
        if since := window.since:
            self._moved[publication.publisher] = None
            run.since_number = since
        self._route(run)

    def _acknowledge(self, publication: Publication, fresh: int) -> None:
        number = publication.first_number + publication.count - 1
        stream, seq = self.stream, self._next() - 1
        if not fresh:
            stream, seq = self._place_of(publication, number) or (stream, seq)
        ack = PublishAck()
        ack.acknowledged.add(
            topic=publication.topic,
            publisher=publication.publisher,
            number=number,
            term=stream,
            seq=seq,
            after_term=stream,
            after_seq=seq - fresh if fresh == publication.count else 0,
        )
        self._say(ack, publication.ack, [(publication.publisher, publication.topic)])

    def _say(
        self, ack: PublishAck, level: AckLevel.ValueType, sources: Sequence[tuple[int, str]]
    ) -> None:
        """`sources`: publisher and topic of what it is said of."""
        say = partial(self._context.effects.append, Accepted(self._context.me, ack))
        due = self._copies_due
        while due and self._copies.are_there(next(iter(due.values()))):
            due.popitem(last=False)
        if level in (AckLevel.ACK_LEVEL_REPLICATED, AckLevel.ACK_LEVEL_STORED):
            own_end = self._context.own.log.end_place
            for source in sources:
                due[source] = own_end
                due.move_to_end(source)
            self._copies.wait(say)
        elif due and any(source in due for source in sources):
            self._copies.wait(say)
        else:
            say()

    def publish_bundle(self, bundle: Bundle) -> None:
        """What is not plain is returned: it must come as publications."""
        places: list[int] = []
        returned: dict[str, None] = {}
        for place, topic in enumerate(bundle.topics):
            if topic not in returned and self._takes_plainly(bundle, place, topic):
                places.append(place)
            else:
                returned[topic] = None
        ack = PublishAck()
        if returned:
            ack.returned.add(publisher=bundle.publisher, topics=returned)
            self._say(ack, AckLevel.ACK_LEVEL_RP, ())
        if not places:
            return
        taken = bundle.pick(places)
        first = self._next()
        seqs = range(first, first + len(places))
        taken.terms, taken.seqs = [self.stream] * len(places), list(seqs)
        if taken.publisher in self._moved:
            taken.since_numbers = self._since_numbers(taken)
        self._route(taken)
        ack = PublishAck()
        ack.columns.add(
            publisher=taken.publisher,
            topics=taken.topics,
            numbers=taken.numbers,
            terms=taken.terms,
            seqs=taken.seqs,
        )
        self._say(ack, bundle.ack, [(taken.publisher, topic) for topic in taken.topics])

    def _since_numbers(self, bundle: Bundle) -> Sequence[int]:
        windows = (self._publishers(topic).window(bundle.publisher) for topic in bundle.topics)
        numbers = [window.since for window in windows]
        return numbers if any(numbers) else ()

    def _takes_plainly(self, bundle: Bundle, place: int, topic: str) -> bool:
        if not self.stream or not self._is_advertised(topic):
            return False
        return self._publishers(topic).admit_following(bundle.publisher, bundle.numbers[place])
