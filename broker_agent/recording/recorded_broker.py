"""A broker that writes down whatever it is told, so that all of it can be told again.

    core = RecordedBroker(recorded, access, random_key, log)

It takes the place of `Broker`: every input is written to its log before it is dealt with, so that
the one that makes it fail is there, too. What is asked of a core and changes nothing that matters
(`is_named`, its status, samples for histograms) is not. `replaying` has the other half: what each
record means.

While a broker is recorded its clock reads whole microseconds, and it draws random numbers that can
be drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.effects import BrokerEffect, ConnectionId
from broker_agent.core.broker import Broker
from broker_agent.core.keeping.journal import Changes, Stored
from broker_agent.core.reports.logbook import LogbookPage
from broker_agent.core.rights.access import Access
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.sessions.content import Content
from broker_agent.core.stores.log.log_requests import AppendToLog, LogOutcome
from broker_agent.core.stores.store_reader import ServedKey, StorePortion
from broker_agent.recording.effects_digest import EffectsDigest
from broker_agent.recording.keyed_random import KeyedRandom
from broker_agent.recording.records import (
    RecordedOptions,
    access_record,
    advice_record,
    beginning_of,
    blotted_frame,
    outcome_record,
    past_read_record,
    stored_record,
)
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.manager_pb2 import LoadReport, Step
from dynatops.v1.overlay_pb2 import PeerFrame
from dynatops.v1.stimulus_pb2 import Stimulus
from overlay.forwarding.tree.topology import Topology

_US_PER_S = 1_000_000

_Result = TypeVar("_Result")


class LogWriter(Protocol):
    """Where a log goes to. It raises nothing: a broker does not end for its log."""

    def append(self, record: Message) -> None: ...

    def flush(self) -> None:
        """What was appended is to outlive the process."""


class RecordedBroker(Broker):
    def __init__(
        self,
        recorded: RecordedOptions,
        access: Access,
        random_key: bytes,
        log: LogWriter,
        began_ms: int = 0,
        counters: BrokerCounters | None = None,
    ) -> None:
        """`access`: the rules as they are; those in `recorded` are for its log."""
        options = recorded.options(access)
        if counters is not None:
            options = replace(options, counters=counters)
        rng = KeyedRandom(random_key)
        super().__init__(recorded.identity, recorded.routing(), recorded.core, rng, options)
        self._log = log
        self._digest = EffectsDigest()
        self._has_digest = False
        self._read_us = 0
        log.append(beginning_of(recorded, random_key, began_ms))

    @property
    def effects_digest(self) -> str:
        """Of all that it wanted done so far."""
        return self._digest.shown

    def _take_in(
        self, stimulus: Stimulus, reading_s: float | None, deal: Callable[[float], _Result]
    ) -> _Result:
        """Write it down, and deal with it. None: what is told has nothing to do with time."""
        if reading_s is not None:
            read_us = round(reading_s * _US_PER_S)
            stimulus.after_us = read_us - self._read_us
            self._read_us = read_us
        if self._has_digest:
            stimulus.digest = self._digest.short
        self._log.append(stimulus)
        self._has_digest = False
        try:
            result = deal(self._read_us / _US_PER_S)
        except Exception as error:
            self._log.append(Stimulus(raised=Stimulus.InputRaised(error=repr(error))))
            self._log.flush()
            raise
        self._has_digest = self._digest.add(result)
        return result

    # ---- inputs ---------------------------------------------------------------------------------

    def start(
        self, seeds: Sequence[str], reading_s: float, *, founding: bool = False
    ) -> list[BrokerEffect]:
        record = Stimulus(started=Stimulus.Started(seeds=seeds, founding=founding))
        deal = super().start
        return self._take_in(record, reading_s, lambda s: deal(seeds, s, founding=founding))

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        return self._take_in(Stimulus(ticked=Stimulus.Ticked()), reading_s, super().tick)

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        deal = super().on_peer_frame
        return self._take_in(Stimulus(peer_frame=frame), reading_s, lambda s: deal(frame, s))

    def unreachable(self, address: str, reading_s: float) -> list[BrokerEffect]:
        record = Stimulus(unreachable=Stimulus.AddressUnreachable(address=address))
        deal = super().unreachable
        return self._take_in(record, reading_s, lambda s: deal(address, s))

    def change_topology(self, topology: Topology, reading_s: float) -> list[BrokerEffect]:
        record = Stimulus(topology_given=Stimulus.TopologyGiven(topology=topology.to_text()))
        deal = super().change_topology
        return self._take_in(record, reading_s, lambda s: deal(topology, s))

    def leave(self, reading_s: float) -> list[BrokerEffect]:
        return self._take_in(Stimulus(leaving=Stimulus.Leaving()), reading_s, super().leave)

    # ---- the reconfiguration manager ------------------------------------------------------------

    def on_step(self, step: Step, reading_s: float) -> list[BrokerEffect]:
        deal = super().on_step
        return self._take_in(Stimulus(step=step), reading_s, lambda s: deal(step, s))

    def assignment_remembered(
        self, epoch: int, problem: str, reading_s: float
    ) -> list[BrokerEffect]:
        remembered = Stimulus.AssignmentRemembered(epoch=epoch, problem=problem)
        deal = super().assignment_remembered
        record = Stimulus(assignment_remembered=remembered)
        return self._take_in(record, reading_s, lambda s: deal(epoch, problem, s))

    def begin_reporting(self, reading_s: float) -> None:
        self._take_in(Stimulus(attended=Stimulus.Attended()), reading_s, super().begin_reporting)

    def load_report(self, reading_s: float, *, full: bool) -> LoadReport:
        record = Stimulus(report_taken=Stimulus.ReportTaken(full=full))
        deal = super().load_report
        return self._take_in(record, reading_s, lambda s: deal(s, full=full))

    # ---- sessions on disk -----------------------------------------------------------------------

    def restore(self, stored: Stored, reading_s: float) -> None:
        record = Stimulus(restored=stored_record(stored))
        deal = super().restore
        self._take_in(record, reading_s, lambda s: deal(stored, s))

    def unsaved(self, *, everything: bool = False) -> Changes | None:
        record = Stimulus(unsaved_asked=Stimulus.UnsavedAsked(everything=everything))
        deal = super().unsaved
        return self._take_in(record, None, lambda _: deal(everything=everything))

    def saved(self, reading_s: float) -> list[BrokerEffect]:
        return self._take_in(Stimulus(written=Stimulus.Written()), reading_s, super().saved)

    def not_saved(self, reading_s: float) -> list[BrokerEffect]:
        record = Stimulus(written=Stimulus.Written(failed=True))
        return self._take_in(record, reading_s, super().not_saved)

    # ---- the log of the store here --------------------------------------------------------------

    def take_unstored(self, bytes_max: int, now_us: int, reading_s: float) -> AppendToLog | None:
        taken = Stimulus.UnstoredTaken(bytes_max=bytes_max, now_us=now_us)
        deal = super().take_unstored
        record = Stimulus(unstored_taken=taken)
        return self._take_in(record, reading_s, lambda s: deal(bytes_max, now_us, s))

    def log_answered(self, outcome: LogOutcome, reading_s: float) -> list[BrokerEffect]:
        deal = super().log_answered
        record = Stimulus(log_answered=outcome_record(outcome))
        return self._take_in(record, reading_s, lambda s: deal(outcome, s))

    def past_read(
        self, key: ServedKey, portion: StorePortion, reading_s: float
    ) -> list[BrokerEffect]:
        deal = super().past_read
        record = Stimulus(past_read=past_read_record(key, portion))
        return self._take_in(record, reading_s, lambda s: deal(key, portion, s))

    # ---- connections and sessions ---------------------------------------------------------------

    def open_connection(
        self, connection: ConnectionId, reading_s: float, host: str = "", door: str = ""
    ) -> list[BrokerEffect]:
        opened = Stimulus.ConnectionOpened(connection=connection, host=host, door=door)
        deal = super().open_connection
        record = Stimulus(connection_opened=opened)
        return self._take_in(record, reading_s, lambda s: deal(connection, s, host, door))

    def close_connection(self, connection: ConnectionId, reading_s: float) -> list[BrokerEffect]:
        record = Stimulus(connection_lost=Stimulus.ConnectionLost(connection=connection))
        deal = super().close_connection
        return self._take_in(record, reading_s, lambda s: deal(connection, s))

    def replace_access(self, access: Access, reading_s: float) -> list[BrokerEffect]:
        record = Stimulus(access_replaced=access_record(access))
        deal = super().replace_access
        return self._take_in(record, reading_s, lambda s: deal(access, s))

    def advise(self, advice: SelectionAdvice | None, reading_s: float) -> None:
        record = Stimulus(advised=advice_record(advice))
        deal = super().advise
        self._take_in(record, reading_s, lambda s: deal(advice, s))

    def take_output(self, connection: ConnectionId, bytes_max: int) -> list[Content]:
        taken = Stimulus.OutputTaken(connection=connection, bytes_max=bytes_max)
        deal = super().take_output
        record = Stimulus(output_taken=taken)
        return self._take_in(record, None, lambda _: deal(connection, bytes_max))

    def on_refused_frame(
        self, connection: ConnectionId, why: str, reading_s: float
    ) -> list[BrokerEffect]:
        refused = Stimulus.RefusedFrame(connection=connection, why=why)
        deal = super().on_refused_frame
        record = Stimulus(refused_frame=refused)
        return self._take_in(record, reading_s, lambda s: deal(connection, why, s))

    def on_client_frame(
        self, connection: ConnectionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        said = Stimulus.FromClient(connection=connection, frame=blotted_frame(frame))
        deal = super().on_client_frame
        record = Stimulus(from_client=said)
        return self._take_in(record, reading_s, lambda s: deal(connection, frame, s))

    # ---- the lake -------------------------------------------------------------------------------

    def take_logbook_page(self, reading_s: float) -> LogbookPage:
        record = Stimulus(logbook_taken=Stimulus.LogbookTaken())
        return self._take_in(record, reading_s, super().take_logbook_page)

    def end_logbook(self, reading_s: float) -> LogbookPage:
        record = Stimulus(logbook_taken=Stimulus.LogbookTaken(last=True))
        return self._take_in(record, reading_s, super().end_logbook)
