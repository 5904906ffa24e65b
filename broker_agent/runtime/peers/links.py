"""Links to other brokers: one bidirectional stream each, opened by whoever has something to say
first.

Frames for a broker wait in a bounded queue and leave in batches, as many as are there when the
stream can take more. If the stream breaks it is opened again, with growing pauses, as long as there
is anything to send; the protocol makes up for what is lost with it.

    idle --send--> connecting --hello answered--> open --broken--> connecting
                      |                             `--nothing to send for long--> idle
                      `--not reached for too long: queue dropped--> idle

If both sides open a stream at once, each uses its own for sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import grpc

from broker_agent.process_settings import RuntimeSettings
from broker_agent.runtime.peers import namesakes
from broker_agent.runtime.streams import (
    METHOD,
    InboundStream,
    OutboundStream,
    PeerRefusedError,
    Stream,
    StreamBrokenError,
)
from dynatops.kit.background import Supervisor, Work
from dynatops.kit.bounded import BoundedTable, Past
from dynatops.kit.counters import counter
from dynatops.kit.observing.logs import OncePerMinute
from dynatops.kit.pacing import Pacer
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.kit.security.peer_proofs import (
    SECRETS_DIFFER,
    DialledSide,
    DiallingSide,
    NotBelievedError,
)
from dynatops.kit.security.tls import explain
from dynatops.kit.serving.first_reads import (
    NOTHING_COMPRESSED,
    UNNAMED_MAX,
    UNNAMED_PER_ADDRESS_MAX,
    FirstReads,
    host_of,
)
from dynatops.kit.serving.keepalive import keepalive_options
from dynatops.v1.overlay_pb2 import PeerFrame
from dynatops.v1.peer_pb2 import LinkFrame, LinkHello, LinkRefusal
from dynatops.v1.proof_pb2 import PeerChallenge

PROTOCOL_MIN = 2
PROTOCOL_MAX = 2
HELLO_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)
# Strangers can cause these as often as they like.
refusals_log = logging.getLogger(f"{__name__}.refusals")
refusals_log.addFilter(OncePerMinute())


@dataclass(slots=True)
class LinkCounters:
    links_opened: int = counter("Streams opened with other brokers, by either side.")
    links_broken: int = counter("Streams with other brokers that ended.")
    links_refused: int = counter(
        "Streams refused: unknown protocol version, wrong secret, or no proper hello."
    )
    links_turned_away: int = counter(
        "Links that did not come about because there were too many (`runtime.links_max`)."
    )
    links_lost_their_place: int = counter(
        "Streams ended because they had said nothing, and others waited to be read from."
    )
    links_not_believed: int = counter("Of these, for a secret that is not this network's.")
    link_frames_sent: int = counter("Frames sent to other brokers.")
    link_bytes_sent: int = counter("Bytes sent to other brokers.")
    link_frames_dropped: int = counter(
        "Frames not sent: the queue was full, or the broker was out of reach for too long."
    )

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _is_refused(reason: str) -> bool:
    """Whether a host answered that nobody listens there: the process is gone."""
    return "onnection refused" in reason


class _Link:
    """The queue for one other broker, and the stream it goes out on."""

    def __init__(self, address: str, links: Links) -> None:
        self.address = address
        self.stream: Stream | None = None
        self._links = links
        self._settings = links.settings
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._work = asyncio.Event()
        self._pacer = Pacer()
        # When the sender looks whether it has been idle for long.
        self._alarm: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[object] | None = None

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def send(self, frame: PeerFrame) -> None:
        piece = LinkFrame(frames=[frame]).SerializeToString()
        if self._queued_bytes + len(piece) > self._settings.link_queue_bytes_max:
            self._links.counters.link_frames_dropped += 1
            return
        self._queue.append(piece)
        self._queued_bytes += len(piece)
        self._work.set()
        if self._sender is None or self._sender.done():
            self._sender = self._links.spawn("sending to a broker", self._send_all())

    def accept(self, stream: InboundStream) -> None:
        """Use it, unless this side has one of its own. Whoever opens another one is done with what
        it opened before: it was restarted, perhaps, and nothing said so."""
        former = self.stream
        if former is None or isinstance(former, InboundStream):
            self.stream = stream
            if former is not None:
                former.close()

    def end(self, stream: Stream) -> None:
        """This stream is of no use any more."""
        stream.close()
        if self.stream is stream:
            self.stream = None
            self._links.counters.links_broken += 1
            # If anything is to be sent the sender will notice; if not, find out whether the other
            # broker still lives: a dead one is to be known at once.
            if not self._links.closed and (self._sender is None or self._sender.done()):
                self._sender = self._links.spawn("looking for a broker", self._probe())

    async def _send_all(self) -> None:
        while await self._has_work():
            await self._pacer.turn()
            stream = self.stream or await self._connect()
            if stream is None:
                self._drop_queue()
                continue
            batch = self._take_batch()
            self._pacer.wrote(len(batch))
            try:
                await stream.write(batch)
            except StreamBrokenError as error:
                log.debug("link to %s broke: %s", self.address, error)
                self.end(stream)
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self._rest()

    def _rest(self) -> None:
        """Brokers come and go, at addresses of their own: a link that is of no use is forgotten."""
        if self.stream is None and not self._queue:
            self._links.drop_link(self)

    async def _has_work(self) -> bool:
        """Wait for something to send; False after a long time without."""
        if self._queue:
            return True
        loop = asyncio.get_running_loop()
        idle_at_s = loop.time() + self._settings.link_idle_s
        while not self._queue:
            if loop.time() >= idle_at_s:
                return False
            self._work.clear()
            if self._alarm is None:
                # One for many frames, which looks when it rings: each would cost as much as a wait.
                self._alarm = loop.call_at(idle_at_s, self._look)
            await self._work.wait()
        return True

    def _look(self) -> None:
        self._alarm = None
        self._work.set()

    def _take_batch(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while self._queue and (not pieces or size < self._settings.link_frame_bytes_max):
            pieces.append(self._queue.popleft())
            size += len(pieces[-1])
        self._queued_bytes -= size
        self._links.counters.link_frames_sent += len(pieces)
        self._links.counters.link_bytes_sent += size
        return b"".join(pieces)

    def _drop_queue(self) -> None:
        self._links.counters.link_frames_dropped += len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0

    # ---- connecting -----------------------------------------------------------------------------

    async def _connect(self) -> Stream | None:
        """Open a stream, trying again for a while; None if the broker stays out of reach."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.link_patience_s
        backoff_s = self._settings.link_backoff_min_s
        while self.stream is None and loop.time() < deadline_s:
            try:
                await self._open()
            except (StreamBrokenError, TimeoutError) as error:
                log.debug("no link to %s: %s", self.address, error)
                self._links.last_problem = f"{self.address}: {explain(str(error))}"
                if _is_refused(str(error)):
                    self._links.host.on_unreachable(self.address)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))
                backoff_s = min(2 * backoff_s, self._settings.link_backoff_max_s)
            except PeerRefusedError as error:
                self._links.counters.links_refused += 1
                self._links.last_problem = f"{self.address}: {error}"
                log.warning("no link with %s: %s", self.address, error)
                return None
        return self.stream

    async def _probe(self) -> None:
        try:
            await self._open()
        except (StreamBrokenError, TimeoutError, PeerRefusedError) as error:
            if _is_refused(str(error)):
                self._links.host.on_unreachable(self.address)
        if self._queue:
            await self._send_all()
        self._rest()

    async def _open(self) -> None:
        tls = self._links.credentials.tls
        stream = OutboundStream(self.address, self._links.options, tls, METHOD, LinkFrame)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                answer = await self._links.greet(stream, self.address, self._links.hello())
            if answer.HasField("refusal"):
                raise PeerRefusedError(answer.refusal.reason)
            if not answer.HasField("hello"):
                raise PeerRefusedError("it answered without a hello")
        except BaseException:
            stream.close()
            raise
        self._links.counters.links_opened += 1
        self.stream = stream
        self._links.spawn("reading from a broker", self._links.read_all(self, stream))


@dataclass(frozen=True, slots=True)
class LinkHost:
    """What links need from the agent they belong to."""

    broker_id: str
    address: str
    on_frame: Callable[[PeerFrame], None]
    # Nobody listens at this address.
    on_unreachable: Callable[[str], None]
    # Where brokers of a name were seen; and whether this one is a member of the ring, to stay.
    namesakes: Callable[[str], list[str]] = lambda broker_id: []
    is_member: Callable[[], bool] = lambda: False
    # Addresses that a person gave: they may be other names of those that brokers give themselves.
    seeds: frozenset[str] = frozenset()


class Links:
    def __init__(
        self,
        host: LinkHost,
        settings: RuntimeSettings,
        credentials: LinkCredentials | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self.host = host
        self.settings = settings
        self.credentials = credentials or LinkCredentials()
        # Why a link did not come about, lately; for whoever wonders why nobody answers.
        self.last_problem = ""
        self.counters = LinkCounters()
        self.closed = False
        self._links: BoundedTable[str, _Link] = BoundedTable(
            settings.links_max, self.counters, "links_turned_away", past=Past.NEWEST
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        # Streams that have not said hello, by host.
        self._unnamed: Counter[str] = Counter()
        self._first_reads = FirstReads(
            settings.unnamed_bytes_max, settings.message_bytes_max, self._note_lost_place
        )
        self.options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", settings.message_bytes_max),
            ("grpc.max_send_message_length", settings.message_bytes_max),
            NOTHING_COMPRESSED,
            *keepalive_options(settings.keepalive_s),
            # Each attempt to connect stands for itself: back-off is done here.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]

    def _note_lost_place(self) -> None:
        self.counters.links_lost_their_place += 1

    def spawn(self, name: str, work: Work) -> asyncio.Task[object]:
        """For as long as there are links."""
        task = self._supervisor.start(name, work, may_end=True)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def hello(self) -> LinkHello:
        return LinkHello(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            broker_id=self.host.broker_id,
            address=self.host.address,
        )

    async def greet(
        self, stream: OutboundStream[LinkFrame], address: str, hello: LinkHello
    ) -> LinkFrame:
        """Say hello, once the other side has shown that it is of this network; what it answers.
        Raises PeerRefusedError if it has not."""
        if self.credentials.ask_for_proof:
            by_any_name = address in self.host.seeds
            side = DiallingSide(self.credentials, METHOD, address, by_any_name=by_any_name)
            await stream.write(LinkFrame(challenge=side.challenge()).SerializeToString())
            answer = await stream.read()
            if answer.HasField("refusal"):
                raise PeerRefusedError(answer.refusal.reason)
            try:
                side.check(answer.challenge)
            except NotBelievedError as error:
                self.counters.links_not_believed += 1
                last = LinkFrame(challenge=PeerChallenge(disbelieved=True))
                await stream.write(last.SerializeToString())
                with contextlib.suppress(StreamBrokenError):
                    # It is heard before the stream goes.
                    await stream.read()
                raise PeerRefusedError(f"it answered, but {error}") from None
            side.sign(hello)
        await stream.write(LinkFrame(hello=hello).SerializeToString())
        return await stream.read()

    def send(self, address: str, frame: PeerFrame) -> None:
        if self.closed:
            return
        link = self._link(address)
        if link is None:
            self.counters.link_frames_dropped += 1
            return
        link.send(frame)

    @property
    def open_streams(self) -> int:
        return sum(link.stream is not None for link in self._links.values())

    @property
    def queued_bytes(self) -> int:
        return sum(link.queued_bytes for link in self._links.values())

    @property
    def longest_queue_bytes(self) -> int:
        return max((link.queued_bytes for link in self._links.values()), default=0)

    def _link(self, address: str) -> _Link | None:
        """None if there are too many already."""
        link = self._links.get(address)
        if link is None:
            link = _Link(address, self)
            if not self._links.put(address, link):
                return None
        return link

    def drop_link(self, link: _Link) -> None:
        """Nothing goes there, or comes from there, any more."""
        if self._links.get(link.address) is link:
            del self._links[link.address]

    async def read_all(self, link: _Link, stream: Stream, first: LinkFrame | None = None) -> None:
        """Hand on what comes in, and what has come already, until the stream ends."""
        try:
            while True:
                for frame in (first or await stream.read()).frames:
                    self.host.on_frame(frame)
                first = None
        except StreamBrokenError as error:
            log.debug("link with %s ended: %s", link.address, error)
        finally:
            link.end(stream)

    async def accept(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Serve a stream that another broker opens, until it ends."""
        stream = InboundStream(context)
        met = await self._first_frame(stream, host_of(context.peer()))
        if met is None:
            self.counters.links_refused += 1
            return
        first, believed = met
        problem = _problem_with(first) if believed else SECRETS_DIFFER
        self.counters.links_not_believed += not believed
        asks = problem is None and first.hello.asks_for_name
        if problem is None:
            answer = namesakes.answer(self, first.hello) if asks else LinkFrame(hello=self.hello())
        else:
            self.counters.links_refused += 1
            refusals_log.warning("refused a link from %s: %s", context.peer(), problem)
            answer = LinkFrame(refusal=LinkRefusal(reason=problem))
        try:
            await stream.write(answer.SerializeToString())
        except StreamBrokenError as error:
            log.debug("%s went before it was answered: %s", context.peer(), error)
            return
        if problem is not None or asks:
            return
        link = self._link(first.hello.address)
        if link is None:
            self.counters.links_refused += 1
            return
        self.counters.links_opened += 1
        link.accept(stream)
        reading = self.spawn("reading from a broker", self.read_all(link, stream, first))
        try:
            await stream.ended()
        finally:
            reading.cancel()
            link.end(stream)

    async def _first_frame(self, stream: InboundStream, host: str) -> tuple[LinkFrame, bool] | None:
        """And whether the other side is of this network. None if it does not come in time, or too
        many keep us waiting."""
        unnamed = self._unnamed
        if unnamed.total() >= UNNAMED_MAX or unnamed[host] >= UNNAMED_PER_ADDRESS_MAX:
            return None
        unnamed[host] += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                return await self._meet(stream, host)
        except (StreamBrokenError, TimeoutError):
            return None
        finally:
            unnamed[host] -= 1
            if not unnamed[host]:
                del unnamed[host]

    async def _meet(self, stream: InboundStream, host: str) -> tuple[LinkFrame, bool]:
        first = await self._read_first(stream, host)
        if not first.HasField("challenge"):
            return first, not self.credentials.ask_for_proof
        side = DialledSide(self.credentials, METHOD, self.host.address, first.challenge)
        await stream.write(LinkFrame(challenge=side.answer()).SerializeToString())
        first = await self._read_first(stream, host)
        return first, not first.challenge.disbelieved and side.believes(first.hello)

    async def _read_first(self, stream: InboundStream, host: str) -> LinkFrame:
        first = await self._first_reads.read(host, stream.read_first)
        if first is None:
            raise StreamBrokenError("it said nothing for too long, and others waited")
        return first

    async def close(self) -> None:
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _problem_with(first: LinkFrame) -> str | None:
    if not first.HasField("hello"):
        return "the first frame must be a hello"
    hello = first.hello
    if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
        spoken = f"{hello.protocol_min} to {hello.protocol_max}"
        return f"this broker speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the other {spoken}"
    if not hello.address:
        return "the hello names no address"
    return None
