"""The core in real time: what happens goes in, effects are carried out, in order.

One event loop, nothing is locked. Writes go to the store one after another, in a task of their own;
how each ended is told to the core, which waits for those it must. Steps leave only while the lease
is surely held. A failure of the core is nobody's to mend: it ends the process, so that another
manager leads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dynatops.kit.advice.reader import AdviceReader
from dynatops.kit.background import BackgroundError, Supervisor
from dynatops.kit.observing.metrics import Family, Histogram, families
from dynatops.v1.manager_pb2 import Attended, LoadReport, Registration, StepReply
from reconfig_manager.manager import Effects, Manager
from reconfig_manager.model.notices import event_of
from reconfig_manager.model.refusals import Deposed, StoreAway, StoreError
from reconfig_manager.placement.problem import Solution
from reconfig_manager.ports import (
    AgentId,
    Audit,
    AuditEntry,
    Drop,
    KeepRates,
    ManagerEffect,
    Notify,
    Outranked,
    PlaceTopics,
    Record,
    SendStep,
    Solve,
    Store,
)
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.service.agents import AgentServer
from reconfig_manager.service.demand_advice import AdvisedTopics
from reconfig_manager.service.observing.job_health import JobHealth
from reconfig_manager.service.observing.operation_log import log_command, log_notice
from reconfig_manager.service.observing.plan_metrics import PlanMetrics
from reconfig_manager.service.observing.process_metrics import METRICS
from reconfig_manager.service.process_settings import ManagerProcessSettings
from reconfig_manager.service.rate_advice import AdvisedRates
from reconfig_manager.service.solving import Answer, SolverProcess
from reconfig_manager.status import JobStatus
from reconfig_manager.store.leadership import Leadership
from reconfig_manager.storing.demand import AdvisedDemand
from reconfig_manager.storing.problem import StoringSolution

log = logging.getLogger(__name__)

_READ_TRIES = 3
_RETRY_S = 0.25
_AUDIT_RETRY_MAX_S = 5.0
_LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class _Write:
    record: Record
    # Of the leadership that it belongs to.
    fence: int
    # A caller that waits for it.
    done: asyncio.Future[None] | None


class ManagerDriver:
    """Its parts are put in by the service, before it starts."""

    agents: AgentServer
    leadership: Leadership
    manager: Manager
    # None if there is no Redis to read advice from.
    rates: AdviceReader[AdvisedRates] | None = None
    demand: AdviceReader[AdvisedTopics] | None = None
    job_health: JobHealth | None = None

    def __init__(
        self,
        settings: ManagerProcessSettings,
        store: Store,
        broadcast: Broadcast,
        supervisor: Supervisor,
    ) -> None:
        self._settings = settings
        self.store: Store = store
        self._broadcast = broadcast
        self.solver: SolverProcess = SolverProcess(settings.service, self._on_solved)
        loop = asyncio.get_running_loop()
        self._wall_s = time.time() - loop.time()
        self.supervisor = supervisor
        # Of the leadership that the core is under.
        self._fence: int | None = None
        self._taking_over: asyncio.Task[object] | None = None
        self._keeping_rates: asyncio.Task[object] | None = None
        self._writes: deque[_Write] = deque()
        self._writes_stirred = asyncio.Event()
        self._entries: deque[AuditEntry] = deque()
        self._entries_stirred = asyncio.Event()
        self._appending = asyncio.Lock()
        # It may have arrived although no answer came, under this key.
        self._tried: AuditEntry | None = None
        self._tried_key = ""
        self._ticked_s = 0.0
        self.plan_metrics: PlanMetrics = PlanMetrics()
        self.lag_s: Histogram = Histogram(_LAG_BOUNDS_S)
        self.audit_lost: int = 0
        self.writes_failed: int = 0

    def now_s(self) -> float:
        """Since 1970, and never back."""
        return self._wall_s + asyncio.get_running_loop().time()

    # ---- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        self._ticked_s = self.now_s()
        self.solver.start(self.supervisor)
        self.supervisor.start("ticks", self._tick_forever())
        self.supervisor.start("writing to the store", self._write_forever())
        self.supervisor.start("writing the audit log", self._audit_forever())

    @property
    def late_s(self) -> float:
        """For how long it has not looked at the time."""
        if not self._ticked_s:
            return 0.0
        return max(self.now_s() - self._ticked_s - self._settings.service.tick_s, 0.0)

    async def stop(self) -> None:
        """What waits for the store has been written, or will not be."""
        await self._flush_audit()
        await self.solver.stop()

    def advise(self, rates: dict[str, float], computed_s: float, fresh_for_s: float) -> None:
        """Publication rates computed elsewhere, perhaps by a clock that is ahead."""
        now_s = self.now_s()
        self._perform(self.manager.advise(rates, min(computed_s, now_s), now_s + fresh_for_s))

    def advise_demand(
        self, demand: dict[str, AdvisedDemand], computed_s: float, fresh_for_s: float
    ) -> None:
        """Requests for the past, likewise."""
        now_s = self.now_s()
        self.manager.advise_demand(demand, min(computed_s, now_s), now_s + fresh_for_s)

    async def _tick_forever(self) -> None:
        while True:
            due_s = self.now_s() + self._settings.service.tick_s
            await asyncio.sleep(self._settings.service.tick_s)
            self.lag_s.observe(max(self.now_s() - due_s, 0.0))
            self._perform(self.manager.tick(self.now_s()))
            self._ticked_s = self.now_s()

    # ---- leadership -----------------------------------------------------------------------------

    def on_lead(self, fence: int) -> None:
        work = self._take_over(fence)
        self._taking_over = self.supervisor.start("taking over", work, may_end=True)

    async def _take_over(self, fence: int) -> None:
        for _ in range(_READ_TRIES):
            try:
                state = await self.store.read_state()
                break
            except StoreAway as error:
                log.warning("the state cannot be read: %s", error)
                await asyncio.sleep(_RETRY_S)
        else:
            self.leadership.step_down()
            return
        if self.leadership.fence == fence:
            self._fence = fence
            self._perform(self.manager.lead(fence, state, self.now_s()))

    def on_depose(self, reason: str) -> None:
        if self._taking_over is not None:
            self._taking_over.cancel()
        self._fence = None
        self._perform(self.manager.depose(self.now_s()))
        self.agents.dismiss()
        self.solver.drop_problems()
        self._broadcast.end(f"this manager leads no longer: {reason}")
        # Their fence is over: they end as soon as it is their turn.
        self._writes_stirred.set()

    @property
    def leader_url(self) -> str:
        leader = self.leadership.leader
        return leader.http if leader is not None else ""

    # ---- brokers (AgentsHost) -------------------------------------------------------------------

    def attended(self) -> Attended | None:
        if self._fence is None or self.leadership.fence != self._fence:
            return None
        period_s = self._settings.manager.monitor.report_period_s
        return Attended(report_period_s=period_s, fence=self._fence)

    def leader_address(self) -> str:
        leader = self.leadership.leader
        return leader.agents if leader is not None and self._fence is None else ""

    def on_registration(self, agent: AgentId, registration: Registration) -> None:
        self._perform(self.manager.register(agent, registration, self.now_s()))

    def on_report(self, agent: AgentId, report: LoadReport) -> None:
        self._perform(self.manager.report(agent, report, self.now_s()))

    def on_reply(self, agent: AgentId, reply: StepReply) -> None:
        self.plan_metrics.count_pause(reply)
        self._perform(self.manager.reply(agent, reply, self.now_s()))

    def on_gone(self, agent: AgentId) -> None:
        self._perform(self.manager.gone(agent, self.now_s()))

    def on_failure(self, error: Exception) -> None:
        self.supervisor.fail(BackgroundError("serving brokers", error))

    # ---- effects --------------------------------------------------------------------------------

    async def carry_out(self, effects: Sequence[ManagerEffect]) -> None:
        """Returns once every Record among them is in the store; raises StoreAway or Deposed."""
        waiting: list[asyncio.Future[None]] = []
        self._perform(effects, waiting)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _perform(
        self,
        effects: Sequence[ManagerEffect],
        waiting: list[asyncio.Future[None]] | None = None,
    ) -> None:
        for effect in effects:
            match effect:
                case SendStep(agent=agent, step=step):
                    if self.leadership.fence == self._fence:
                        self.agents.send(agent, step)
                case Record():
                    self._write(effect, waiting)
                case Solve() | PlaceTopics():
                    self.solver.submit(effect)
                case KeepRates():
                    self._keep_rates(effect)
                case Drop(agent=agent, reason=reason):
                    self.agents.drop(agent, reason)
                case Notify(notice=notice):
                    log_notice(self.manager.me, notice)
                    self.plan_metrics.count_notice(notice)
                    self._broadcast.publish(event_of(notice))
                case Audit(entry=entry):
                    log_command(self.manager.me, entry)
                    self._audit(entry)
                case Outranked(fence=fence, past_lost=past_lost):
                    lost = " (the store has lost its past)" if past_lost else ""
                    log.warning("a broker obeys fence %d already%s: leading again", fence, lost)
                    self.leadership.outranked(fence)

    def _on_solved(self, plan_id: str, answer: Answer) -> None:
        manager, now_s = self.manager, self.now_s()
        if isinstance(answer, Solution):
            self._perform(manager.solved(plan_id, answer, now_s))
        elif isinstance(answer, StoringSolution):
            self._perform(manager.topics_placed(plan_id, answer, now_s))
        else:
            # Whichever it was about: the other knows no such problem.
            self._perform(manager.solved(plan_id, answer, now_s))
            self._perform(manager.topics_placed(plan_id, answer, now_s))

    # ---- writes ---------------------------------------------------------------------------------

    def _write(self, record: Record, waiting: list[asyncio.Future[None]] | None) -> None:
        done: asyncio.Future[None] | None = None
        if waiting is not None:
            done = asyncio.get_running_loop().create_future()
            waiting.append(done)
        write = _Write(record, self._fence or 0, done)
        if len(self._writes) >= self._settings.service.records_max:
            self._ended(write, StoreAway("too many writes wait for the store"))
            return
        self._writes.append(write)
        self._writes_stirred.set()

    async def _write_forever(self) -> None:
        while True:
            await self._writes_stirred.wait()
            if not self._writes:
                self._writes_stirred.clear()
                continue
            write = self._writes.popleft()
            try:
                if write.fence != self._fence:
                    raise Deposed(write.fence, self._fence or 0)
                await self.store.write(write.fence, write.record)
            except StoreError as error:
                self._ended(write, error)
            else:
                self._ended(write, None)

    def _ended(self, write: _Write, problem: StoreError | None) -> None:
        """Tell the core, if it still is the one that asked; then the caller that waits."""
        effects: Effects = []
        if write.fence == self._fence:
            if problem is None:
                effects = self.manager.recorded(write.record.token, self.now_s())
            elif isinstance(problem, Deposed):
                self.on_depose(str(problem))
                self.leadership.lost()
            else:
                self.writes_failed += 1
                effects = self.manager.not_recorded(write.record.token, self.now_s())
        if write.done is not None and not write.done.done():
            if problem is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(problem)
        self._perform(effects)

    def _keep_rates(self, effect: KeepRates) -> None:
        if self._keeping_rates is None or self._keeping_rates.done():
            work = self._keep(effect, self._fence or 0)
            self._keeping_rates = self.supervisor.start("keeping rates", work, may_end=True)

    async def _keep(self, effect: KeepRates, fence: int) -> None:
        try:
            await self.store.keep_rates(fence, effect.rates, effect.at_s)
        except StoreError as error:
            log.info("rates were not kept: %s", error)

    def _audit(self, entry: AuditEntry) -> None:
        if len(self._entries) >= self._settings.service.audit_waiting_max:
            self._entries.popleft()
            self.audit_lost += 1
        self._entries.append(entry)
        self._entries_stirred.set()

    async def _audit_forever(self) -> None:
        while True:
            await self._entries_stirred.wait()
            self._entries_stirred.clear()
            pause_s = _RETRY_S
            while self._entries:
                if not await self._append_one():
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _AUDIT_RETRY_MAX_S)

    async def _append_one(self) -> bool:
        """One at a time, also when the last ones are written at the end: each is written once."""
        async with self._appending:
            if not self._entries:
                return True
            entry = self._entries[0]
            again = entry is self._tried
            if not again:
                self._tried, self._tried_key = entry, secrets.token_hex(8)
            try:
                await self.store.append_audit(entry, self._tried_key, again=again)
            except StoreAway:
                return False
            # While that took, the oldest may have been lost.
            if self._entries and self._entries[0] is entry:
                self._entries.popleft()
            return True

    async def _flush_audit(self) -> None:
        while self._entries and await self._append_one():
            pass

    # ---- to look at (facade.Driver) -------------------------------------------------------------

    def problems(self) -> dict[str, str]:
        problem = self.leadership.problem
        return {"store": problem} if problem else {}

    def jobs(self) -> tuple[JobStatus, ...] | None:
        return self.job_health.jobs if self.job_health is not None else None

    def metrics(self) -> list[Family]:
        """Those of the process."""
        return families(METRICS, self)
