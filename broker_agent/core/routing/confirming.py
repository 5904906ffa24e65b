"""Clients' requests to subscribe, until all of them is in place and the client is told.

Where sessions are saved, the confirmation of one that outlives its connection is held until what it
confirms is on disk: a client that has been told needs not remember. While the disk fails, what is
new in such a session is refused; what it has goes on. A request that restores a session has no
client to tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import Cursor, ErrorCode, Subscribed, TopicProblem

_NOT_SAVED = (
    "this session is to be kept, and the broker cannot write it to its disk at present: try again, "
    "go to another broker, or subscribe without keep_s"
)


@dataclass(slots=True, eq=False)
class UnconfirmedRequest:
    """What waits is known to the routing that brings it in."""

    session: Session
    number: int
    problems: list[TopicProblem]
    # Whose request it is; None if it restores a session.
    connection: ConnectionId | None
    # Whether the client goes on where it stood elsewhere, and does not begin here.
    goes_on: bool = False
    # Filters that the session has only because of this request.
    new: list[Filter] = field(default_factory=list)
    # What the client is to bring along wherever it goes on, beside the positions of topics.
    positions: list[Cursor] = field(default_factory=list)

    @property
    def restores(self) -> bool:
        return self.connection is None


class Confirming:
    def __init__(self) -> None:
        # Whether confirmations are held until the session is saved.
        self.holding = False
        # Whether the disk fails: nobody is told that something is kept which is not.
        self.is_failing = False
        # Requests whose sessions are not saved yet, and those that are to be refused.
        self.held: list[UnconfirmedRequest] = []
        self.unsaved: list[UnconfirmedRequest] = []
        self._open: dict[Session, dict[UnconfirmedRequest, None]] = {}

    def note_open(self, request: UnconfirmedRequest) -> None:
        """A request is not in place yet."""
        if not request.restores:
            self._open.setdefault(request.session, {})[request] = None

    def withdraw(self, request: UnconfirmedRequest) -> None:
        """Nobody waits for it any more."""
        still_open = self._open.get(request.session)
        if still_open is not None:
            still_open.pop(request, None)
            if not still_open:
                del self._open[request.session]

    def complete(self, request: UnconfirmedRequest) -> bool:
        """Everything of it is in place; whether the client has been told so, too."""
        session = request.session
        self.withdraw(request)
        if self.holding and session.is_kept and not request.restores:
            self.held.append(request)
            return False
        if self.must_refuse(request):
            self.unsaved.append(request)
            return False
        return self.tell_client(request)

    def must_refuse(self, request: UnconfirmedRequest) -> bool:
        """Whether it asks for what cannot be kept now. Who comes from another broker is let go on,
        as without it, it would have nothing at all."""
        kept = request.session.is_kept and not request.restores
        return self.is_failing and kept and bool(request.new) and not request.goes_on

    def refuse(self, request: UnconfirmedRequest) -> None:
        """In place of a confirmation: the filters that it wanted added are not there."""
        refused = {f.pattern: None for f in request.new}
        request.problems += [
            TopicProblem(topic=pattern, code=ErrorCode.ERROR_CODE_NOT_SAVED, message=_NOT_SAVED)
            for pattern in refused
        ]
        self.tell_client(request)

    def tell_client(self, request: UnconfirmedRequest) -> bool:
        """Confirm it to the connection that asked; whether that is there still."""
        session = request.session
        if request.connection is None or session.connection != request.connection:
            return False
        confirmation = Subscribed(
            request=request.number, problems=request.problems, positions=request.positions
        )
        session.confirm(confirmation)
        return True

    def take_unsaved(self) -> list[UnconfirmedRequest]:
        unsaved, self.unsaved = self.unsaved, []
        return unsaved

    def take_held(self) -> list[UnconfirmedRequest]:
        held, self.held = self.held, []
        return held

    def settled(self, session: Session) -> Iterable[Filter]:
        """The session's filters that are in place."""
        opened = {f for request in self._open.get(session, ()) for f in request.new}
        return [f for filters in session.filters.values() for f in filters if f not in opened]

    def forget_session(self, session: Session) -> None:
        self._open.pop(session, None)
