"""What is in a log, as messages; and what a replay makes of these.

No token is in it: hellos have a hash in place of the token, and the rules the hash of that, so that
the replayed broker lets in whom the recorded one did. All else is there as it came: payloads, what
clients publish under, ids of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.identity import Identity
from broker_agent.core.keeping.journal import Stored
from broker_agent.core.options import BrokerOptions
from broker_agent.core.rights.access import Access
from broker_agent.core.routing.forwarding.forwarding import in_tree
from broker_agent.core.routing.rendezvous.rendezvous import on_ring
from broker_agent.core.routing.routing import RoutingFactory
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    LogOutcome,
    UnitExtent,
)
from broker_agent.core.stores.store_options import StoreAssignment, StoreOptions
from broker_agent.core.stores.store_reader import ServedKey, StorePortion
from broker_agent.doors.frames import FRAMES
from dynatops.kit.filters import Filter
from dynatops.kit.security.token_rights import TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.stimulus_pb2 import LogBeginning, Stimulus
from dynatops.version import VERSION
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.streams.portions import portions_of, put_portion
from overlay.forwarding.tree.topology import Topology, TopologyError
from overlay.stores.past_settings import PastSettings

FORMAT = 1

Rules = tuple[TokenRules, ...] | None


class LogError(Exception):
    """The log cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class RecordedStore:
    patterns: Sequence[str]
    extents: Mapping[str, UnitExtent]
    units_max: int
    serves: bool = False
    # Logs of before have none of these.
    capacity: int = 0
    assigned: StoreAssignment | None = None

    @classmethod
    def of(cls, store: StoreOptions) -> RecordedStore:
        patterns = [each.pattern for each in store.filters]
        extents, assigned = dict(store.extents), store.assigned
        return cls(patterns, extents, store.units_max, store.serves, store.capacity, assigned)

    def options(self) -> StoreOptions:
        filters = [Filter.parse(pattern) for pattern in self.patterns]
        return StoreOptions(
            filters, self.extents, self.units_max, self.serves, self.capacity, self.assigned
        )


@dataclass(frozen=True, slots=True)
class RecordedOptions:
    """What a recorded broker was made of, but for its random key."""

    identity: Identity
    overlay: OverlaySettings
    core: CoreSettings
    selection: SelectionSettings
    labels: Mapping[str, str]
    logged_rows_max: int
    saving: bool
    tokens: Rules
    # Logs of before have none of these.
    doors: Mapping[str, str] = field(default_factory=dict)
    # Of a broker in a tree, as it began; empty on a ring.
    topology: str = ""
    forwarding: ForwardingSettings = field(default_factory=ForwardingSettings)
    # Of a store: what it keeps, and what its log had. None of any other.
    store: RecordedStore | None = None
    past: PastSettings = field(default_factory=PastSettings)

    @classmethod
    def of(
        cls,
        identity: Identity,
        overlay: OverlaySettings,
        core: CoreSettings,
        options: BrokerOptions,
    ) -> RecordedOptions:
        """On a ring."""
        return cls(
            identity,
            overlay,
            core,
            options.selection,
            dict(options.labels),
            options.logged_rows_max,
            options.saving,
            blotted_rules(options.access),
            dict(options.doors),
            store=RecordedStore.of(options.store) if options.store is not None else None,
            past=options.past,
        )

    def within(self, topology: Topology, forwarding: ForwardingSettings) -> RecordedOptions:
        """The same, in a tree."""
        return replace(self, topology=topology.to_text(), forwarding=forwarding)

    def routing(self) -> RoutingFactory:
        """Raises LogError."""
        if not self.topology:
            return on_ring(self.overlay)
        try:
            topology = Topology.from_text(self.topology)
        except TopologyError as error:
            raise LogError(f"its topology is none: {error}") from None
        return in_tree(topology, self.forwarding)

    def options(self, access: Access | None = None) -> BrokerOptions:
        """With these rules; without, with those in the log."""
        return BrokerOptions(
            access if access is not None else Access(self.core, self.tokens),
            self.selection,
            self.labels,
            self.logged_rows_max,
            self.saving,
            doors=self.doors,
            store=self.store.options() if self.store is not None else None,
            past=self.past,
        )


_OPTIONS = TypeAdapter(RecordedOptions)
_RULES: TypeAdapter[Rules] = TypeAdapter(Rules)
_ADVICE = TypeAdapter(SelectionAdvice)


# ---- how a log begins ----------------------------------------------------------------------------


def beginning_of(recorded: RecordedOptions, random_key: bytes, began_ms: int) -> LogBeginning:
    return LogBeginning(
        format=FORMAT,
        version=VERSION,
        began_ms=began_ms,
        broker=_OPTIONS.dump_json(recorded).decode(),
        random_key=random_key,
    )


def options_in(beginning: LogBeginning) -> RecordedOptions:
    """Raises LogError."""
    if beginning.format != FORMAT:
        raise LogError(
            f"it has format {beginning.format}, and this version ({VERSION}) replays {FORMAT}: use "
            f"the version that wrote it, {beginning.version or 'which is not known'}"
        )
    try:
        return _OPTIONS.validate_json(beginning.broker)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise LogError(
            f"it was written by version {beginning.version} with settings that this one "
            f"({VERSION}) does not have: {where}: {problem['msg']}"
        ) from None


# ---- secrets -------------------------------------------------------------------------------------


def blotted_rules(access: Access | None) -> Rules:
    rules = access.rules if access is not None else None
    if rules is None:
        return None
    return tuple(replace(each, sha256=hash_of(each.sha256)) for each in rules)


def blotted_frame(frame: ClientFrame) -> ClientFrame:
    """The frame, with hashes in place of tokens."""
    if not any(message.hello.token for message in frame.messages if message.HasField("hello")):
        return frame
    blotted = ClientFrame()
    blotted.CopyFrom(frame)
    for message in blotted.messages:
        if message.hello.token:
            message.hello.token = hash_of(message.hello.token)
    return blotted


# ---- what is no message by itself ----------------------------------------------------------------


def access_record(access: Access) -> Stimulus.AccessReplaced:
    return Stimulus.AccessReplaced(tokens=_RULES.dump_json(blotted_rules(access)).decode())


def access_in(record: Stimulus.AccessReplaced, settings: CoreSettings) -> Access:
    return Access(settings, _RULES.validate_json(record.tokens))


def advice_record(advice: SelectionAdvice | None) -> Stimulus.Advised:
    return Stimulus.Advised(advice=_ADVICE.dump_json(advice).decode() if advice else "")


def advice_in(record: Stimulus.Advised) -> SelectionAdvice | None:
    return _ADVICE.validate_json(record.advice) if record.advice else None


def stored_record(stored: Stored) -> Stimulus.StoredSessions:
    record = Stimulus.StoredSessions()
    for origin_id, session in stored.sessions.items():
        deliveries = map(_delivery_record, stored.pieces.get(origin_id, ()))
        record.sessions.add(origin_id=origin_id, record=session, deliveries=deliveries)
    for topic, cursor in stored.cursors.items():
        record.cursors.add(topic=topic, cursor=cursor)
    for (origin_id, topic), cursor in stored.own_cursors.items():
        record.cursors.add(origin_id=origin_id, topic=topic, cursor=cursor)
    return record


def past_read_record(key: ServedKey, portion: StorePortion) -> Stimulus.PastRead:
    record = Stimulus.PastRead(
        broker_id=key.broker_id,
        incarnation=key.incarnation,
        request=key.request,
        place=portion.place,
        is_end=portion.is_end,
        is_lossy=portion.is_lossy,
        error=portion.error,
        message=portion.message,
    )
    for events in portion.events:
        put_portion(record.events.add(), events)
    return record


def past_read_in(record: Stimulus.PastRead) -> tuple[ServedKey, StorePortion]:
    key = ServedKey(record.broker_id, record.incarnation, record.request)
    events = [portion for runs in record.events for portion in portions_of(runs)]
    portion = StorePortion(
        events, record.place, record.is_end, record.is_lossy, record.error, record.message
    )
    return key, portion


def outcome_record(outcome: LogOutcome) -> Stimulus.LogAnswered:
    record = Stimulus.LogAnswered(number=outcome.number)
    if isinstance(outcome, AppendRefused):
        record.refusal, record.reason = outcome.refusal.value, outcome.reason
    return record


def outcome_in(record: Stimulus.LogAnswered) -> LogOutcome:
    if not record.refusal:
        return AppendStored(record.number)
    return AppendRefused(record.number, AppendRefusal(record.refusal), record.reason)


def _delivery_record(piece: Piece) -> Stimulus.StoredDelivery:
    return Stimulus.StoredDelivery(
        serial=piece.serial,
        topic=piece.topic,
        events=piece.events,
        data=piece.content.encoded(FRAMES),
        queued_s=piece.queued_s,
    )


def stored_in(record: Stimulus.StoredSessions) -> Stored:
    stored = Stored()
    for session in record.sessions:
        stored.sessions[session.origin_id] = session.record
        if session.deliveries:
            stored.pieces[session.origin_id] = list(_pieces_in(session.deliveries))
    for cursor in record.cursors:
        if cursor.origin_id:
            stored.own_cursors[cursor.origin_id, cursor.topic] = cursor.cursor
        else:
            stored.cursors[cursor.topic] = cursor.cursor
    return stored


def _pieces_in(deliveries: Iterable[Stimulus.StoredDelivery]) -> Iterable[Piece]:
    for each in deliveries:
        content = Content.from_encoded(FRAMES, each.data)
        yield Piece(content, each.events, each.serial, each.topic, each.queued_s)
