"""What a log may drop: by age, size and number for each topic, and all but the last of each key.

    the newest segment -> ... -> the oldest -> those of which nothing stays, the oldest first

A pass goes from the newest segment to the oldest, so that it is known of each how much there is
that is newer, and which keys have been seen. What filled a hole is late, and does not count. Of a
segment all is kept that is retained, a frame's worth more at most; it is dropped when nothing in it
is, and written anew when that is less than a share. So nothing is dropped early, and what is
retained no more goes when that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker_agent.core.stores.log.log_context import LogContext
from broker_agent.core.stores.log.log_rows import LogRow, RowKind
from broker_agent.core.stores.log.reading import FrameAt, checked_rows
from broker_agent.core.stores.log.segment_index import SegmentIndex, TopicFrames
from broker_agent.core.stores.log.stored_runs import StoredRunError, run_of
from dynatops.kit.filters import attributes_of, pattern_matches
from dynatops.kit.run_events import events_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Of each topic that the pattern matches, and no rule before. 0: no bound."""

    pattern: str
    age_s: float = 0.0
    events_max: int = 0
    bytes_max: int = 0
    # Keep only the last event of each key: of the topic, or of each value of this attribute. Events
    # without the attribute stay.
    is_compacted: bool = False
    key: str = ""


_ALL = RetentionRule(pattern="#")


@dataclass(slots=True)
class _Seen:
    """How much of a topic is retained that is newer."""

    events: int = 0
    nbytes: int = 0

    def is_enough(self, rule: RetentionRule) -> bool:
        return bool(
            (rule.events_max and self.events >= rule.events_max)
            or (rule.bytes_max and self.nbytes >= rule.bytes_max)
        )


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """What of a segment is retained."""

    number: int
    # Nothing: all of it is too old, or there is enough that is newer.
    is_expired: bool
    # Of topics that are bounded, the first frame that is kept.
    first_kept: dict[str, int]
    # Of rows that are compacted, by frame and place in it: which of their events are kept.
    kept_events: dict[tuple[int, int], list[int]]
    kept_bytes: int
    nbytes: int

    def keeps(self, topic: str, frame: int) -> bool:
        """Whether rows of it in that frame are not expired."""
        return not self.is_expired and frame >= self.first_kept.get(topic, 0)

    @property
    def share(self) -> float:
        return self.kept_bytes / self.nbytes if self.nbytes else 1.0


def _expired(number: int) -> SegmentVerdict:
    return SegmentVerdict(number, True, {}, {}, 0, 1)


def _nbytes(entries: TopicFrames, first: int = 0) -> int:
    return sum(entries.nbytes[first:]) + sum(entries.late_bytes[first:])


class RetentionPass:
    def __init__(self, context: LogContext, rules: Sequence[RetentionRule], now_us: int) -> None:
        self._context = context
        self._rules = rules
        self._now_us = now_us
        self._rule_of: dict[str, RetentionRule] = {}
        self._seen: dict[str, _Seen] = {}
        # Topics with values of their keys.
        self._keys: set[tuple[str, object]] = set()
        active = context.segments.active
        if active is not None:
            self._judge(active.number)
        self._waiting = sorted(context.segments.sealed)
        # Those that are expired: when their turn comes, the oldest goes first, and is not needed
        # any more to say where the others go on.
        self._expired: list[int] = []

    def next_verdict(self) -> SegmentVerdict | None:
        """Of the next older segment, and of those that are expired at last; None at the end. Raises
        LogFilesError."""
        while self._waiting:
            verdict = self._judge(self._waiting.pop())
            if not verdict.is_expired:
                return verdict
            self._expired.append(verdict.number)
        return _expired(self._expired.pop()) if self._expired else None

    def _judge(self, number: int) -> SegmentVerdict:
        index = self._context.segments.index(number)
        first_kept: dict[str, int] = {}
        kept_bytes = nbytes = 0
        compacted = []
        for topic in index.topics():
            rule = self._rule(topic)
            entries = index.topic_frames(topic)
            nbytes += _nbytes(entries)
            if rule is _ALL:
                kept_bytes += _nbytes(entries)
                continue
            if rule.is_compacted:
                compacted.append(topic)
            first = self._first_kept(number, index, topic, rule)
            kept_bytes += _nbytes(entries, first)
            is_any_kept = first < len(entries.frames)
            first_kept[topic] = entries.frames[first] if is_any_kept else len(index)
        kept_events, dropped_bytes = self._compact(number, index, compacted, first_kept)
        is_expired = all(first_kept.get(topic, 0) >= len(index) for topic in index.topics())
        kept_bytes -= dropped_bytes
        return SegmentVerdict(number, is_expired, first_kept, kept_events, kept_bytes, nbytes)

    def _rule(self, topic: str) -> RetentionRule:
        rule = self._rule_of.get(topic)
        if rule is None:
            matching = (rule for rule in self._rules if pattern_matches(rule.pattern, topic))
            rule = self._rule_of[topic] = next(matching, _ALL)
        return rule

    def _first_kept(self, number: int, index: SegmentIndex, topic: str, rule: RetentionRule) -> int:
        """Which of the topic's frames; those before are too old, or there is enough newer."""
        frames, events, sizes, _ = index.topic_frames(topic)
        first = 0
        if rule.age_s:
            oldest_us = self._now_us - int(rule.age_s * 1e6)
            young = (p for p, place in enumerate(frames) if index.frame(place).last_us >= oldest_us)
            first = next(young, len(frames))
        if rule.events_max or rule.bytes_max:
            seen = self._seen.setdefault(topic, _Seen())
            damaged = self._context.segments.damaged
            for place in range(len(frames) - 1, first - 1, -1):
                if seen.is_enough(rule):
                    return place + 1
                if (number, index.frame(frames[place]).offset) in damaged:
                    continue
                seen.events += events[place]
                seen.nbytes += sizes[place]
        return first

    # ---- compaction -----------------------------------------------------------------------------

    def _compact(
        self,
        number: int,
        index: SegmentIndex,
        topics: Iterable[str],
        first_kept: dict[str, int],
    ) -> tuple[dict[tuple[int, int], list[int]], int]:
        """Which events of which rows are the last of their keys; how many bytes the others have."""
        kept: dict[tuple[int, int], list[int]] = {}
        dropped_bytes = 0
        wanted = set(topics)
        for at in self._frames_from_the_end(number, index, wanted):
            rows = checked_rows(self._context, at) or []
            for place in range(len(rows) - 1, -1, -1):
                row = rows[place]
                if row.topic in wanted and row.events and at.place >= first_kept[row.topic]:
                    chosen = self._last_of_keys(row)
                    kept[at.place, place] = chosen
                    dropped_bytes += len(row.data) * (row.events - len(chosen)) // row.events
        return kept, dropped_bytes

    def _frames_from_the_end(
        self, number: int, index: SegmentIndex, topics: set[str]
    ) -> Iterator[FrameAt]:
        places = {place for topic in topics for place in index.topic_frames(topic).frames}
        for place in sorted(places, reverse=True):
            yield FrameAt(number, place, index.frame(place))

    def _last_of_keys(self, row: LogRow) -> list[int]:
        """Places of its events of which there is no later one."""
        kept = []
        keys = self._keys_of(row)
        for place in range(len(keys) - 1, -1, -1):
            key = keys[place]
            if key is not None and (row.topic, key) in self._keys:
                continue
            kept.append(place)
            if key is None or row.is_late:
                continue
            if len(self._keys) < self._context.settings.compaction_keys_max:
                self._keys.add((row.topic, key))
            else:
                self._context.counters.log_keys_skipped += 1
        kept.reverse()
        return kept

    def _keys_of(self, row: LogRow) -> list[object]:
        """None: has none."""
        name = self._rule(row.topic).key
        if not name:
            return [""] * row.events
        if row.kind == RowKind.PLAIN:
            return [None]
        try:
            run = run_of(row)
        except StoredRunError:
            run = None
        events = events_of(run) if run is not None else None
        if events is None:
            return [None] * row.events
        return [attributes_of(event.attributes).get(name) for event in events]
