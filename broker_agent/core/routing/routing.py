"""How events travel between brokers: what a broker asks of it, and is asked by nobody.

    clients  --subscribe, publish-->  subscriptions, publishing  --frames-->  other brokers
    sessions  <--delivery, confirming, acknowledgements-----  on_frame  <--frames--'

`Routing` is the seam. Above it are sessions and what clients say, below it one way for events to
travel: `rendezvous`, along a ring, or `forwarding`, in a tree. Nothing above knows which one runs.

What happens because of an input is said to sessions at once, and to the driver by the broker's
outbox. What is to go out to other brokers waits until the broker settles: `take_in` and `send_out`
are said in turn until nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.open_publications import Unstored
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import Cursor, ErrorCode, TopicProblem
from dynatops.v1.inspection_pb2 import BrokerReport, TopicsReport, TopologyReport, TreeReport
from dynatops.v1.manager_pb2 import Registration, Step
from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PeerFrame,
    Publication,
    Run,
    StoreMark,
    ToStamper,
)
from overlay.forwarding.tables.table_reports import TableEntries
from overlay.forwarding.tree.topology import Topology
from overlay.forwarding.tree_status import TreeStatus
from overlay.history.reigns import TopicTally
from overlay.status.node_status import NodeStatus

# Called with the sender, the message and the time.
PeerHandler = Callable[[NodeRef, Any, float], None]
# Takes what is read of a topic of the system's own.
SystemConsumer = Callable[[Run, float], None]


@dataclass(frozen=True, slots=True)
class RestoredSession:
    """A session from disk, with the filters that it had, and the cursors that were its own."""

    session: Session
    filters: Sequence[Filter]
    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a topic has come: for all sessions that have no cursor of their own, and for those
    that have one, by the names that they first had."""

    shared: Cursor | None = None
    own: Mapping[str, Cursor] = field(default_factory=dict)


class RoutedSubscriptions(Protocol):
    """What sessions subscribe to, and where they stand.

    A cursor says how far a client has come, in terms of the routing that told it so; its name is a
    topic, or whatever else that counts by. A request is confirmed by `BrokerContext.confirming`;
    filters that a session has are noted by `SessionFilters`.
    """

    def subscribe(
        self,
        session: Session,
        number: int,
        filters: Iterable[Filter],
        problems: list[TopicProblem],
        cursors: Iterable[Cursor] | None,
        now_s: float,
    ) -> None:
        """`cursors`: of a client that goes on where it stood elsewhere; None if it begins here."""

    def unsubscribe(self, session: Session, filters: Iterable[Filter], now_s: float) -> bool:
        """Whether the session follows less than before."""

    def end(self, session: Session, now_s: float) -> None:
        """The session is no more."""

    def catching_up(self, session: Session) -> Iterator[str]:
        """Topics that it has not read up to where the others stand."""

    def read_system_topic(self, topic: str, consumer: SystemConsumer) -> None:
        """Read a topic of the system's own from now on."""

    # ---- sessions on disk

    @property
    def is_restoring(self) -> bool:
        """Whether sessions from before a restart are not all where they were."""

    def restore(
        self, sessions: Sequence[RestoredSession], cursors: Mapping[str, Cursor], now_s: float
    ) -> None:
        """Go on with these, from their own cursors, or where they have none from those of all."""

    def cursor_names(self, session: Session) -> Iterable[str]:
        """Of all cursors that it may need."""

    def reached(self, name: str, holds: Callable[[Session], bool]) -> Reached | None:
        """Where that topic stands, for sessions that are to be saved; None: what is on disk is
        still needed."""


class RoutedPublishing(Protocol):
    """What clients publish, until it is acknowledged or refused. Both are said to the session,
    which is noted in the outbox as one that has something settled."""

    @property
    def open_streams(self) -> int:
        """Pairs of a publisher and a topic with something that is not acknowledged."""

    @property
    def unsettled_bytes(self) -> int:
        """Of all sessions' publications that nobody has taken yet."""

    def accept(self, session: Session, publication: Publication, now_s: float) -> None: ...

    def pasts_of(self, bundle: Bundle) -> Sequence[StreamPast | None]:
        """What is known of the streams that its events are of, none of which is open; None of
        others, which may be."""

    def accept_bundle(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None: ...

    def refuse(
        self, session: Session, publication: Publication, code: ErrorCode.ValueType, message: str
    ) -> None:
        """Tell the publisher that these events will not be published."""

    def publish_own(self, publication: Publication) -> None:
        """An event of the broker's own, which nobody acknowledges."""

    # ---- what is to be on the disks of stores as well

    @property
    def has_unstored(self) -> bool:
        """Whether there is anything for `take_unstored`."""

    def take_unstored(self) -> list[Unstored]:
        """What brokers have acknowledged since the last call, and is to be stored."""

    def stored(self, unstored: Unstored, now_s: float) -> None:
        """As many stores as it takes have these."""

    def ask_again(self, unstored: Unstored, now_s: float) -> None:
        """It is not to be known whether stores have these: where are they stamped?"""

    def tell_stored(self) -> None:
        """Tell clients what is done since the last call."""

    def explain_unstored(self, why: Callable[[str], str]) -> None:
        """`why`: of a topic, for publishers whose events brokers have, and too few stores."""


class RoutedStamping(Protocol):
    """Who gives a topic's events their numbers, which may be this broker: stores tell how far they
    have them, brokers of publishers ask. `FromStamper` comes back, from broker to broker."""

    @property
    def shares_numbers(self) -> bool:
        """Whether events of all topics share their stamps' numbers, those of one origin."""

    def unit_of(self, topic: str, term: int) -> str:
        """The name of what these stamps are counted in."""

    def stream_place(self, term: int) -> int:
        """Up to where this broker has what shares these numbers; 0 where topics do not share them,
        and sessions are told all of them."""

    def cursors_of(self, reached: Mapping[str, tuple[int, int]]) -> list[Cursor]:
        """Where whoever has units up to these stamps goes on."""

    def heed(self, board: Callable[[ToStamper, float], None]) -> None:
        """What is said to this broker because it stamps topics."""

    def send(self, marks: Sequence[StoreMark], asked: Sequence[str], now_s: float) -> None:
        """Marks of a store here, and topics whose marks publications here wait for, to whoever
        stamps them. It may be lost."""

    def found(self, topics: Iterable[str], by: NodeRef) -> None:
        """That is who stamps these topics."""


class KnownBrokers(Protocol):
    """Where other brokers are."""

    @property
    def me(self) -> NodeRef:
        """What this one signs with."""

    def alternatives(self, most: int) -> list[str]:
        """Addresses of other brokers, nearest first."""

    def condemned_addresses(self) -> Collection[str]:
        """Where brokers were that are taken for dead."""

    def has_broker_at(self, address: str) -> bool:
        """Whether a broker of this network is known there."""

    def address_of(self, broker_id: str) -> str:
        """Where it was seen last; empty if it is not known."""

    def namesakes(self, broker_id: str) -> list[str]:
        """Addresses where a broker of this name was seen."""

    def neighbours(self) -> Mapping[str, str]:
        """Brokers one hop away that this one tells what goes from broker to broker, and their
        addresses. Along such links every broker is reached. They need not lead both ways."""

    def is_gone(self, broker_id: str) -> bool:
        """Whether a broker that has told this one something is known not to be there."""


class RoutingPlans(Protocol):
    """What a manager plans for this broker. A routing that nothing can be planned for refuses
    steps, and never freezes."""

    @property
    def is_frozen(self) -> bool:
        """Whether what clients cause has to wait."""

    @property
    def epoch(self) -> int:
        """Of the placement in use."""

    @property
    def fence(self) -> int:
        """Of the newest manager that was obeyed."""

    @property
    def version(self) -> int:
        """Raised whenever the registration has changed."""

    def registration(self) -> Registration:
        """What only routing knows of it."""

    def on_step(self, step: Step, now_s: float) -> None:
        """It is answered by `ReplyToManager`, now or later."""

    def tick(self, now_s: float) -> None:
        """To be said last, when everything else knows what time it is."""

    def progress(self, now_s: float) -> None:
        """While it is frozen, to be said after every input."""


class RoutingMeasures(Protocol):
    """What is counted for the lake and the manager. Each taker has counts of its own."""

    def begin_tally(self, taker: str) -> None: ...

    def take_tally(self, taker: str) -> Mapping[str, TopicTally]:
        """What was published here and asked for by sessions since the last call, by topic."""

    def requested(self, topics: Iterable[str]) -> None:
        """A user here asks for the past of these."""

    def wanted(self) -> set[str]:
        """What this broker wants to hear of; without topics of the system's own."""

    def counters(self) -> dict[str, int]: ...

    def begin_round_trips(self) -> None: ...

    def take_round_trips(self, *, everything: bool) -> Mapping[str, float]:
        """To other brokers, in seconds: what has changed since the last call, or all of them."""


class Routing(Protocol):
    @property
    def subscriptions(self) -> RoutedSubscriptions: ...

    @property
    def publishing(self) -> RoutedPublishing: ...

    @property
    def stamping(self) -> RoutedStamping: ...

    @property
    def brokers(self) -> KnownBrokers: ...

    @property
    def plans(self) -> RoutingPlans: ...

    @property
    def measures(self) -> RoutingMeasures: ...

    # ---- inputs

    def heed_also(self, handlers: Mapping[str, PeerHandler]) -> None:
        """What brokers say to each other that is not routing's, by kind, and whom it is for."""

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool) -> None:
        """`NodeReady` is an effect once it takes part."""

    def on_frame(self, frame: PeerFrame, now_s: float) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def unreachable(self, address: str, now_s: float) -> None:
        """Connections to this address are refused."""

    def change_topology(self, topology: Topology, now_s: float) -> None:
        """Use it from now on, if nothing is wrong with that (`topology_problem`)."""

    def leave(self, now_s: float) -> None:
        """`Stopped` is an effect once other brokers know."""

    # ---- after each input

    def take_in(self, now_s: float) -> None:
        """What has come, and what came of it here, goes to sessions."""

    def send_out(self, now_s: float) -> bool:
        """What clients and the broker have caused goes out; whether there is more to take in."""

    def left_over(self) -> Iterator[str]:
        """What was to be done because of the last input, and was not: nothing."""

    # ---- what others may know

    @property
    def is_joining(self) -> bool:
        """It has not found other brokers yet."""

    @property
    def is_member(self) -> bool:
        """It takes part, and is not on its way out."""

    @property
    def unready(self) -> str:
        """Why no client should be sent here; empty if one may."""

    def node_status(self) -> NodeStatus | None:
        """Of the node that is hosted here; None: routing has no nodes."""

    def tree_status(self) -> TreeStatus | None:
        """Of a broker in a tree; None on a ring."""

    def count_in_steps(self, counts: BrokerCounts, at_once: int) -> Iterator[None]:
        """Add what it has to these; after so many things it waits until it is to go on."""

    def violations(self, clients: Iterable[Session]) -> Iterator[str]:
        """What does not hold of it that must, after every input, with these clients here."""

    # ---- what operators ask

    def describe(self, report: BrokerReport) -> None:
        """Add what it knows."""

    def describe_topology(self) -> TopologyReport:
        """Empty of a routing that has none."""

    def table_entries(self) -> TableEntries | None:
        """Who wants what of whom, as it is now; None of a routing without such tables."""

    def topology_problem(self, topology: Topology) -> str:
        """Why it cannot be used in place of the one in use; empty if it can."""

    def list_topics(self, after: str, limit: int) -> TopicsReport: ...

    def describe_tree(self, topic: str) -> TreeReport: ...


# Makes the routing of a broker, which is one of its parts.
RoutingFactory = Callable[[BrokerContext], Routing]
