"""Telling a broker again what was written down of another, and looking what comes of it.

    report = replay(StimulusLog(file))

A replay has no network, no disk and no time of its own: the core is told what the log says, at the
readings of the clock that it has. What the core wants done is compared with what the recorded one
wanted, and thrown away. It goes on after an input that raised, as a broker does for which a frame
was too much.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import BinaryIO

from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.broker import Broker
from broker_agent.core.invariants import check_invariants
from broker_agent.recording.effects_digest import EffectsDigest
from broker_agent.recording.keyed_random import KeyedRandom
from broker_agent.recording.log_format import StimulusLog
from broker_agent.recording.records import (
    LogError,
    access_in,
    advice_in,
    options_in,
    outcome_in,
    past_read_in,
    stored_in,
)
from dynatops.v1.stimulus_pb2 import LogBeginning, Stimulus
from overlay.forwarding.tree.topology import Topology

_US_PER_S = 1_000_000
# Who has seen so many has seen enough.
_STRIKES_MAX = 100


class StrikeKind(Enum):
    RAISED = "raised"
    INVARIANT = "invariant"


class LogEnd(Enum):
    """How a log ends."""

    CLOSED = "closed"
    FULL = "full"
    BREAKS_OFF = "breaks_off"
    # Not read to its end.
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Strike:
    """Where the core did what it must not do."""

    # Of the input, from 1.
    number: int
    # Of input.
    what: str
    # In time that passed since the first input.
    at_s: float
    kind: StrikeKind
    message: str
    traceback: str = ""


@dataclass(slots=True)
class ReplayReport:
    beginning: LogBeginning
    broker_id: str
    address: str
    # By their names in `stimulus.proto`.
    inputs: Counter[str] = field(default_factory=Counter)
    # Time that passed, without what a clock that was set back went through again.
    seconds: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    strikes_left_out: int = 0
    # The inputs that raised when they were recorded, and what they raised.
    raised_before: dict[int, str] = field(default_factory=dict)
    # Those that did so now.
    raised: set[int] = field(default_factory=set)
    # The first input after which the core wanted something else than the recorded one.
    differs_at: int | None = None
    # Of all effects.
    digest: str = ""
    end: LogEnd = LogEnd.BREAKS_OFF

    @property
    def count(self) -> int:
        return self.inputs.total()

    @property
    def mended(self) -> dict[int, str]:
        """What raised when it was recorded, and does not any more."""
        return {n: error for n, error in self.raised_before.items() if n not in self.raised}


def replay(
    log: StimulusLog,
    *,
    until: int | None = None,
    check_every: int = 1,
    check_from: int = 0,
    make_broker: Callable[..., Broker] = Broker,
) -> ReplayReport:
    """Play the log, up to this input. Invariants are checked every so many inputs, from the one
    named on. Raises LogError."""
    recorded = options_in(log.beginning)
    broker = make_broker(
        recorded.identity,
        recorded.routing(),
        recorded.core,
        KeyedRandom(log.beginning.random_key),
        recorded.options(),
    )
    identity = recorded.identity
    report = ReplayReport(log.beginning, identity.broker_id, identity.address)
    _Replay(broker, report, check_every, check_from).play(log, until)
    return report


def search(
    open_file: Callable[[], BinaryIO],
    *,
    until: int | None = None,
    check_every: int = 1,
    make_broker: Callable[..., Broker] = Broker,
) -> ReplayReport:
    """Replay, and where an invariant turns out violated, replay again to see after which input:
    checking takes longer than most inputs do. Raises LogError and OSError."""
    with open_file() as file:
        report = replay(
            StimulusLog(file), until=until, check_every=check_every, make_broker=make_broker
        )
    first = next((s for s in report.strikes if s.kind is StrikeKind.INVARIANT), None)
    if first is None or check_every == 1:
        return report
    with open_file() as file:
        closely = replay(
            StimulusLog(file),
            until=first.number,
            check_from=first.number - check_every + 1,
            make_broker=make_broker,
        )
    earlier = [s for s in closely.strikes if s.kind is StrikeKind.INVARIANT]
    told = {strike.message for strike in earlier}
    report.strikes = sorted(
        (*earlier, *(s for s in report.strikes if s.message not in told)),
        key=lambda strike: strike.number,
    )
    return report


class _Replay:
    def __init__(
        self, broker: Broker, report: ReplayReport, check_every: int, check_from: int
    ) -> None:
        self._broker = broker
        self._report = report
        self._check_every = check_every
        self._check_from = check_from
        self._digest = EffectsDigest()
        # Whether the newest input has added to it.
        self._has_digest = False
        self._number = 0
        self._read_us = 0
        self._passed_us = 0
        # Before that, and after an input that raised, not all holds.
        self._is_settled = False
        # What was violated when that was checked last: it is told once.
        self._violated: list[str] = []

    def play(self, log: StimulusLog, until: int | None) -> None:
        report = self._report
        for stimulus in log:
            kind = stimulus.WhichOneof("input")
            if kind == "raised":
                report.raised_before[self._number] = stimulus.raised.error
                continue
            self._compare(stimulus)
            if kind == "ended":
                report.end = LogEnd.FULL if stimulus.ended.is_full else LogEnd.CLOSED
                break
            if until is not None and self._number >= until:
                report.end = LogEnd.UNREAD
                break
            self._number += 1
            if kind is None:
                raise LogError(
                    f"input {self._number:,} is of a kind that this version does not know"
                )
            self._tell(kind, stimulus)
        self._check("the end")
        report.digest = self._digest.shown

    def _compare(self, stimulus: Stimulus) -> None:
        """What the core wanted done so far, with what the recorded one did."""
        report = self._report
        if report.differs_at is not None or not self._number:
            return
        said = stimulus.digest if stimulus.HasField("digest") else None
        if said != (self._digest.short if self._has_digest else None):
            report.differs_at = self._number

    def _tell(self, kind: str, stimulus: Stimulus) -> None:
        report = self._report
        report.inputs[kind] += 1
        self._read_us += stimulus.after_us
        if self._number > 1:
            self._passed_us += max(stimulus.after_us, 0)
        report.seconds = self._passed_us / _US_PER_S
        self._has_digest = False
        try:
            result = INPUTS[kind](self._broker, stimulus, self._read_us / _US_PER_S)
        except Exception as error:  # noqa: BLE001  # what it is for
            self._is_settled = False
            report.raised.add(self._number)
            self._strike(kind, StrikeKind.RAISED, repr(error), traceback.format_exc())
            return
        self._has_digest = self._digest.add(result)
        if kind != "output_taken":
            # What has no effects of its own may leave something to be settled with the next.
            self._is_settled = isinstance(result, list)
        if self._number >= self._check_from and self._number % self._check_every == 0:
            self._check(kind)

    def _check(self, kind: str) -> None:
        if not self._is_settled or not self._report.inputs["started"]:
            return
        violated = check_invariants(self._broker)
        for violation in violated:
            if violation not in self._violated:
                self._strike(kind, StrikeKind.INVARIANT, violation)
        self._violated = violated

    def _strike(self, what: str, kind: StrikeKind, message: str, trace: str = "") -> None:
        report = self._report
        if len(report.strikes) >= _STRIKES_MAX:
            report.strikes_left_out += 1
            return
        report.strikes.append(Strike(self._number, what, report.seconds, kind, message, trace))


# ---- what each record means ----------------------------------------------------------------------


def _started(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    started = stimulus.started
    return broker.start(list(started.seeds), reading_s, founding=started.founding)


def _topology_given(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    topology = Topology.from_text(stimulus.topology_given.topology)
    return broker.change_topology(topology, reading_s)


def _from_client(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    said = stimulus.from_client
    return broker.on_client_frame(ConnectionId(said.connection), said.frame, reading_s)


def _connection_opened(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    opened = stimulus.connection_opened
    connection = ConnectionId(opened.connection)
    return broker.open_connection(connection, reading_s, opened.host, opened.door)


def _connection_lost(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    return broker.close_connection(ConnectionId(stimulus.connection_lost.connection), reading_s)


def _output_taken(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    taken = stimulus.output_taken
    return broker.take_output(ConnectionId(taken.connection), taken.bytes_max)


def _refused_frame(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    refused = stimulus.refused_frame
    return broker.on_refused_frame(ConnectionId(refused.connection), refused.why, reading_s)


def _written(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    deal = broker.not_saved if stimulus.written.failed else broker.saved
    return deal(reading_s)


def _access_replaced(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    access = access_in(stimulus.access_replaced, broker.settings)
    return broker.replace_access(access, reading_s)


def _logbook_taken(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    last = stimulus.logbook_taken.last
    return broker.end_logbook(reading_s) if last else broker.take_logbook_page(reading_s)


def _unstored_taken(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    taken = stimulus.unstored_taken
    return broker.take_unstored(taken.bytes_max, taken.now_us, reading_s)


def _assignment_remembered(broker: Broker, stimulus: Stimulus, reading_s: float) -> object:
    remembered = stimulus.assignment_remembered
    return broker.assignment_remembered(remembered.epoch, remembered.problem, reading_s)


_Input = Callable[[Broker, Stimulus, float], object]
# By the names of `Stimulus.input`.
INPUTS: Mapping[str, _Input] = MappingProxyType(
    {
        "started": _started,
        "ticked": lambda b, _, reading_s: b.tick(reading_s),
        "peer_frame": lambda b, s, reading_s: b.on_peer_frame(s.peer_frame, reading_s),
        "from_client": _from_client,
        "output_taken": _output_taken,
        "connection_opened": _connection_opened,
        "connection_lost": _connection_lost,
        "refused_frame": _refused_frame,
        "unreachable": lambda b, s, reading_s: b.unreachable(s.unreachable.address, reading_s),
        "leaving": lambda b, _, reading_s: b.leave(reading_s),
        "step": lambda b, s, reading_s: b.on_step(s.step, reading_s),
        "attended": lambda b, _, reading_s: b.begin_reporting(reading_s),
        "report_taken": lambda b, s, t: b.load_report(t, full=s.report_taken.full),
        "restored": lambda b, s, reading_s: b.restore(stored_in(s.restored), reading_s),
        "unsaved_asked": lambda b, s, _: b.unsaved(everything=s.unsaved_asked.everything),
        "written": _written,
        "access_replaced": _access_replaced,
        "advised": lambda b, s, reading_s: b.advise(advice_in(s.advised), reading_s),
        "logbook_taken": _logbook_taken,
        "topology_given": _topology_given,
        "unstored_taken": _unstored_taken,
        "assignment_remembered": _assignment_remembered,
        "past_read": lambda b, s, t: b.past_read(*past_read_in(s.past_read), t),
        "log_answered": lambda b, s, t: b.log_answered(outcome_in(s.log_answered), t),
    }
)
