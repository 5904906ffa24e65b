"""What sessions of a broker in a tree subscribe to, and how far they have read.

Filters go to the forwarder as they are, and a request is confirmed when all of its filters are in
place: whatever is published from then on, at any broker that can be reached, will come. A client's
place is a number in the stream of each broker (`STREAMS`), for all of its filters at once. With
that it goes on at any broker: what it missed is fetched, to the end, before anything new is
delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from broker_agent.core.routing.confirming import UnconfirmedRequest
from broker_agent.core.routing.delivery import SessionDelivery
from broker_agent.core.routing.forwarding.audiences import Audiences
from broker_agent.core.routing.forwarding.catch_up_group import CatchUpGroup, Rests
from broker_agent.core.routing.forwarding.forwarding_context import (
    ForwardingContext,
    GoesOnDue,
    PlacesDue,
)
from broker_agent.core.routing.forwarding.place_telling import PlaceTelling
from broker_agent.core.routing.forwarding.read_ahead import ReadAhead
from broker_agent.core.routing.forwarding.tree_measures import TreeMeasures
from broker_agent.core.routing.routing import Reached, RestoredSession, SystemConsumer
from broker_agent.core.routing.session_filters import SessionFilters
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.kit.repeats import RunPart
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import Cursor, ErrorCode, MissCause, Missed, TopicProblem
from dynatops.v1.overlay_pb2 import Run, TermSeq
from overlay.base.identifiers import NUMBER_MAX
from overlay.forwarding.forwarding_effects import FetchedPart, FilterInPlace, LossRange, StreamLost
from overlay.forwarding.streams.known_streams import ALL_READ
from overlay.forwarding.streams.portions import Portion, first_of, newer_part, stream_of

# A session that has more patterns is told of a loss once for all of them.
_PATTERNS_TOLD_MAX = 100
# Filters and requests of a session that wait until it has caught up.
_BEHIND_MAX = 1_000
_STILL_BEHIND = "what this session missed is still on its way: subscribe to more once it is here"
# Streams that a client may name.
_STREAMS_MAX = 4_096


@dataclass(slots=True, eq=False)
class FiltersRequest(UnconfirmedRequest):
    # Those that are not in place yet.
    missing: dict[Filter, None] = field(default_factory=dict)
    # Those that go on with it, if it goes on.
    group: CatchUpGroup | None = None


class TreeSubscriptions:
    def __init__(self, context: ForwardingContext) -> None:
        self._forwarder = context.forwarder
        self._tree = context.tree
        self._confirming = context.confirming
        self._outbox = context.outbox
        self._unsaved = context.unsaved
        self._logbook = context.logbook
        self._timings = context.timings
        self.measures = TreeMeasures(context, self.patterns)
        self._filters = SessionFilters(context)
        self._audiences = Audiences(context.settings.rendezvous_cache_max, context.counters)
        self._delivery = SessionDelivery(context, self._is_all_here)
        # Who takes topics of the system's own.
        self._system: dict[str, SystemConsumer] = {}
        # Who wants each filter, and which of them are in place.
        self._holders: dict[Filter, dict[Session, None]] = {}
        self._in_place: set[Filter] = set()
        # Requests that wait for a filter.
        self._waiting: dict[Filter, dict[FiltersRequest, None]] = {}
        # Sessions that have not got what they missed; their groups, once these have begun, and the
        # fetches that are under way for them; and what their clients have asked for since.
        self._catching_up: dict[Session, CatchUpGroup] = {}
        self._groups: dict[CatchUpGroup, None] = {}
        self._fetches: dict[int, CatchUpGroup] = {}
        self._fetches_begun = 0
        self._behind: dict[Session, list[tuple[FiltersRequest, list[Filter]]]] = {}
        self._counters = context.counters
        self._rests = Rests(context.settings.sessions_max, context.counters)
        self._place_telling = PlaceTelling()
        self._read_ahead = ReadAhead()

    def __len__(self) -> int:
        return len(self.patterns())

    def patterns(self) -> set[str]:
        """What clients here subscribe to."""
        return {wanted.pattern for wanted in self._holders}

    def is_wanted(self, topic: str) -> bool:
        return bool(self._audiences.of(topic).members)

    def _is_all_here(self, topic: str) -> bool:
        return not self._forwarder.wanted_by_neighbours(topic)

    # ---- clients --------------------------------------------------------------------------------

    def subscribe(
        self,
        session: Session,
        number: int,
        filters: Iterable[Filter],
        problems: list[TopicProblem],
        cursors: Iterable[Cursor] | None,
        now_s: float,
    ) -> None:
        request = FiltersRequest(session, number, problems, session.connection)
        if cursors is not None:
            request.goes_on = True
            request.group = CatchUpGroup({session: None}, _places_in(cursors), now_s)
            if not request.group.reached:
                # A new process that left its session before it was told where that stood: it gets
                # what is retained, and nobody knows whether that is all.
                filters = list(filters)
                self._tell_missed(session, [each.pattern for each in filters], now_s)
            # Of what is under way for it already, it has had what it has.
            self._leave_group(session, now_s)
            self._forget_standing(session)
        # Its place is one for all of its filters: they begin when it has caught up.
        must_wait = session in self._catching_up or session in self._behind
        if must_wait or self._must_rest(request, now_s):
            if request.group is not None and session.filters:
                # It stands there until it has caught up, whatever becomes of the request.
                self._catching_up.setdefault(session, request.group)
            self._put_behind(request, list(filters))
        else:
            self._bring_in(request, filters, now_s)

    def _must_rest(self, request: FiltersRequest, now_s: float) -> bool:
        if request.group is None:
            return False
        return self._rests.is_resting(request.session.client_id, now_s)

    def _put_behind(self, request: FiltersRequest, filters: list[Filter]) -> None:
        behind = self._behind.get(request.session, [])
        if sum(1 + len(waiting) for _, waiting in behind) + len(filters) > _BEHIND_MAX:
            code = ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
            request.problems += [
                TopicProblem(topic=f.pattern, code=code, message=_STILL_BEHIND) for f in filters
            ]
            if not request.goes_on or any(each.goes_on for each, _ in behind):
                if self._confirming.complete(request):
                    self._outbox.touched[request.session] = None
                return
            # It goes on with what it has.
            filters = []
        self._behind.setdefault(request.session, []).append((request, filters))
        self._counters.catch_ups_put_off += request.group is not None
        self._confirming.note_open(request)

    def tick(self, now_s: float) -> None:
        for session in list(self._behind):
            self._bring_in_behind(session, now_s)
        if self._read_ahead:
            self._read_ahead.come(self._forwarder.positions())
        for session in self._place_telling.due(now_s):
            if session.connection is None or session in self._catching_up:
                continue
            if moved := self._place_telling.moved(session, self._places_of(session)):
                self._tree.tell_places(session, moved)

    def _forget_standing(self, session: Session) -> None:
        """Where a former process stood is of no use: its client knows better."""
        behind = self._behind.get(session)
        if behind is not None:
            behind[:] = [each for each in behind if each[0].connection is not None]
            if not behind:
                del self._behind[session]

    def _bring_in_behind(self, session: Session, now_s: float) -> None:
        """What it has asked for since, in order, until it catches up again. What a connection asked
        for that is gone, its client asks for again; but a new process of it knows nothing of that,
        and what the session has goes on from where the former one stood."""
        behind = self._behind.setdefault(session, [])
        for request, _ in behind:
            if request.connection not in (session.connection, None):
                self._confirming.withdraw(request)
        behind[:] = [each for each in behind if each[0].connection in (session.connection, None)]
        stands_at = self._catching_up.get(session)
        has_begun = stands_at is None or stands_at in self._groups
        if not has_begun and all(request.group is not stands_at for request, _ in behind):
            going_on = FiltersRequest(session, 0, [], None, goes_on=True, group=stands_at)
            own = [wanted for filters in session.filters.values() for wanted in filters]
            behind.insert(0, (going_on, own))
        while behind and self._catching_up.get(session) not in self._groups:
            if self._must_rest(behind[0][0], now_s):
                return
            request, filters = behind.pop(0)
            if request.group is not None:
                request.group.began_s = now_s
            self._bring_in(request, filters, now_s)
        if not behind:
            self._behind.pop(session, None)

    def restore(
        self, sessions: Sequence[RestoredSession], cursors: Mapping[str, Cursor], now_s: float
    ) -> None:
        """All go on from where they had been read; those that had not caught up, from their own."""
        shared = CatchUpGroup({}, _places_in(cursors.values()))
        requests: list[tuple[FiltersRequest, Sequence[Filter]]] = []
        for restored in sessions:
            session = restored.session
            own = restored.cursors.get(STREAMS)
            group = CatchUpGroup({}, _places_in([own])) if own is not None else shared
            group.members[session] = None
            request = FiltersRequest(session, 0, [], None, goes_on=True, group=group)
            requests.append((request, restored.filters))
        # A group begins once it is complete: those that came later would have missed what is asked
        # for before.
        groups = dict.fromkeys(request.group for request, _ in requests if request.group)
        for group in groups:
            group.awaited += 1
        for request, filters in requests:
            self._bring_in(request, filters, now_s)
        for group in groups:
            group.awaited -= 1
            self._begin_fetch(group, now_s)

    def _bring_in(self, request: FiltersRequest, filters: Iterable[Filter], now_s: float) -> None:
        session = request.session
        self._unsaved.session(session)
        if request.group is not None:
            self._catching_up[session] = request.group
            self._groups[request.group] = None
            request.group.awaited += 1
        is_claimed = False
        for wanted in filters:
            if wanted not in session.filters.get(wanted.pattern, ()):
                request.new.append(wanted)
                # It has not read on for this one.
                self._read_ahead.forget(session)
            elif session.claim(wanted):
                is_claimed = True
            self._filters.add(session, wanted, now_s)
            self._audiences.add(session, wanted)
            self._place_telling.begin(session, now_s)
            holders = self._holders.setdefault(wanted, {})
            if not holders:
                self._tree.from_forwarder(self._forwarder.want(wanted, now_s))
            holders[session] = None
            self._await(request, wanted)
        if is_claimed and request.group is None:
            # Its client may be a new process, which could not go on elsewhere without.
            self._tell_all_places(session)
        if request.missing:
            self._confirming.note_open(request)
        else:
            self._complete(request, {}, now_s)

    def _await(self, request: FiltersRequest, wanted: Filter) -> None:
        request.missing[wanted] = None
        self._waiting.setdefault(wanted, {})[request] = None
        if wanted in self._in_place:
            # In its turn: what has come is not all delivered yet.
            here = FilterInPlace(wanted, self._forwarder.positions())
            self._tree.from_forwarder([here])

    def _complete(
        self, request: FiltersRequest, positions: Mapping[int, int], now_s: float
    ) -> None:
        """All of its filters are in place: of each stream all after these positions will come."""
        session = request.session
        self._unsaved.session(session)
        if request.group is not None:
            request.group.awaited -= 1
            if request.connection is not None:
                self._tree.tell_it_goes_on(session, request.connection, request.number)
            self._begin_fetch(request.group, now_s)
        elif session.queued_pieces:
            # Its client must not take what waits for it for something that it has had.
            self._tell_all_places(session)
        elif positions:
            request.positions.append(_cursor_at(positions))
        if self._confirming.complete(request):
            self._outbox.touched[session] = None

    def on_in_place(self, effect: FilterInPlace, now_s: float) -> None:
        wanted = effect.wanted
        if wanted not in self._holders:
            return
        self._in_place.add(wanted)
        for request in self._waiting.pop(wanted, {}):
            request.missing.pop(wanted, None)
            if not request.missing:
                self._complete(request, effect.positions, now_s)

    def unsubscribe(self, session: Session, filters: Iterable[Filter], now_s: float) -> bool:
        self._unsaved.session(session)
        follows_less = False
        unwanted_filters = dict.fromkeys(filters)
        for unwanted in unwanted_filters:
            had_it = unwanted in session.filters.get(unwanted.pattern, ())
            follows_less |= self._filters.remove(session, unwanted, now_s)
            if had_it:
                self._audiences.remove(session, unwanted)
            self._let_go(session, unwanted, now_s)
        for _, behind in self._behind.get(session, ()):
            behind[:] = [f for f in behind if f not in unwanted_filters]
        return follows_less

    def _let_go(self, session: Session, unwanted: Filter, now_s: float) -> None:
        """The session has it no more."""
        holders = self._holders.get(unwanted, {})
        holders.pop(session, None)
        for request in self._take_requests(session, unwanted):
            request.missing.pop(unwanted, None)
            if request.missing:
                continue
            # Of what is left, its client is to know where that begins.
            kept = (f for filters in session.filters.values() for f in filters)
            in_place = next((f for f in kept if f in self._in_place), None)
            if in_place is not None:
                self._await(request, in_place)
            else:
                self._complete(request, {}, now_s)
        if not holders and self._holders.pop(unwanted, None) is not None:
            self._in_place.discard(unwanted)
            self._waiting.pop(unwanted, None)
            self._tree.from_forwarder(self._forwarder.unwant(unwanted, now_s))

    def end(self, session: Session, now_s: float) -> None:
        gone = [f for filters in session.filters.values() for f in filters]
        self._leave_group(session, now_s)
        self._filters.remove_all(session, now_s)
        self._audiences.forget(session, gone)
        self._behind.pop(session, None)
        for unwanted in gone:
            self._take_requests(session, unwanted)
            self._let_go(session, unwanted, now_s)
        self._confirming.forget_session(session)
        self._place_telling.forget(session)
        self._read_ahead.forget(session)

    def _leave_group(self, session: Session, now_s: float) -> None:
        """It catches up no more, or anew."""
        group = self._catching_up.pop(session, None)
        if group is None or group not in self._groups:
            return
        group.members.pop(session, None)
        self._rests.note(session.client_id, group.began_s, now_s)
        left: dict[FiltersRequest, None] = {}
        for wanted in (f for filters in session.filters.values() for f in filters):
            waiting = self._waiting.get(wanted, {})
            for request in [r for r in waiting if r.session is session and r.group is group]:
                del waiting[request]
                left[request] = None
        for request in left:
            self._confirming.withdraw(request)
        group.awaited -= len(left)
        if not group.members:
            self._give_up(group, now_s)
        elif left:
            self._begin_fetch(group, now_s)

    def _take_requests(self, session: Session, wanted: Filter) -> list[FiltersRequest]:
        """Those of the session that wait for the filter wait no more."""
        waiting = self._waiting.get(wanted, {})
        taken = [request for request in waiting if request.session is session]
        for request in taken:
            del waiting[request]
        return taken

    # ---- where clients stand --------------------------------------------------------------------

    def _places_of(self, session: Session) -> dict[int, int]:
        return {**self._forwarder.positions(), **self._read_ahead.places(session)}

    def _tell_all_places(self, session: Session, ended: Iterable[int] = ()) -> None:
        """What has ended and is lost need not be asked for again."""
        places = {**self._places_of(session), **dict.fromkeys(ended, ALL_READ)}
        self._tree.tell_places(session, places)

    def on_places_due(self, effect: PlacesDue, now_s: float) -> None:
        """What led there has been delivered: behind what waits for the session."""
        session = effect.session
        if not session.filters:
            return
        for stream, number in effect.places.items():
            place = Content(Run(topic=STREAMS, term=stream, first_seq=number + 1))
            self._delivery.tell_position(session, STREAMS, place, now_s)

    def on_goes_on_due(self, effect: GoesOnDue, now_s: float) -> None:
        """What comes from here on is all that its client misses, in order."""
        if effect.session.connection == effect.connection:
            here = Content(Run(topic=STREAMS, first_seq=effect.request))
            self._delivery.tell_it_goes_on(effect.session, STREAMS, here, now_s)

    def catching_up(self, session: Session) -> Iterator[str]:
        if session in self._catching_up:
            yield from session.filters

    @property
    def is_restoring(self) -> bool:
        """Where each stands is known from the beginning."""
        return False

    def cursor_names(self, session: Session) -> Iterable[str]:
        return (STREAMS,)

    def reached(self, name: str, holds: Callable[[Session], bool]) -> Reached | None:
        if name != STREAMS:
            return Reached()
        own = {
            session.origin_id: _cursor_at(self._places_of(session))
            for session in self._read_ahead.sessions()
            if holds(session)
        }
        own |= {
            session.origin_id: _cursor_at(group.told())
            for session, group in self._catching_up.items()
            if holds(session)
        }
        return Reached(_cursor_at(self._forwarder.positions()), own)

    def read_system_topic(self, topic: str, consumer: SystemConsumer) -> None:
        self._system[topic] = consumer
        self._tree.from_forwarder(self._forwarder.want(Filter.of_system(topic), 0.0))

    # ---- what sessions missed -------------------------------------------------------------------

    def _begin_fetch(self, group: CatchUpGroup, now_s: float) -> None:
        if group.awaited or not group.members:
            return
        self._fetches_begun += 1
        self._fetches[self._fetches_begun] = group
        filters = group.filters()
        if not group.is_counted:
            group.is_counted = True
            self._count_requests(group.members)
        self._tree.from_forwarder(
            self._forwarder.fetch(self._fetches_begun, filters, group.reached, now_s)
        )

    def _give_up(self, group: CatchUpGroup, now_s: float) -> None:
        """Nobody waits for it any more."""
        self._groups.pop(group, None)
        for fetch_id in [f for f, fetched in self._fetches.items() if fetched is group]:
            del self._fetches[fetch_id]
            self._tree.from_forwarder(self._forwarder.give_up_fetch(fetch_id, now_s))

    def on_fetched(self, part: FetchedPart, now_s: float) -> None:
        group = self._fetches.get(part.fetch_id)
        if group is None:
            return
        ended = {loss.stream for loss in part.losses if self._is_over(loss)}
        untold = lost = [loss for loss in part.losses if loss.stream not in ended]
        for portion in group.advance(part.portions):
            # What is behind a loss comes when that has been told.
            later = [loss for loss in untold if not _is_before(loss, portion)]
            if len(later) < len(untold):
                self._tell_lost(group.members, now_s)
                untold = later
            self._deliver(portion, now_s, group.members)
        if untold:
            self._tell_lost(group.members, now_s)
        if lost:
            group.reach({loss.stream: loss.upto for loss in part.losses if loss.upto})
        group.reach(part.ends)
        group.end(ended)
        self._unsaved.topic(STREAMS)
        if part.done:
            del self._fetches[part.fetch_id]
            self._fetched(group, now_s)

    def _is_over(self, loss: LossRange) -> bool:
        """Whether it is of a life that is over: of all of these is told at once, at the end."""
        return loss.upto is None and self._forwarder.has_ended(loss.stream)

    def _count_requests(self, sessions: Iterable[Session]) -> None:
        """Each for each of its patterns, however often what it missed is fetched; the lake's count
        and the manager's are the same."""
        for session in sessions:
            # What a store reads is no user's request.
            if not session.is_internal:
                for pattern in session.filters:
                    self._logbook.requested(pattern)
                self.measures.requested(session.filters)

    def _fetched(self, group: CatchUpGroup, now_s: float) -> None:
        if group.is_incomplete:
            group.begin_again()
            self._begin_fetch(group, now_s)
            return
        for portion in group.advance(group.take_held()):
            self._deliver(portion, now_s, group.members)
        if group.ended:
            self._tell_lost(group.members, now_s)
        self._groups.pop(group, None)
        self._read_ahead.note(group.members, group.told(), self._forwarder.positions())
        for session in group.members:
            self._catching_up.pop(session, None)
            self._rests.note(session.client_id, group.began_s, now_s)
        for session in list(group.members):
            self._tell_all_places(session, group.ended)
            self._bring_in_behind(session, now_s)

    # ---- what comes -----------------------------------------------------------------------------

    def on_portion(self, portion: Portion, now_s: float) -> None:
        """Somebody here wants it, perhaps only those that catch up."""
        if isinstance(portion, Run) and portion.topic in self._system:
            self._system[portion.topic](portion, now_s)
            return
        self._unsaved.topic(STREAMS)
        for group in self._groups:
            group.hold(portion)
        ahead: Mapping[Session, int] = {}
        if self._read_ahead:
            ahead = self._read_ahead.of(stream_of(portion), first_of(portion))
        others = {**self._catching_up, **ahead} if ahead else self._catching_up
        self._deliver(portion, now_s, None, others)
        for session, number in ahead.items():
            newer = newer_part(portion, number)
            if newer is not None and session not in self._catching_up:
                self._deliver(newer, now_s, {session: None})

    def _deliver(
        self,
        portion: Portion,
        now_s: float,
        those: Mapping[Session, object] | None,
        others: Mapping[Session, object] = MappingProxyType({}),
    ) -> None:
        """To those of these sessions that want it; or if none are named to all but the others."""
        if isinstance(portion, Bundle):
            self._deliver_bundle(portion, now_s, those, others)
            return
        audience = self._audiences.of(portion.topic)
        members = audience.members
        if those is not None:
            # All of them may have left since it was asked for.
            members = {s: 0 for s in members if s in those}
        elif others:
            members = {s: 0 for s in members if s not in others}
        if members:
            parts = [RunPart(portion)]
            self._delivery.deliver(members, parts, audience.conditions or None, now_s)

    def _deliver_bundle(
        self,
        bundle: Bundle,
        now_s: float,
        those: Mapping[Session, object] | None,
        others: Mapping[Session, object],
    ) -> None:
        places: dict[Session, list[int]] = {}
        for place, topic in enumerate(bundle.topics):
            for session in self._audiences.of(topic).plain():
                places.setdefault(session, []).append(place)
        if those is not None:
            places = {s: of for s, of in places.items() if s in those}
        elif others:
            places = {s: of for s, of in places.items() if s not in others}
        alike: dict[tuple[int, ...], list[Session]] = {}
        for session, wanted in places.items():
            alike.setdefault(tuple(wanted), []).append(session)
        for wanted_places, sessions in alike.items():
            whole = len(wanted_places) == len(bundle)
            part = bundle if whole else bundle.pick(wanted_places)
            self._delivery.deliver_bundle(sessions, part, now_s)

    def on_lost(self, effect: StreamLost, now_s: float) -> None:
        """Nobody knows whom it concerned."""
        sessions = {s: None for holders in self._holders.values() for s in holders}
        self._tell_lost(sessions, now_s)

    def _tell_lost(self, sessions: Iterable[Session], now_s: float) -> None:
        for session in sessions:
            self._tell_missed(session, session.filters, now_s)

    def _tell_missed(self, session: Session, patterns: Collection[str], now_s: float) -> None:
        for pattern in patterns if len(patterns) <= _PATTERNS_TOLD_MAX else [""]:
            missed = Missed(topic=pattern, cause=MissCause.MISS_CAUSE_NOT_RETAINED)
            self._delivery.tell_missed([session], missed, now_s)


def _is_before(loss: LossRange, portion: Portion) -> bool:
    return loss.stream == stream_of(portion) and loss.after < first_of(portion)


def _places_in(cursors: Iterable[Cursor]) -> dict[int, int]:
    """Where a client, or the disk, says that it stands."""
    return {
        entry.term: entry.seq
        for cursor in cursors
        if cursor.topic in (STREAMS, "")
        for entry in cursor.seen[-_STREAMS_MAX:]
        if 0 < entry.term <= NUMBER_MAX and entry.seq <= NUMBER_MAX
    }


def _cursor_at(places: Mapping[int, int]) -> Cursor:
    seen = [TermSeq(term=stream, seq=number) for stream, number in sorted(places.items())]
    return Cursor(topic=STREAMS, seen=seen)
