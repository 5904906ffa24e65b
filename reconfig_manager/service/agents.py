"""Brokers' streams to this manager: who may open one, and what is said on it.

A broker says who it is, in its first frame, and shows that it knows the secret, if there is one; if
it does not, it learns nothing. Others are told where the leader is, unless it is here. From then on
frames go to the host as they come, and steps wait in a short queue: one too many is dropped, as the
core repeats what is not answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, fields
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from dynatops.kit.counters import counter
from dynatops.kit.observing.logs import OncePerMinute
from dynatops.kit.security.peer_credentials import LinkCredentials, ServerCertificates
from dynatops.kit.security.peer_proofs import SECRETS_DIFFER, DialledSide
from dynatops.kit.serving.first_reads import (
    FIRST_FRAME_BYTES_MAX,
    NOTHING_COMPRESSED,
    UNNAMED_MAX,
    UNNAMED_PER_ADDRESS_MAX,
    FirstReads,
    host_of,
)
from dynatops.kit.serving.keepalive import keepalive_options
from dynatops.v1.manager_pb2 import (
    AgentFrame,
    Attended,
    LoadReport,
    ManagerFrame,
    NotLeader,
    Registration,
    Step,
    StepReply,
)
from reconfig_manager.ports import AgentId
from reconfig_manager.service.process_settings import ServiceSettings

METHOD = "/dynatops.v1.Management/Attend"
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
HELLO_TIMEOUT_S = 5.0
STOP_GRACE_S = 0.5
_LAST_WORDS_S = 2.0

log = logging.getLogger(__name__)
# Strangers can cause these as often as they like.
refusals_log = logging.getLogger(f"{__name__}.refusals")
refusals_log.addFilter(OncePerMinute())

Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class AgentCounters:
    agents_accepted: int = counter("Streams of brokers accepted.")
    agents_refused: int = counter("Streams refused: wrong secret, unknown protocol, no broker.")
    agents_not_believed: int = counter("Of these, for a secret that is not this network's.")
    agents_lost_their_place: int = counter(
        "Streams ended because they had said nothing, and others waited to be read from."
    )
    agents_sent_on: int = counter("Brokers told that another manager leads.")
    agents_dropped: int = counter("Streams ended by this manager.")
    agent_frames_received: int = counter("Frames received from brokers.")
    agent_steps_sent: int = counter("Steps sent to brokers.")
    agent_steps_dropped: int = counter("Steps not sent: the queue was full, or the stream gone.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class AgentsHost(Protocol):
    """What streams need from the manager they belong to."""

    def attended(self) -> Attended | None:
        """What a broker is answered; None if this manager does not lead."""

    def leader_address(self) -> str: ...

    def on_registration(self, agent: AgentId, registration: Registration) -> None: ...

    def on_report(self, agent: AgentId, report: LoadReport) -> None: ...

    def on_reply(self, agent: AgentId, reply: StepReply) -> None: ...

    def on_gone(self, agent: AgentId) -> None: ...

    def on_failure(self, error: Exception) -> None:
        """Not the broker's: this manager is broken."""


class _RefusedError(Exception):
    """The broker is not let in; gRPC's code, and why."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _AgentStream:
    """What waits for one broker, and whether its stream is to end."""

    def __init__(self, agent: AgentId, frames_max: int) -> None:
        self.agent = agent
        self._frames: deque[bytes] = deque()
        self._frames_max = frames_max
        self._stirred = asyncio.Event()
        self._ending = False
        # Why, for the broker; None if its last frame says so.
        self.reason: str | None = None

    def offer(self, frame: bytes) -> bool:
        if self._ending or len(self._frames) >= self._frames_max:
            return False
        self._frames.append(frame)
        self._stirred.set()
        return True

    def end(self, reason: str | None, last: bytes = b"") -> None:
        """What waits is not sent any more."""
        if self._ending:
            return
        self._frames.clear()
        if last:
            self._frames.append(last)
        self._ending, self.reason = True, reason
        self._stirred.set()

    async def write_all(self, context: Context) -> None:
        """Until it is to end."""
        while True:
            while self._frames:
                await context.write(self._frames.popleft())
            if self._ending:
                return
            self._stirred.clear()
            await self._stirred.wait()


class AgentServer:
    def __init__(
        self, settings: ServiceSettings, credentials: LinkCredentials, host: AgentsHost
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._host = host
        self.counters = AgentCounters()
        # Where brokers reach this manager; set once that is known.
        self.address = ""
        self._certificates: ServerCertificates | None = None
        self._streams: dict[AgentId, _AgentStream] = {}
        self._opened = 0
        self._unnamed: Counter[str] = Counter()
        self._first_reads = FirstReads(
            settings.unnamed_bytes_max, settings.message_bytes_max, self._note_lost_place
        )
        # The last step sent, and how it is written: most go to many.
        self._step: Step | None = None
        self._raw_step = b""
        options: list[tuple[str, Any]] = [
            # Two managers on one port would each get some of the brokers.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", settings.message_bytes_max),
            ("grpc.max_send_message_length", settings.message_bytes_max),
            NOTHING_COMPRESSED,
            *keepalive_options(settings.keepalive_s),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Handlers(self._attend),))

    def __len__(self) -> int:
        return len(self._streams)

    # ---- its life -------------------------------------------------------------------------------

    def bind(self, address: str, certificates: ServerCertificates | None) -> int | None:
        """Take the address; the port, or None if it cannot be had."""
        self._certificates = certificates
        try:
            if certificates is None:
                return self._server.add_insecure_port(address) or None
            return self._server.add_secure_port(address, certificates.credentials()) or None
        except RuntimeError:
            return None

    def reload_certificates(self) -> None:
        """Show what the files hold now. Raises TlsFileError."""
        if self._certificates is not None:
            self._certificates.reload()

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)

    # ---- what the manager wants -----------------------------------------------------------------

    def send(self, agent: AgentId, step: Step) -> None:
        if step is not self._step:
            self._step, self._raw_step = step, ManagerFrame(step=step).SerializeToString()
        stream = self._streams.get(agent)
        if stream is not None and stream.offer(self._raw_step):
            self.counters.agent_steps_sent += 1
        else:
            self.counters.agent_steps_dropped += 1

    def drop(self, agent: AgentId, reason: str) -> None:
        stream = self._streams.get(agent)
        if stream is not None:
            self.counters.agents_dropped += 1
            stream.end(reason)

    def dismiss(self) -> None:
        """This manager leads no longer: whatever waits for brokers is void."""
        last = self._not_leader()
        for stream in self._streams.values():
            stream.end(None, last)

    def _not_leader(self) -> bytes:
        leader = NotLeader(leader=self._host.leader_address())
        return ManagerFrame(not_leader=leader).SerializeToString()

    # ---- streams --------------------------------------------------------------------------------

    async def _attend(self, _: object, context: Context) -> None:
        try:
            registration = await self._first_frame(context)
        except _RefusedError as refusal:
            self.counters.agents_refused += 1
            refusals_log.warning("refused a broker at %s: %s", context.peer(), refusal)
            await context.abort(refusal.code, str(refusal))
        attended = self._host.attended()
        if attended is None:
            self.counters.agents_sent_on += 1
            await context.write(self._not_leader())
            return
        self._opened += 1
        node = registration.node
        agent = AgentId(node.broker_id, node.incarnation, self._opened)
        stream = _AgentStream(agent, self._settings.agent_queue_frames_max)
        stream.offer(ManagerFrame(attended=attended).SerializeToString())
        self._streams[agent] = stream
        self.counters.agents_accepted += 1
        try:
            self._host.on_registration(agent, registration)
            await self._serve(stream, context)
        except Exception as error:
            # gRPC would say that to the broker, and nobody else.
            self._host.on_failure(error)
            raise
        finally:
            del self._streams[agent]
            self._host.on_gone(agent)
        if stream.reason is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, stream.reason)

    def _note_lost_place(self) -> None:
        self.counters.agents_lost_their_place += 1

    async def _first_frame(self, context: Context) -> Registration:
        unnamed, host = self._unnamed, host_of(context.peer())
        if unnamed.total() >= UNNAMED_MAX or unnamed[host] >= UNNAMED_PER_ADDRESS_MAX:
            raise _RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many strangers at once")
        unnamed[host] += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                frame, believed = await self._meet(context, host)
        except TimeoutError:
            raise _RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, "no registration came") from None
        finally:
            unnamed[host] -= 1
            if not unnamed[host]:
                del unnamed[host]
        if frame is not None and not believed:
            self.counters.agents_not_believed += 1
            raise _RefusedError(grpc.StatusCode.UNAUTHENTICATED, SECRETS_DIFFER)
        if frame is None or not frame.HasField("registration"):
            problem = "the first frame must be a registration"
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, problem)
        self._check(frame.registration)
        return frame.registration

    async def _meet(self, context: Context, host: str) -> tuple[AgentFrame | None, bool]:
        """The first frame, and whether it is a broker's of this network."""
        frame = await self._read_first(context, host)
        if frame is None or not frame.HasField("challenge"):
            return frame, not self._credentials.ask_for_proof
        side = DialledSide(self._credentials, METHOD, self.address, frame.challenge)
        await context.write(ManagerFrame(challenge=side.answer()).SerializeToString())
        frame = await self._read_first(context, host)
        believed = frame is not None and not frame.challenge.disbelieved
        return frame, believed and frame is not None and side.believes(frame.registration)

    async def _read_first(self, context: Context, host: str) -> AgentFrame | None:
        """What a stranger says: no more than who it is."""

        async def read() -> object:
            return await context.read()

        raw = await self._first_reads.read(host, read)
        if isinstance(raw, bytes) and len(raw) > FIRST_FRAME_BYTES_MAX:
            return None
        return _parse(raw)

    def _check(self, registration: Registration) -> None:
        """Raises _RefusedError."""
        if registration.protocol_max < PROTOCOL_MIN or registration.protocol_min > PROTOCOL_MAX:
            raise _RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this manager speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the broker "
                f"{registration.protocol_min} to {registration.protocol_max}",
            )
        if not (registration.node.broker_id and registration.node.address):
            problem = "the registration names no broker, or no address"
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, problem)

    async def _serve(self, stream: _AgentStream, context: Context) -> None:
        """Until either side has enough."""
        reading = asyncio.create_task(self._read_all(stream, context))
        writing = asyncio.create_task(stream.write_all(context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            stream.end(None)
            # A stream that is in the middle of a write cannot be ended: gRPC would refuse.
            await asyncio.wait((writing,), timeout=_LAST_WORDS_S)
        finally:
            for task in (reading, writing):
                task.cancel()
            problems = await asyncio.gather(reading, writing, return_exceptions=True)
        for problem in problems:
            if isinstance(problem, grpc.RpcError | grpc.aio.BaseError | asyncio.InvalidStateError):
                log.debug("stream of %s: %s", stream.agent.broker_id, problem)
            elif isinstance(problem, Exception):
                self._host.on_failure(problem)

    async def _read_all(self, stream: _AgentStream, context: Context) -> None:
        agent, host = stream.agent, self._host
        while True:
            raw = await context.read()
            if not isinstance(raw, bytes):
                return
            frame = _parse(raw)
            self.counters.agent_frames_received += 1
            match frame.WhichOneof("body") if frame is not None else None:
                case "registration":
                    assert frame is not None
                    if not self._is_still(agent, frame.registration):
                        stream.end("the broker has become another on the same stream")
                        return
                    host.on_registration(agent, frame.registration)
                case "report":
                    assert frame is not None
                    host.on_report(agent, frame.report)
                case "reply":
                    assert frame is not None
                    host.on_reply(agent, frame.reply)
                case _:
                    stream.end("a frame that this manager does not understand")
                    return

    def _is_still(self, agent: AgentId, registration: Registration) -> bool:
        try:
            self._check(registration)
        except _RefusedError:
            return False
        node = registration.node
        return (node.broker_id, node.incarnation) == (agent.broker_id, agent.incarnation)


def _parse(raw: object) -> AgentFrame | None:
    if not isinstance(raw, bytes):
        return None
    try:
        return AgentFrame.FromString(raw)
    except DecodeError:
        return None


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, attend: Any) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(attend, _unchanged, _unchanged)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handler if handler_call_details.method == METHOD else None


def _unchanged(raw: bytes) -> bytes:
    return raw
