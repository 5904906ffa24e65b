"""The client's side of the protocol, as a pure state machine.

It numbers events and keeps those that await acknowledgement (`publications`), knows what it
subscribes to and how far it has read (`reading`), and after any loss of the connection says it all
again to the next broker. Its driver connects, moves frames and waits; the simulator drives the same
class.

    frame = core.connected()           # what to send first
    core.publish("quake/ca", b"M5.1", Ack.REPLICATED, now_us)
    frame = core.take_frame(bytes_max) # what to send now
    for item in core.on_frame(frame):  # what a broker said
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from dynatops.client.core.histories import Histories, PastEnd, PastPart
from dynatops.client.core.publications import (
    FRAME_MESSAGES_MAX,
    Ack,
    Confirmed,
    ConfirmedColumns,
    Publications,
    Rejected,
)
from dynatops.client.core.reading import Arrived, ArrivedBundle, FilterKey, Reading, to_wire
from dynatops.kit.bundles import Bundle, is_whole
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Echo,
    EventMark,
    Goodbye,
    Hello,
    MissCause,
    Missed,
    Received,
    Redirect,
    SerialRange,
    ServerFrame,
    ServerMessage,
    SlowPolicy,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Attribute

PROTOCOL = 1
# The broker is told what the application has taken once it is so many deliveries more.
_TOLD_EVERY = 64

Item = (
    Arrived
    | ArrivedBundle
    | Confirmed
    | ConfirmedColumns
    | Rejected
    | Missed
    | Subscribed
    | Welcome
    | Goodbye
    | Redirect
    | PastPart
    | PastEnd
    | int
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWishes:
    """What a client asks of its session."""

    slow_policy: SlowPolicy.ValueType = SlowPolicy.SLOW_POLICY_UNSPECIFIED
    # How long it is kept without a connection.
    expiry_s: int = 0
    # Not to go on with what there was of this client's.
    clean: bool = False
    token: str = field(default="", repr=False)
    # To go where a broker sends it.
    movable: bool = True
    # Latitude and longitude of its user, in degrees.
    place: tuple[float, float] | None = None


class ClientCore:
    def __init__(self, client_id: str, secret: bytes, wishes: SessionWishes | None = None) -> None:
        self.client_id = client_id
        self.welcome: Welcome | None = None
        self.publications = Publications()
        self.reading = Reading()
        self.histories = Histories()
        self._wishes = wishes or SessionWishes()
        # What the numbers of its events are bound to, at whichever broker.
        self._secret = secret
        # The broker that has the session, and the one that is being tried.
        self._broker_address = ""
        self._broker_id = ""
        self._connecting_to = ""
        # Hellos said so far.
        self._attempts = 0
        self._request = 0
        self._pending_requests: dict[int, list[FilterKey]] = {}
        # Requests that renew subscriptions of a former connection.
        self._renewals: dict[int, list[FilterKey]] = {}
        self._control: list[ClientMessage] = []
        # What the broker is to be told beside how far everything is taken.
        self._beyond: list[SerialRange] = []
        self._marks: list[EventMark] = []
        # Echoes asked for, and whether the present broker has been asked.
        self._echoes: dict[int, bool] = {}

    @property
    def filters(self) -> list[FilterKey]:
        return self.reading.filters

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked of the present broker has been confirmed."""
        return not self._pending_requests and not self._renewals

    @property
    def awaits_answers(self) -> bool:
        """Whether anybody may be waiting for what a broker will say."""
        publications = self.publications
        under_way = publications.unsettled_bytes + publications.open_bytes
        waits = self._pending_requests or self._echoes or under_way
        return bool(waits or self.histories.is_awaited)

    # ---- the connection -------------------------------------------------------------------------

    def connected(
        self, address: str = "", *, redirected: bool = False, avoid: Iterable[str] = ()
    ) -> ClientFrame:
        """A broker has been reached: the first frame for it. Nothing else goes before Welcome.

        `avoid` are addresses that failed lately.
        """
        self._attempts += 1
        hello = Hello(
            protocol=PROTOCOL,
            client_id=self.client_id,
            slow_policy=self._wishes.slow_policy,
            token=self._wishes.token,
            expiry_s=self._wishes.expiry_s,
            # Only the first time: later it is this client's own session.
            clean=self._wishes.clean and not self.reading.session_id,
            session_id=self.reading.session_id,
            former_broker=self._broker_address,
            former_broker_id=self._broker_id,
            redirected=redirected,
            movable=self._wishes.movable,
            publisher_secret=self._secret,
            avoid=avoid,
            attempt=self._attempts,
            bundles=True,
        )
        if self._wishes.place is not None:
            hello.latitude, hello.longitude = self._wishes.place
        self._connecting_to = address
        return ClientFrame(messages=[ClientMessage(hello=hello)])

    def disconnected(self) -> None:
        self.welcome = None
        self._control.clear()
        self._renewals.clear()
        self._beyond, self._marks = [], []
        self._echoes = dict.fromkeys(self._echoes, False)
        self.publications.disconnected()
        self.histories.disconnected()

    def _greeted(self, welcome: Welcome) -> Iterator[Item]:
        self.welcome = welcome
        self._broker_address = self._connecting_to
        self._broker_id = welcome.broker_id
        missing, excess = self.reading.greeted(welcome)
        yield welcome
        for pattern in self.reading.without_place(missing):
            # What is retained comes, from the beginning; what is not, nobody can know.
            yield Missed(topic=pattern, cause=MissCause.MISS_CAUSE_NOT_RETAINED)
        # What goes on goes first: a topic begun anew for another filter would begin too late.
        if missing:
            self._request += 1
            self._renewals[self._request] = missing
            subscribe = Subscribe(
                request=self._request,
                filters=to_wire(missing),
                resume=True,
                cursors=self.reading.cursors(missing),
            )
            self._say(subscribe=subscribe)
            self.reading.go_on(self._request, welcome)
        for number, filters in self._pending_requests.items():
            self._say(subscribe=Subscribe(request=number, filters=to_wire(filters)))
        if excess:
            self._request += 1
            self._say(unsubscribe=Unsubscribe(request=self._request, filters=to_wire(excess)))
        self.publications.greeted(welcome.publisher, bundles=welcome.bundles)
        yield from self.histories.greeted(welcome)

    # ---- what the application wants -------------------------------------------------------------

    def subscribe(self, filters: Iterable[FilterKey], drop: Iterable[FilterKey] = ()) -> int:
        """Ask for these filters, and give others up with that; the request's number, which
        `Subscribed` will carry."""
        wanted, gone = list(filters), list(drop)
        self._forget(gone)
        self.reading.add(wanted)
        self._request += 1
        self._pending_requests[self._request] = wanted
        if self.welcome is not None:
            subscribe = Subscribe(
                request=self._request, filters=to_wire(wanted), drop=to_wire(gone)
            )
            self._say(subscribe=subscribe)
        return self._request

    def _forget(self, gone: list[FilterKey]) -> None:
        self.reading.remove(gone)
        # What confirms them says nothing of the same filters, should they be asked for anew.
        for requests in (self._pending_requests, self._renewals):
            for number, wanted in requests.items():
                requests[number] = [key for key in wanted if key not in gone]

    def stop_waiting(self, filters: Iterable[FilterKey]) -> None:
        """The application gave up waiting for these to be confirmed. What the session was kept with
        it is kept with still; the rest is given up."""
        wanted = list(filters)
        kept = self.reading.put_back(wanted)
        for request, keys in list(self._pending_requests.items()):
            self._pending_requests[request] = [key for key in keys if key not in kept]
        if gone := [key for key in wanted if key not in kept]:
            self.unsubscribe(gone)

    def unsubscribe(self, filters: Iterable[FilterKey]) -> None:
        gone = list(filters)
        self._forget(gone)
        if self.welcome is not None:
            self._request += 1
            self._say(unsubscribe=Unsubscribe(request=self._request, filters=to_wire(gone)))

    def echo(self) -> int:
        """Ask whichever broker it will be to answer once it has handled everything said so far."""
        self._request += 1
        self._echoes[self._request] = False
        return self._request

    def publish(
        self,
        topic: str,
        payload: bytes,
        ack: Ack,
        now_us: int,
        attributes: list[Attribute] | None = None,
    ) -> int:
        """Take an event in for the next frame; its number on this topic."""
        return self.publications.publish(topic, (payload,), ack, now_us, attributes)

    def taken(self, serial: int) -> None:
        """The application has taken all deliveries up to this one."""
        self.reading.taken = max(serial, self.reading.taken)

    def taken_beyond(self, ranges: Iterable[SerialRange], marks: Iterable[EventMark]) -> None:
        """And these deliveries, and what has become of single events of others."""
        self._beyond += ranges
        self._marks += marks

    # ---- frames out -----------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        unsaid = not all(self._echoes.values()) or self.histories.has_output
        return bool(self._control or unsaid or self.publications.has_output or self._tells_soon)

    @property
    def _tells_soon(self) -> bool:
        return self.reading.taken >= self.reading.told + _TOLD_EVERY

    @property
    def has_untold(self) -> bool:
        """Whether the broker could be told of deliveries that the application has taken."""
        return bool(self.reading.taken > self.reading.told or self._beyond or self._marks)

    def take_frame(self, bytes_max: int, *, tell: bool = False) -> ClientFrame | None:
        """The next frame to send; None if there is nothing to say, or nobody to say it to."""
        if self.welcome is None or not (self.has_output or (tell and self.has_untold)):
            return None
        self._control += self.histories.take_unsaid()
        frame = ClientFrame(messages=self._control[:FRAME_MESSAGES_MAX])
        del self._control[:FRAME_MESSAGES_MAX]
        if self._control:
            return frame
        if self.has_untold:
            self.reading.told = self.reading.taken
            received = Received(serial=self.reading.told, beyond=self._beyond, marks=self._marks)
            frame.messages.add(received=received)
            self._beyond, self._marks = [], []
        if not self.publications.fill(frame, bytes_max):
            return frame
        for number, said in self._echoes.items():
            if len(frame.messages) >= 2 * FRAME_MESSAGES_MAX:
                break
            if not said:
                frame.messages.add(echo=Echo(request=number))
                self._echoes[number] = True
        return frame

    def _say(self, **body: Subscribe | Unsubscribe) -> None:
        self._control.append(ClientMessage(**body))  # type: ignore[arg-type]

    # ---- frames in ------------------------------------------------------------------------------

    def on_frame(self, frame: ServerFrame) -> Iterator[Item]:
        """What a broker's frame means for the application, in order."""
        for message in frame.messages:
            kind = message.WhichOneof("body")
            if kind == "run":
                yield from self.reading.admit(message.run)
                if self.reading.handed:
                    self.reading.handed = {}
            elif kind == "bundle":
                if not is_whole(message.bundle) or not message.bundle.terms:
                    raise DecodeError("a bundle whose columns are not equally long")
                yield from self.reading.admit_bundle(Bundle.from_wire(message.bundle))
            elif kind == "acknowledgements":
                yield from self.publications.on_columns(message.acknowledgements)
            elif kind == "acknowledged":
                yield from self.publications.on_acknowledged(message.acknowledged)
            elif kind == "refused":
                yield from self.publications.on_refused(message.refused)
            elif kind in ("missed", "skipped", "redelivered"):
                yield from self._on_notice(message)
            else:
                yield from self._on_answer(message)

    def _on_answer(self, message: ServerMessage) -> Iterator[Item]:
        """Something that was asked for, or about the connection."""
        kind = message.WhichOneof("body")
        if kind == "subscribed":
            yield from self._on_subscribed(message.subscribed)
        elif kind == "welcome":
            yield from self._greeted(message.welcome)
        elif kind == "goodbye":
            yield message.goodbye
        elif kind == "redirect":
            yield message.redirect
        elif kind == "echoed":
            self._echoes.pop(message.echoed.request, None)
            yield message.echoed.request
        elif kind == "history_part":
            yield from self.histories.on_part(message.history_part)
        elif kind == "history_end":
            yield from self.histories.on_end(message.history_end)

    def _on_notice(self, message: ServerMessage) -> Iterator[Item]:
        """Something about deliveries."""
        if message.HasField("missed"):
            if self.reading.count_delivery():
                yield message.missed
        elif message.HasField("skipped"):
            self.reading.skip(message.skipped.count)
        elif message.HasField("redelivered"):
            for mark in message.redelivered.marks:
                offsets = range(mark.first, mark.last + 1)
                self.reading.handed.update(dict.fromkeys(offsets, mark.deliveries))

    def _on_subscribed(self, message: Subscribed) -> Iterator[Item]:
        renewed = self._renewals.pop(message.request, None)
        filters = self._pending_requests.pop(message.request, renewed)
        if filters is None:
            return
        self.reading.begin(message.positions)
        refused = {problem.topic for problem in message.problems}
        self.reading.remove([key for key in filters if key[0] in refused])
        self.reading.confirm(filters)
        yield message
