"""Past and present of a subscription, joined: every stored event once, then what comes live.

    live --------> held --------------------.
    what stores have, up to where live is --> handed out --NOT_YET: again--> what was held, and live

The subscription is in place first. What comes live is held, and stores are asked for the past up to
where live deliveries have come by then (`History.upto`): a store is behind them by what its disk
takes. Once one has come so far, and has told all of it, what was held follows, but for what has
come already.

Not more is held than a bound. Past it all that is held is dropped, since stores have that, too:
they are asked for more, up to a later place. What is dropped, and did not come from a store either,
is told as missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from dynatops.client.core.past_reading import PastReading, Places
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.kit.bundles import EVENT_BYTES
from dynatops.kit.filters import Filter, attributes_of, pattern_matches
from dynatops.kit.run_events import events_of
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import Cursor

HELD_EVENTS_MAX = 50_000
HELD_BYTES_MAX = 16 << 20

LiveItem = Arrived | ArrivedBundle
# A topic or, where topics share numbers, nothing; a term or stream; a number.
_Place = tuple[str, int, int]


class Joining:
    def __init__(
        self, filters: Sequence[Filter], after: Places, held_events_max: int = HELD_EVENTS_MAX
    ) -> None:
        self._filters = list(filters)
        self._held_events_max = held_events_max
        self.reading = PastReading(after)
        # Whether what comes live is handed out as it comes.
        self.is_joined = False
        self._held: deque[LiveItem] = deque()
        self._held_events = 0
        self._held_bytes = 0
        # By topic and term, up to where events were dropped.
        self._dropped: dict[tuple[str, int], int] = {}
        # Where stores were to have come to when they were asked last, and whether more was dropped
        # since.
        self._asked: set[tuple[str, int]] = set()
        self.asked: Sequence[Cursor] = ()
        self._pattern = ""
        self._has_dropped = False

    # ---- what comes live ------------------------------------------------------------------------

    def live(self, item: LiveItem) -> Sequence[LiveItem]:
        """What of it is to be handed out now."""
        if self.is_joined:
            return self._admit(item)
        self._held.append(item)
        self._held_events += _events_in(item)
        self._held_bytes += _size_of(item)
        if self._held_events > self._held_events_max or self._held_bytes > HELD_BYTES_MAX:
            self._drop()
        return ()

    def _drop(self) -> None:
        for item in self._held:
            for topic, term, seq in self._wanted_of(item):
                key = topic, term
                self._dropped[key] = max(seq, self._dropped.get(key, 0))
        self._held.clear()
        self._held_events = self._held_bytes = 0
        self._has_dropped = True

    def _wanted_of(self, item: LiveItem) -> Iterator[_Place]:
        """Where its events are that the subscription wants, or the last of a run's."""
        if isinstance(item, ArrivedBundle):
            bundle = item.bundle
            for place in item.places:
                if self._wants(bundle.topics[place], None):
                    yield bundle.topics[place], bundle.terms[place], bundle.seqs[place]
            return
        run, events = item.run, events_of(item.run) or ()
        for at, offset in reversed(item.places):
            if at >= len(events) or self._wants(run.topic, events[at].attributes):
                yield run.topic, run.term, run.first_seq + offset
                return

    def _wants(self, topic: str, attributes: object) -> bool:
        values = attributes_of(attributes) if attributes is not None else {}  # type: ignore[arg-type]
        return any(
            pattern_matches(each.pattern, topic)
            and (each.predicate is None or each.predicate.holds(values))
            for each in self._filters
        )

    def _admit(self, item: LiveItem) -> Sequence[LiveItem]:
        if isinstance(item, ArrivedBundle):
            return self.reading.admit(item.bundle.pick(item.places))
        return [
            part
            for new in self.reading.admit(item.run)
            if isinstance(new, Arrived)
            and (part := Arrived(item.run, max(new.start, item.start), min(new.stop, item.stop)))
            and part.start < part.stop
        ]

    # ---- what stores have -----------------------------------------------------------------------

    def ask_up_to(self, pattern: str, places: Sequence[Cursor]) -> list[Cursor]:
        """Stores are asked for what there is of these topics up to these places, at which live
        deliveries are now; as they are told."""
        self._pattern = pattern
        self._has_dropped = False
        self._asked = {(_unit(c.topic), seen.term) for c in places for seen in c.seen}
        upto: list[Cursor] = []
        for place in places:
            seen = [each for each in place.seen if each.seq]
            if seen:
                upto.append(Cursor(topic=place.topic, seen=seen))
        self.asked = upto
        return upto

    @property
    def must_ask_again(self) -> bool:
        """A store has told all up to there: whether something may be missing before what came live
        meanwhile."""
        return self._has_dropped or any(map(self._begins_beyond, self._held))

    def _begins_beyond(self, item: LiveItem) -> bool:
        """Whether something is before it that nobody has asked for."""
        if isinstance(item, ArrivedBundle):
            bundle = item.bundle
            return any(
                bundle.seqs[at] > 1 and self._is_news(bundle.topics[at], bundle.terms[at])
                for at in item.places
            )
        run = item.run
        return (run.first_seq > 1 or run.prev_seq > 0) and self._is_news(run.topic, run.term)

    def _is_news(self, topic: str, term: int) -> bool:
        has_asked = (topic, term) in self._asked or ("", term) in self._asked
        return not has_asked and pattern_matches(self._pattern, topic)

    def join(self) -> Iterator[LiveItem]:
        """What was held, and has not come from a store; from now on live comes as it comes."""
        self.is_joined = True
        while self._held:
            yield from self._admit(self._held.popleft())

    def missing(self) -> list[str]:
        """Topics of which something was dropped that no store has told."""
        dropped, self._dropped = self._dropped, {}
        topics = {
            topic: None
            for (topic, term), seq in dropped.items()
            if not self.reading.has_reached(topic, term, seq)
        }
        return list(topics)


def _unit(topic: str) -> str:
    return "" if topic == STREAMS else topic


def _events_in(item: LiveItem) -> int:
    return len(item.places) if isinstance(item, ArrivedBundle) else item.stop - item.start


def _size_of(item: LiveItem) -> int:
    if isinstance(item, ArrivedBundle):
        return item.bundle.nbytes + EVENT_BYTES * len(item.places)
    return len(item.run.events)
