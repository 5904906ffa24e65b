"""How far topics have been read in what stores keep: each event once, whatever store it comes from.

What stores have may come twice: from another store after the first could not go on, and under other
stamps where a history was lost and published again. Stamps and the publishers' numbers tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynatops.client.core.reading import Arrived, ArrivedBundle, TopicCursor
from dynatops.kit.bundles import Bundle
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import Run

# Of so many topics it is known how far they have been read.
TOPICS_MAX = 20_000

# By topic: up to which number in each term, or stream.
Places = Mapping[str, Mapping[int, int]]
Portion = Run | Bundle


class PastReading:
    def __init__(self, after: Places | None = None) -> None:
        self._cursors: dict[str, TopicCursor] = {}
        # Topics beyond the bound: nobody knows how far they have been read.
        self.has_too_many_topics = False
        self.begin(after or {})

    def begin(self, after: Places) -> None:
        """These topics have been read up to here."""
        for topic, seen in after.items():
            cursor = self._cursor_of(topic)
            for term, seq in seen.items():
                cursor.begin(term, seq)

    def _cursor_of(self, topic: str) -> TopicCursor:
        cursor = self._cursors.get(topic)
        if cursor is None:
            cursor = TopicCursor()
            if len(self._cursors) < TOPICS_MAX:
                self._cursors[topic] = cursor
            else:
                self.has_too_many_topics = True
        return cursor

    def admit(self, portion: Portion) -> Sequence[Arrived | ArrivedBundle]:
        """What of it has not come before."""
        if isinstance(portion, Bundle):
            return self._admit_bundle(portion)
        return self._cursor_of(portion.topic).admit(portion) if portion.count else ()

    def _admit_bundle(self, bundle: Bundle) -> Sequence[ArrivedBundle]:
        for place, since in enumerate(bundle.since_numbers):
            if since:
                before = min(since, bundle.numbers[place])
                self._cursor_of(bundle.topics[place]).expect_before(bundle.publisher, before)
        places = [
            place
            for place, topic in enumerate(bundle.topics)
            if self._cursor_of(topic).admit_event(
                bundle.terms[place], bundle.seqs[place], bundle.publisher, bundle.numbers[place]
            )
        ]
        return (ArrivedBundle(bundle, places),) if places else ()

    def has_reached(self, topic: str, term: int, seq: int) -> bool:
        cursor = self._cursors.get(topic)
        if cursor is None:
            return False
        return any(each.term == term and each.seq >= seq for each in cursor.seen())

    def cursors(self) -> list[Cursor]:
        """What has been read; whoever goes on elsewhere wants what is beyond."""
        return [Cursor(topic=topic, seen=cursor.seen()) for topic, cursor in self._cursors.items()]
