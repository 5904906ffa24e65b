"""The asynchronous client.

    async with dynatops.connect("127.0.0.1:7400") as client:
        await client.publish("quake/ca", b"M5.1")
        async with client.subscribe("quake/ca") as events:
            async for event in events:
                print(event.payload)

What keeps it connected, whatever becomes of a broker, is in `engine`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, overload

from dynatops.client.arguments import (
    PublishingLimits,
    check_attributes,
    check_callback,
    check_events,
    check_pattern_list,
    check_patterns,
    check_payloads,
    check_text,
    check_timeout,
    check_work,
    checked_ack,
    checked_payload,
    chunks_of,
    event_chunks,
)
from dynatops.client.core.client_core import SessionWishes
from dynatops.client.core.publications import Ack, AckName, Payload
from dynatops.client.core.reading import FilterKey
from dynatops.client.core.work import AckMode, WorkItem, WorkLimits
from dynatops.client.engine import Engine, OnConnection
from dynatops.client.errors import (
    AckError,
    ArgumentValueError,
    ClosedError,
    HistoryError,
    PublishError,
    SubscribeError,
)
from dynatops.client.history import History
from dynatops.client.joined import JoinedQueue
from dynatops.client.past_source import PastSource
from dynatops.client.past_wishes import Pace, Since, check_pace, checked_wish
from dynatops.client.subscription import EventQueue, OnGap, Subscription
from dynatops.client.waiting import Together
from dynatops.client.working import (
    WorkLinks,
    WorkQueue,
    dead_letter_attributes,
)
from dynatops.kit.filters import Filter, Value, attributes_to_wire
from dynatops.kit.security.tls import Tls
from dynatops.kit.topics import TOPIC_BYTES_MAX, check_topic
from dynatops.v1.client_pb2 import Welcome
from dynatops.v1.overlay_pb2 import Attribute

# Past so much that is not handed to the network yet, publishing lets other tasks run.
_GATHERED_BYTES_MAX = 128 << 10
# A dead letter topic that does not take an event is asked again after so long.
_DEAD_LETTER_RETRY_S = 5.0

log = logging.getLogger(__name__)


class Client:
    """A connection to a network of brokers. Made by `dynatops.connect`."""

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        wishes: SessionWishes,
        tls: Tls | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self._engine = Engine(addresses, client_id, wishes, tls, on_connection)
        self._core = self._engine.core
        self._inbox = self._engine.inbox
        self._waiting = self._engine.waiting
        self._work_links = WorkLinks(
            self._inbox.taking, self._engine.tell_taken, self._engine.told, self.flush, self._bury
        )
        # What a broker takes, and the broker's word for it; none yet.
        self._limits = PublishingLimits(TOPIC_BYTES_MAX, sys.maxsize)
        self._limits_of: Welcome | None = None
        # Events on their way to a dead letter topic.
        self._burials: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        where = f"at {self.broker}" if self.broker else "not connected"
        if self._engine.failure is not None:
            where = f"ended: {self._engine.failure}"
        return f"<Client {self.client_id!r}, {where}>"

    @property
    def client_id(self) -> str:
        """The name of the session."""
        return self._core.client_id

    @property
    def broker(self) -> str:
        """The broker that this client is connected to; empty if to none."""
        welcome = self._core.welcome
        return welcome.broker_id if welcome is not None else ""

    @property
    def resumed(self) -> list[Filter]:
        """Filters that the session was kept with, and that this client has not subscribed with yet.

        Their events wait until it does.
        """
        return [Filter.parse(pattern, where) for pattern, where in self._core.reading.unclaimed]

    # ---- opening and closing --------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Connect; `connect` calls it. Raises ConnectError, AccessError."""
        await self._engine.open(timeout_s)

    async def __aenter__(self) -> Self:
        self._engine.check_usable()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._engine.failure is None:
                await self.flush()
        finally:
            await self.close()

    async def close(self) -> None:
        """Disconnect at once; what has not been handed to the broker is lost. See `flush`."""
        for task in self._burials:
            task.cancel()
        await self._engine.close()

    # ---- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish one event, and wait until it has reached its level of acknowledgement.

        With `Ack.NONE` it returns as soon as the event is taken in for sending. `attributes` are
        what subscribers' conditions ask about.

        Raises TopicError, AttributesError or ArgumentError if the call cannot be right, and
        PublishError if the event is refused, or not acknowledged within `timeout_s` seconds.
        """
        limits = self._publishing_limits()
        if type(topic) is not str or topic not in limits.right_topics:
            limits.check_topic(topic)
        level, wire = _checked_options(attributes, ack, timeout_s)
        data = payload if type(payload) is bytes else checked_payload(payload)
        engine, publications = self._engine, self._core.publications
        # What `_pause` looks at, without its coroutine.
        if publications.open_bytes > _GATHERED_BYTES_MAX or not engine.window_open.is_set():
            limits = await self._pause()
        if len(data) > limits.payload_bytes_max:
            raise _too_large(topic, data, limits)
        now_us = time.time_ns() // 1_000
        number = publications.publish(topic, (data,), level, now_us, wire)
        engine.has_taken_in()
        if level is not Ack.NONE:
            await self._waiting.published(topic, number, timeout_s)

    @overload
    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None: ...

    @overload
    async def publish_many(
        self,
        events: Iterable[tuple[str, Payload]],
        /,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None: ...

    async def publish_many(
        self,
        topic: str | Iterable[tuple[str, Payload]],
        payloads: Iterable[Payload] | None = None,
        *,
        attributes: Mapping[str, Value] | None = None,
        ack: Ack | AckName = Ack.REPLICATED,
        timeout_s: float = 30.0,
    ) -> None:
        """Publish events in this order, and wait once, until the last has reached its level: of one
        topic, `publish_many(topic, payloads)`, or of several, `publish_many(events)`, pairs of a
        topic and a payload; then until the last of each topic has.

        Each of them has these `attributes`. Of a list, nothing is published if one of it is no
        payload, or no such pair; of anything else that yields them, what comes before that one is.
        """
        limits = self._publishing_limits()
        if payloads is None and not isinstance(topic, str):
            level, wire = _checked_options(attributes, ack, timeout_s)
            check_events(topic)
            await self._publish_each(event_chunks(topic, limits), level, wire, timeout_s)
            return
        limits.check_topic(topic)
        level, wire = _checked_options(attributes, ack, timeout_s)
        check_payloads(payloads)
        number = 0
        for data in chunks_of(payloads or ()):
            number = await self._publish_run(str(topic), data, level, wire)
        if number and level is not Ack.NONE:
            await self._waiting.published(str(topic), number, timeout_s)

    async def _publish_run(
        self, topic: str, payloads: Sequence[bytes], ack: Ack, attributes: list[Attribute] | None
    ) -> int:
        """The number of the last."""
        limits = await self._pause()
        count = limits.fitting(payloads)
        number = 0
        if count:
            now_us, fitting = time.time_ns() // 1_000, payloads[:count]
            number = self._core.publications.publish(topic, fitting, ack, now_us, attributes)
            self._engine.has_taken_in()
        if count < len(payloads):
            raise _too_large(topic, payloads[count], limits)
        return number

    async def _publish_each(
        self,
        chunks: Iterable[tuple[Sequence[str], Sequence[bytes]]],
        ack: Ack,
        attributes: list[Attribute] | None,
        timeout_s: float,
    ) -> None:
        publications, waiting, together = self._core.publications, self._waiting, Together()
        for topics, payloads in chunks:
            limits = await self._pause()
            count = limits.fitting(payloads)
            now_us = time.time_ns() // 1_000
            last = publications.publish_each(
                topics[:count], payloads[:count], ack, now_us, attributes
            )
            if ack is not Ack.NONE:
                waiting.add(together, last)
            self._engine.has_taken_in()
            if count < len(payloads):
                raise _too_large(topics[count], payloads[count], limits)
        if ack is not Ack.NONE:
            await waiting.published_together(together, timeout_s)

    async def _pause(self) -> PublishingLimits:
        """Until no more is under way than the network takes; and what an application has gathered
        that does nothing but publish goes out first. What the broker takes then."""
        if self._core.publications.open_bytes > _GATHERED_BYTES_MAX:
            await asyncio.sleep(0)
        if not self._engine.window_open.is_set():
            await self._engine.window_open.wait()
        self._engine.raise_if_failed()
        return self._publishing_limits()

    def _publishing_limits(self) -> PublishingLimits:
        """Raises ClosedError, and what else forbids a call from here."""
        self._engine.check_usable()
        welcome = self._core.welcome
        if welcome is not self._limits_of:
            self._limits_of = welcome
            self._limits = PublishingLimits(
                welcome.topic_bytes_max if welcome is not None else TOPIC_BYTES_MAX,
                welcome.payload_bytes_max if welcome is not None else sys.maxsize,
            )
        return self._limits

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until a broker has taken everything published so far, acknowledged or not."""
        self._engine.check_usable()
        check_timeout(timeout_s)
        await self._engine.flush(timeout_s)

    # ---- subscribing ----------------------------------------------------------------------------

    def subscribe(
        self,
        *patterns: str,
        where: str = "",
        on_gap: OnGap | None = None,
        ack: AckMode = "auto",
        max_in_flight: int = 1_000,
        ack_wait_s: float = 60.0,
        max_deliver: int = 0,
        dead_letter: str = "",
        since: Since | None = None,
        last: int = 0,
        pace: Pace = "instant",
    ) -> Subscription:
        """Subscribe: `async with client.subscribe(…) as events`, or `events = await …`.

        Patterns are topics, or have `+` for one level or a last `#` for all further ones; `where`
        is a condition on attributes. Once entered, every event published from then on will come.
        `on_gap` is called when events were missed, with how many and why.

        With `ack="manual"` an event is taken once the application says `await event.ack()`, and
        comes again if it says `nak`, says nothing for `ack_wait_s` seconds (0: for ever), or ends
        (see `keep_s` of `connect`). At most `max_in_flight` events are handed out and not
        acknowledged. One that was handed out `max_deliver` times (0: no matter how often) goes to
        the topic `dead_letter`, or, without one, is given up and told as a gap.

        With `since` or `last`, as for `history`, what stores have comes first, and then what is
        published: each event once, and nothing is left out between. What stores cannot give any
        more is told by `on_gap`. With `pace="original"` the past comes as far apart as it was
        published.

        Raises FilterError or ArgumentError if the call cannot be right; when entered or awaited,
        SubscribeError if a broker refuses, HistoryError if there is no past to begin with.
        """
        self._engine.check_usable()
        if not patterns:
            raise SubscribeError((), "name at least one topic")
        check_patterns(patterns)
        check_text(where, "where")
        check_callback(on_gap, "on_gap")
        bytes_max = self._topic_bytes_max
        filters = [Filter.parse(pattern, where, bytes_max) for pattern in patterns]
        limits = WorkLimits(max_in_flight, ack_wait_s, max_deliver)
        check_work(patterns, ack, limits, dead_letter)
        queue = self._queue_of(filters, on_gap, ack, since, last, pace)
        if ack == "manual":
            if dead_letter:
                check_topic(dead_letter, bytes_max)
            queue = WorkQueue(
                filters, on_gap, self._inbox.has_been_read, limits, dead_letter, self._work_links
            )
        return Subscription(
            queue, self._start_subscription, self._end_subscription, self._change_subscription
        )

    def _queue_of(
        self,
        filters: Sequence[Filter],
        on_gap: OnGap | None,
        ack: AckMode,
        since: Since | None,
        last: int,
        pace: Pace,
    ) -> EventQueue:
        check_pace(pace)
        if since is None and not last:
            if pace != "instant":
                raise ArgumentValueError("pace", "say since when, or how many of the last")
            return EventQueue(filters, on_gap, self._inbox.has_been_read)
        if ack == "manual":
            raise ArgumentValueError("since", 'what stores have cannot be acknowledged: ack="auto"')
        since = "all" if since is None else since
        wishes = [checked_wish(f.pattern, f.where, since, last, with_loss=True) for f in filters]
        return JoinedQueue(filters, on_gap, self._inbox.has_been_read, wishes, pace)

    def history(
        self,
        pattern: str,
        *,
        where: str = "",
        since: Since = "all",
        last: int = 0,
        with_loss: bool = False,
        pace: Pace = "instant",
        on_gap: OnGap | None = None,
    ) -> History:
        """What stores have of a topic or pattern: `async for event in client.history(…)`, which
        ends with the newest.

        `since` is "all", a length of time back from now ("90s", "15m", "1h", "7d", a timedelta), a
        datetime, or a Cursor, for what is beyond it; `last` is how many events of each topic, the
        newest. Events come at once, or, with `pace="original"`, as far apart as they were
        published. If what follows a cursor is not kept any more, that is an error, unless
        `with_loss`: then what is left comes, and `on_gap` is told.

        Raises FilterError or ArgumentError if the call cannot be right; when it is read,
        HistoryError.
        """
        self._engine.check_usable()
        check_patterns((pattern,))
        check_text(where, "where")
        check_callback(on_gap, "on_gap")
        check_pace(pace)
        Filter.parse(pattern, where, self._topic_bytes_max)
        wish = checked_wish(pattern, where, since, last, with_loss=with_loss)
        engine = self._engine

        def open_source() -> PastSource:
            engine.check_usable()
            self._check_histories(pattern)
            return engine.open_past(wish)

        return History(pattern, open_source, engine.close_past, pace, on_gap)

    def _check_histories(self, pattern: str) -> None:
        welcome = self._core.welcome
        if welcome is not None and not welcome.histories:
            reason = f"the broker {welcome.broker_id} is of a version that has none for clients"
            raise HistoryError(pattern, "unavailable", reason)

    @property
    def _topic_bytes_max(self) -> int:
        welcome = self._core.welcome
        return welcome.topic_bytes_max if welcome is not None else TOPIC_BYTES_MAX

    def _bury(self, queue: WorkQueue, item: WorkItem) -> None:
        """It was handed out as often as it may be."""
        times = f"{item.deliveries} times" if item.deliveries > 1 else "once"
        reason = f"handed out {times} and never acknowledged"
        if not queue.dead_letter:
            queue.drop(item, reason)
            return
        task = asyncio.get_running_loop().create_task(self._publish_dead(queue, item, reason))
        self._burials.add(task)
        task.add_done_callback(self._buried)

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._burials.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The event stays untaken: it comes to the next process, if the session is kept.
            log.error("an event cannot go to its dead letter topic", exc_info=error)

    async def _publish_dead(self, queue: WorkQueue, item: WorkItem, reason: str) -> None:
        """It is taken once it is safe in its other topic; until then it stays where it is."""
        attributes = dead_letter_attributes(item, reason)
        while not item.is_done:
            try:
                await self.publish(queue.dead_letter, item.event.payload, attributes=attributes)
            except PublishError as error:
                log.warning("an event of %r waits: %s", item.event.topic, error)
                await asyncio.sleep(_DEAD_LETTER_RETRY_S)
            except ClosedError:
                return
            else:
                break
        # Closed meanwhile: nobody waits for it.
        with suppress(AckError):
            queue.finish(item)

    async def _start_subscription(self, queue: EventQueue) -> None:
        self._engine.check_usable()
        has_past = isinstance(queue, JoinedQueue)
        if isinstance(queue, JoinedQueue):
            self._check_histories(queue.filters[0].pattern)
            if any(key in self._core.reading.unclaimed for key in queue.filter_keys):
                has_past = False
                queue.go_on()
        new = self._inbox.add(queue)
        if new:
            try:
                await self._confirmed(queue, new, ())
            except BaseException:
                self._abandon(queue)
                raise
        if isinstance(queue, JoinedQueue) and has_past:
            try:
                await queue.begin(self._engine, self._core.reading.reached)
            except BaseException:
                queue.close()
                self._end_subscription(queue)
                raise

    def _abandon(self, queue: EventQueue) -> None:
        """It was not confirmed: what the session was kept with is not given up with it."""
        gone = self._inbox.remove(queue)
        if self._engine.failure is None:
            self._core.stop_waiting(gone)
            self._inbox.put_back(queue)
            self._engine.wake()

    async def _confirmed(
        self,
        queue: EventQueue,
        new: Sequence[FilterKey],
        gone: Sequence[FilterKey],
        timeout_s: float = 30.0,
    ) -> None:
        confirmation = self._waiting.subscribed(self._core.subscribe(new, gone))
        self._inbox.claim(queue)
        self._engine.wake()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await confirmation
        except TimeoutError:
            patterns = [pattern for pattern, _ in new]
            raise SubscribeError(patterns, f"not confirmed within {timeout_s:g} s") from None
        if answer.problems:
            reasons = "; ".join(problem.message for problem in answer.problems)
            raise SubscribeError([problem.topic for problem in answer.problems], reasons)
        self._inbox.confirmed(queue)

    async def _change_subscription(
        self, queue: EventQueue, add: Sequence[str], drop: Sequence[str]
    ) -> None:
        self._engine.check_usable()
        check_pattern_list(add, "add")
        check_pattern_list(drop, "drop")
        where = queue.filters[0].where if queue.filters else ""
        added = [Filter.parse(pattern, where) for pattern in add]
        gone_patterns = frozenset(drop)
        before = self._inbox.remove(queue)
        queue.filters = [f for f in queue.filters if f.pattern not in gone_patterns] + added
        after = self._inbox.add(queue)
        new = [key for key in after if key not in before]
        gone = [key for key in before if key not in after]
        if new:
            try:
                await self._confirmed(queue, new, gone)
            except BaseException:
                # What was not confirmed is not subscribed to; what was given up, is given up.
                self._give_up(queue, frozenset(new))
                raise
            finally:
                self._inbox.confirmed(queue)
        elif gone:
            self._core.unsubscribe(gone)
            self._engine.wake()

    def _give_up(self, queue: EventQueue, keys: Collection[FilterKey]) -> None:
        before = self._inbox.remove(queue)
        queue.filters = [f for f in queue.filters if (f.pattern, f.where) not in keys]
        after = self._inbox.add(queue)
        gone = [key for key in before if key not in after]
        if gone and self._engine.failure is None:
            self._core.unsubscribe(gone)
            self._engine.wake()

    def _end_subscription(self, queue: EventQueue) -> None:
        gone = self._inbox.remove(queue)
        if gone and self._engine.failure is None:
            self._core.unsubscribe(gone)
            self._engine.wake()


def _checked_options(
    attributes: Mapping[str, Value] | None, ack: Ack | AckName, timeout_s: float
) -> tuple[Ack, list[Attribute] | None]:
    if attributes is not None:
        check_attributes(attributes)
    check_timeout(timeout_s)
    level = ack if type(ack) is Ack else checked_ack(ack)
    return level, attributes_to_wire(attributes) if attributes else None


def _too_large(topic: str, payload: bytes, limits: PublishingLimits) -> PublishError:
    reason = f"the payload has {len(payload):,} bytes; the limit is {limits.payload_bytes_max:,}"
    return PublishError(topic, reason)
