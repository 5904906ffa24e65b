"""The HTTP side's view of a manager (`rest.facade.Facade`), over its core and its store.

Reads of the live model and commands are the leader's: asked of another, they raise NotLeading, but
the HTTP side has redirected them before. A command is answered once the store has what follows
from it at once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pydantic import ValidationError

from dynatops.kit.observing.metrics import Family
from reconfig_manager.manager import Effects, Manager, proposed
from reconfig_manager.model.network import Model
from reconfig_manager.model.plan import Placement, Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import (
    Busy,
    NotLeading,
    RefusalError,
    StoreAway,
    UnknownPlan,
)
from reconfig_manager.ports import (
    Audit,
    AuditEntry,
    ManagerEffect,
    Page,
    ProposalRequest,
    Record,
    Store,
    StoreProposalRequest,
)
from reconfig_manager.rest.bodies import ProposalBody, StoreProposalBody
from reconfig_manager.rest.broadcast import Broadcast, Watcher
from reconfig_manager.rest.facade import (
    Answer,
    Caller,
    Command,
    ConflictingOptionsError,
    Facade,
    KeyReusedError,
    LeadershipView,
    PageRequest,
    UnknownCursorError,
)
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.service.observing.metrics import ManagerReadings, families_of
from reconfig_manager.service.observing.operation_log import log_command
from reconfig_manager.status import JobStatus, LeaderStatus, ManagerStatus, TopicsStatus

_KEY_HASH_DIGITS = 16
# Topics, and what takes long to compute, are not put together more often.
FRESH_S = 2.0


class CoreDriver(Protocol):
    """What drives the core: the service, or a test."""

    @property
    def manager(self) -> Manager: ...

    @property
    def leader_url(self) -> str:
        """Of the HTTP side of another manager that leads; empty if none is known."""
        ...

    @property
    def late_s(self) -> float:
        """For how long the core has not looked at the time although it should."""
        ...

    def now_s(self) -> float: ...

    async def carry_out(self, effects: Sequence[ManagerEffect]) -> None:
        """Returns once every Record among them is in the store; raises StoreAway or Deposed."""
        ...

    def problems(self) -> dict[str, str]:
        """What keeps this manager from its work, by part."""
        ...

    def jobs(self) -> tuple[JobStatus, ...] | None:
        """Jobs of analytics; None if there is nowhere to look."""
        ...

    def metrics(self) -> list[Family]:
        """Of its own."""
        ...


@dataclass(frozen=True, slots=True)
class _Computed:
    at_s: float
    fence: int
    policy_version: int
    answer: Any

    def holds(self, leader: LeaderStatus) -> bool:
        same = (leader.fence, leader.policy.version) == (self.fence, self.policy_version)
        return same and 0 <= leader.at_s - self.at_s < FRESH_S


class ManagerFacade:
    def __init__(
        self, driver: CoreDriver, store: Store, broadcast: Broadcast, settings: RestSettings
    ) -> None:
        self._driver = driver
        self._store = store
        self._broadcast = broadcast
        self._settings = settings
        self._topics: TopicsStatus | None = None
        # By what prepares them, of which the resources have one or two.
        self._computed: dict[Callable[[Facade], Callable[[], Any]], _Computed] = {}
        # One that computes at a time: they are for people.
        self._computing = asyncio.Lock()
        # Of keys with proposals that are under way.
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _manager(self) -> Manager:
        return self._driver.manager

    # ---- the live model --------------------------------------------------------------------------

    def leader(self) -> LeaderStatus:
        leader = self.status().leader
        if leader is None:
            raise NotLeading
        return leader

    def topics(self, leader: LeaderStatus) -> TopicsStatus:
        """Not older than FRESH_S."""
        topics = self._topics
        same = topics is not None and topics.fence == leader.fence
        if topics is None or not (same and 0 <= leader.at_s - topics.at_s < FRESH_S):
            topics = self._topics = self._manager.topics_status(leader.at_s)
        return topics

    def subscribers(self, topic: str) -> frozenset[str]:
        return self._manager.subscribers(topic)

    def model(self) -> Model:
        return self._manager.model(self._driver.now_s())

    async def computed(self, work: Callable[[], Answer]) -> Answer:
        async with self._computing:
            return await asyncio.to_thread(work)

    async def computed_lately(self, prepare: Callable[[Facade], Callable[[], Answer]]) -> Answer:
        """Not older than FRESH_S."""
        async with self._computing:
            leader, known = self.leader(), self._computed.get(prepare)
            if known is None or not known.holds(leader):
                answer = await asyncio.to_thread(prepare(self))
                known = _Computed(leader.at_s, leader.fence, leader.policy.version, answer)
                self._computed[prepare] = known
            kept: Answer = known.answer
            return kept

    def watch(self, last_id: str, caller: str) -> Watcher:
        return self._broadcast.watch(last_id, caller)

    # ---- what is stored --------------------------------------------------------------------------

    async def stored_placement(self) -> Placement:
        return await self._store.placement()

    async def plans(self, page: PageRequest) -> Page[Plan]:
        try:
            return await self._store.plans(page.cursor, page.limit)
        except ValueError:
            raise UnknownCursorError from None

    async def plan(self, plan_id: str) -> Plan:
        """What the store knows is what another leader would go by."""
        try:
            plan = await self._store.plan(plan_id)
        except StoreAway:
            if not self._manager.leads:
                raise
            return self._manager.plan(plan_id)
        if plan is None:
            raise UnknownPlan(plan_id)
        return plan

    async def policy(self) -> VersionedPolicy:
        if self._manager.leads:
            return self.leader().policy
        return await self._store.policy()

    async def audit(self, page: PageRequest) -> Page[AuditEntry]:
        try:
            return await self._store.audit(page.cursor, page.limit)
        except ValueError:
            raise UnknownCursorError from None

    # ---- commands --------------------------------------------------------------------------------

    async def propose(self, caller: Caller, body: ProposalBody, key: str) -> Plan:
        return await self._once(caller, body, key, lambda: self._propose(caller, body))

    async def propose_stores(self, caller: Caller, body: StoreProposalBody, key: str) -> Plan:
        return await self._once(caller, body, key, lambda: self._propose_stores(caller, body))

    async def _once(
        self,
        caller: Caller,
        body: ProposalBody | StoreProposalBody,
        key: str,
        propose: Callable[[], Awaitable[Plan]],
    ) -> Plan:
        if not key:
            return await propose()
        key = f"{caller.name} {key}"
        said = f"{type(body).__name__} {body.model_dump_json()}"
        request = hashlib.sha256(said.encode()).hexdigest()[:_KEY_HASH_DIGITS]
        lock = self._keys.setdefault(key, asyncio.Lock())
        async with lock:
            if (known := await self._store.plan_for_key(key)) is not None:
                return await self._as_before(caller, body, known, request)
            plan = await propose()
            ttl_s = self._settings.idempotency_ttl_s
            await self._store.remember_key(key, f"{plan.id} {request}", ttl_s)
            return plan

    async def _as_before(
        self,
        caller: Caller,
        body: ProposalBody | StoreProposalBody,
        known: str,
        request: str,
    ) -> Plan:
        plan_id, _, before = known.partition(" ")
        if before == request:
            return await self.plan(plan_id)
        error = KeyReusedError(plan_id)
        await self._refuse(caller, Command("propose", "", body.reason), error)
        raise error

    async def _propose(self, caller: Caller, body: ProposalBody) -> Plan:
        leader, command = self.leader(), Command("propose", "", body.reason)
        try:
            options = body.options(leader.rules.solver)
            _check_free(leader, execute=body.execute)
        except ValidationError as error:
            message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            conflict = ConflictingOptionsError(f"with the rest as the policy has it: {message}")
            await self._refuse(caller, command, conflict)
            raise conflict from None
        except Busy as busy:
            await self._refuse(caller, command, busy)
            raise
        request = ProposalRequest(
            actor=caller.name, reason=body.reason, execute=body.execute, options=options
        )
        effects = await self._command(
            caller, lambda manager, now_s: manager.propose(request, now_s)
        )
        plan = proposed(effects)
        assert plan is not None
        return plan

    async def _propose_stores(self, caller: Caller, body: StoreProposalBody) -> Plan:
        try:
            _check_free(self.leader(), execute=body.execute)
        except Busy as busy:
            await self._refuse(caller, Command("propose_stores", "", body.reason), busy)
            raise
        request = StoreProposalRequest(
            actor=caller.name, reason=body.reason, execute=body.execute, options=body.options()
        )
        effects = await self._command(
            caller, lambda manager, now_s: manager.propose_stores(request, now_s)
        )
        plan = proposed(effects)
        assert plan is not None
        return plan

    async def approve(self, caller: Caller, plan_id: str, reason: str) -> Plan:
        await self._command(
            caller, lambda manager, now_s: manager.approve(plan_id, caller.name, reason, now_s)
        )
        return self._manager.plan(plan_id)

    async def cancel(self, caller: Caller, plan_id: str, reason: str) -> Plan:
        await self._command(
            caller, lambda manager, now_s: manager.cancel(plan_id, caller.name, reason, now_s)
        )
        return self._manager.plan(plan_id)

    async def set_policy(
        self, caller: Caller, policy: Policy, version: int | None, reason: str
    ) -> VersionedPolicy:
        effects = await self._command(
            caller,
            lambda manager, now_s: manager.set_policy(policy, caller.name, reason, now_s, version),
        )
        return next(
            effect.policy
            for effect in effects
            if isinstance(effect, Record) and effect.policy is not None
        )

    async def _command(self, caller: Caller, do: Callable[[Manager, float], Effects]) -> Effects:
        """Carried out, or refused: either way with the caller's role in the audit log."""
        manager = self._manager
        try:
            effects = do(manager, self._driver.now_s())
        except RefusalError:
            refusals = manager.take_refusals()
            await self._driver.carry_out([_signed(effect, caller) for effect in refusals])
            raise
        effects = [_signed(effect, caller) for effect in effects]
        await self._driver.carry_out(effects)
        return effects

    async def _refuse(self, caller: Caller, command: Command, error: RefusalError) -> None:
        await self.refused(caller, command, type(error).__name__, str(error))

    async def refused(self, caller: Caller, command: Command, outcome: str, detail: str) -> None:
        entry = AuditEntry(
            at_s=self._driver.now_s(),
            actor=caller.name,
            role=caller.role,
            action=command.action,
            subject=command.subject,
            reason=command.reason,
            outcome=outcome,
            detail=detail,
        )
        log_command(self._manager.me, entry)
        await self._store.append_audit(entry)

    # ---- this manager ----------------------------------------------------------------------------

    def status(self) -> ManagerStatus:
        return self._manager.status(self._driver.now_s())

    async def leadership(self) -> LeadershipView:
        here = self._manager.leads
        return LeadershipView(here, "" if here else self._driver.leader_url)

    def late(self) -> str:
        """Why this process is not well; empty if it is."""
        late_s = self._driver.late_s
        if late_s <= self._settings.late_max_s:
            return ""
        return f"the manager has not looked at the time for {late_s:.1f} s"

    async def unready(self) -> dict[str, str]:
        problems = dict(self._driver.problems())
        if not (self._manager.leads or self._driver.leader_url):
            problems.setdefault("leader", "nobody leads")
        return problems

    def jobs(self) -> tuple[JobStatus, ...] | None:
        return self._driver.jobs()

    async def metrics(self) -> list[Family]:
        status = self.status()
        topics = self.topics(status.leader) if status.leader is not None else None
        return [
            *families_of(ManagerReadings(status, topics, self._broadcast)),
            *self._driver.metrics(),
        ]


def _check_free(leader: LeaderStatus, *, execute: bool) -> None:
    """Of two that ask for an execution at the same time, one is told so at once."""
    if not execute:
        return
    for plan in leader.plans:
        is_next = plan.is_computing and plan.execute
        if plan.state in (PlanState.APPROVED, PlanState.EXECUTING) or is_next:
            raise Busy(plan.id)


def _signed(effect: ManagerEffect, caller: Caller) -> ManagerEffect:
    if isinstance(effect, Audit) and effect.entry.actor == caller.name and not effect.entry.role:
        return Audit(effect.entry.model_copy(update={"role": str(caller.role)}))
    return effect
