"""The broker's stream to the manager that leads: registration, reports, steps, replies.

    asking --Attended--> attending --broken--> asking (the next address, after a pause)
       `--NotLeader--> asking (where that one says, at once)

Nothing here holds the broker up: without a manager it goes on as it is. One stream at a time, at
whichever manager leads. What cannot be sent is dropped: managers repeat steps, and the first report
of a stream says everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, Protocol

from broker_agent.process_settings import ManagerLinkSettings
from broker_agent.runtime.streams import OutboundStream, StreamBrokenError
from dynatops.kit.background import until_one_ends
from dynatops.kit.counters import counter
from dynatops.kit.observing.log_operations import MANAGER_ATTENDED, MANAGER_LOST
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.kit.security.peer_proofs import DiallingSide, NotBelievedError
from dynatops.kit.security.tls import explain
from dynatops.v1.manager_pb2 import (
    AgentFrame,
    Attended,
    LoadReport,
    ManagerFrame,
    Registration,
    Step,
    StepReply,
)
from dynatops.v1.proof_pb2 import PeerChallenge

METHOD = "/dynatops.v1.Management/Attend"
HELLO_TIMEOUT_S = 5.0
# Frames waiting for the manager; past it, replies are dropped.
FRAMES_MAX = 256
# Managers that send a broker to each other are asked with pauses after this.
_SENT_ON_MAX = 3
_PERIOD_MIN_S, _PERIOD_MAX_S = 0.05, 3_600.0

log = logging.getLogger(__name__)

Stream = OutboundStream[ManagerFrame]


@dataclass(slots=True)
class UplinkCounters:
    manager_streams: int = counter("Streams to a manager that leads.")
    manager_failures: int = counter("Times that a manager could not be reached, or was lost.")
    manager_reports: int = counter("Reports sent to a manager.")
    manager_steps: int = counter("Steps of reconfigurations received.")
    manager_replies_dropped: int = counter("Replies not sent: no stream, or too many waited.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class UplinkHost(Protocol):
    """What it needs from the broker."""

    @property
    def registration_version(self) -> int: ...

    def registration(self) -> Registration: ...

    def attend(self) -> None:
        """A manager leads: reports will be wanted."""

    def load_report(self, *, full: bool) -> LoadReport: ...

    def on_step(self, step: Step) -> None: ...


class _LostError(Exception):
    """No stream with this manager, or no longer; why."""


class Uplink:
    def __init__(
        self,
        settings: ManagerLinkSettings,
        credentials: LinkCredentials,
        host: UplinkHost,
        options: list[tuple[str, Any]],
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._host = host
        self._options = options
        self.counters = UplinkCounters()
        # Of the manager that leads; empty while none is known.
        self.manager = ""
        # Why there is none.
        self.problem = ""
        self._turn = 0
        self._hint = ""
        self._sent_on = 0
        self._backoff_s = settings.backoff_min_s
        self._frames: deque[bytes] = deque()
        self._stirred = asyncio.Event()
        self._told_version = -1

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            address = self._next_address()
            try:
                await self._attend(address)
            except (StreamBrokenError, TimeoutError, _LostError) as error:
                self._note(f"{address}: {explain(str(error)) or 'no answer'}")
            finally:
                self.manager = ""
            if not self._hint:
                await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.5))
                self._backoff_s = min(2 * self._backoff_s, self._settings.backoff_max_s)

    def _next_address(self) -> str:
        if self._hint:
            hint, self._hint = self._hint, ""
            return hint
        addresses = self._settings.addresses
        self._turn += 1
        return addresses[(self._turn - 1) % len(addresses)]

    def _note(self, problem: str) -> None:
        self.counters.manager_failures += 1
        if not self.problem:
            MANAGER_LOST.log(log, f"no manager: {problem}; going on without", reason=problem)
        self.problem = problem

    # ---- one stream -----------------------------------------------------------------------------

    async def _attend(self, address: str) -> None:
        stream = OutboundStream(address, self._options, self._credentials.tls, METHOD, ManagerFrame)
        try:
            attended = await self._register(stream, address)
            self.manager = address
            self._sent_on, self._backoff_s = 0, self._settings.backoff_min_s
            self.counters.manager_streams += 1
            MANAGER_ATTENDED.log(log, f"attending to the manager at {address}", address=address)
            self.problem = ""
            self._host.attend()
            await self._exchange(stream, attended.report_period_s)
        finally:
            stream.close()

    async def _register(self, stream: Stream, address: str) -> Attended:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            side = await self._challenge(stream, address)
            await stream.write(self._registration(side))
            answer = await stream.read()
        if answer.HasField("not_leader"):
            self._follow(answer, address)
        if not answer.HasField("attended") or not math.isfinite(answer.attended.report_period_s):
            raise _LostError("it answered something else")
        return answer.attended

    async def _challenge(self, stream: Stream, address: str) -> DiallingSide | None:
        """The manager shows first that it is of this network: a broker obeys nobody else."""
        if not self._credentials.ask_for_proof:
            return None
        by_any_name = address in self._settings.addresses
        side = DiallingSide(self._credentials, METHOD, address, by_any_name=by_any_name)
        await stream.write(AgentFrame(challenge=side.challenge()).SerializeToString())
        try:
            side.check((await stream.read()).challenge)
        except NotBelievedError as error:
            last = AgentFrame(challenge=PeerChallenge(disbelieved=True))
            await stream.write(last.SerializeToString())
            with contextlib.suppress(StreamBrokenError):
                # It is heard before the stream goes.
                await stream.read()
            raise _LostError(f"it answered, but {error}") from None
        return side

    def _registration(self, side: DiallingSide | None = None) -> bytes:
        self._told_version = self._host.registration_version
        registration = self._host.registration()
        if side is not None:
            side.sign(registration)
        return AgentFrame(registration=registration).SerializeToString()

    def _follow(self, frame: ManagerFrame, address: str) -> None:
        leader = frame.not_leader.leader
        self._sent_on += 1
        if leader and leader != address and self._sent_on <= _SENT_ON_MAX:
            self._hint = leader
            raise _LostError(f"{leader} leads")
        self._sent_on = 0
        raise _LostError("it does not lead, nor knows who does")

    async def _exchange(self, stream: Stream, period_s: float) -> None:
        """Until the stream breaks."""
        self._frames.clear()
        await until_one_ends(
            self._read_all(stream),
            self._write_all(stream),
            self._report_all(min(max(period_s, _PERIOD_MIN_S), _PERIOD_MAX_S)),
        )

    async def _read_all(self, stream: Stream) -> None:
        while True:
            frame = await stream.read()
            if frame.HasField("step"):
                self.counters.manager_steps += 1
                self._host.on_step(frame.step)
            elif frame.HasField("not_leader"):
                self._follow(frame, self.manager)

    async def _write_all(self, stream: Stream) -> None:
        while True:
            while self._frames:
                # It stays until it is written: reports wait for those before them.
                await stream.write(self._frames[0])
                self._frames.popleft()
            self._stirred.clear()
            await self._stirred.wait()

    async def _report_all(self, period_s: float) -> None:
        full = True
        # Brokers that were started together need not report together.
        pause_s = period_s * random.uniform(0.5, 1.0)
        while True:
            if not self._frames:
                report = self._host.load_report(full=full)
                self._offer(AgentFrame(report=report).SerializeToString())
                self.counters.manager_reports += 1
                full = False
            await asyncio.sleep(pause_s)
            pause_s = period_s

    def _offer(self, frame: bytes) -> bool:
        if not self.manager or len(self._frames) >= FRAMES_MAX:
            return False
        self._frames.append(frame)
        self._stirred.set()
        return True

    # ---- what the broker says -------------------------------------------------------------------

    def reply(self, reply: StepReply) -> None:
        if not self._offer(AgentFrame(reply=reply).SerializeToString()):
            self.counters.manager_replies_dropped += 1

    def update_registration(self) -> None:
        """Several times a second: tell the manager of what has changed about the broker."""
        if self.manager and self._host.registration_version != self._told_version:
            self._offer(self._registration())
