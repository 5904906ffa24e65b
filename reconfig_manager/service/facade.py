"""The HTTP side's view of a manager (`rest.facade.Facade`), over its core and its store.

Reads of the live model and commands are the leader's: asked of another, they raise NotLeading, but
the HTTP side has redirected them before. A command is answered once the store has what follows
from it at once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from pydantic import ValidationError

from dynatops.kit.observing.metrics import Family
from reconfig_manager.manager import Effects, Manager, proposed
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import (
    Busy,
    NotLeading,
    RefusalError,
    Refused,
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
)
from reconfig_manager.rest.bodies import ProposalBody
from reconfig_manager.rest.broadcast import Broadcast, Watcher
from reconfig_manager.rest.facade import (
    Caller,
    Command,
    ConflictingOptionsError,
    KeyReusedError,
    LeadershipView,
    PageRequest,
    UnknownCursorError,
)
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.rest.views import (
    BrokerView,
    ClusterView,
    CostView,
    PlacementView,
    TopicView,
    TreeView,
)
from reconfig_manager.service.observing.metrics import ManagerReadings, families_of
from reconfig_manager.service.observing.operation_log import log_command
from reconfig_manager.service.status_views import (
    Topics,
    broker_page,
    cluster_view,
    cost_work,
    placement_view,
    topic_page,
    tree_work,
    twice_hosted,
)
from reconfig_manager.status import LeaderStatus

Item = TypeVar("Item")
_KEY_HASH_DIGITS = 16
# Topics, and the cost of the placement, are not put together more often.
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

    def metrics(self) -> list[Family]:
        """Of its own."""
        ...


@dataclass(frozen=True, slots=True)
class _Costed:
    at_s: float
    fence: int
    policy_version: int
    view: CostView

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
        self._known: Topics | None = None
        self._costed: _Costed | None = None
        # One that computes at a time: they are for people.
        self._computing = asyncio.Lock()
        # Of keys with proposals that are under way.
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _manager(self) -> Manager:
        return self._driver.manager

    def _leader(self) -> LeaderStatus:
        """Raises NotLeading."""
        leader = self._manager.status(self._driver.now_s()).leader
        if leader is None:
            raise NotLeading
        return leader

    # ---- the live model --------------------------------------------------------------------------

    def _topics(self, leader: LeaderStatus) -> Topics:
        """Not older than FRESH_S: it takes long to put together."""
        known = self._known
        same = known is not None and known.status.fence == leader.fence
        if known is None or not (same and 0 <= leader.at_s - known.status.at_s < FRESH_S):
            known = self._known = Topics.of(self._manager.topics_status(leader.at_s))
        return known

    async def cluster(self) -> ClusterView:
        leader = self._leader()
        return cluster_view(self._manager.me, leader, self._topics(leader))

    async def brokers(self, page: PageRequest) -> Page[BrokerView]:
        return broker_page(self._leader(), page)

    async def topics(self, page: PageRequest, prefix: str) -> Page[TopicView]:
        leader = self._leader()
        return topic_page(leader, self._topics(leader), page, prefix)

    async def tree(self, topic: str) -> TreeView:
        leader = self._leader()
        subscribers = self._manager.subscribers(topic)
        work = tree_work(leader, self._topics(leader).status, topic, subscribers)
        async with self._computing:
            return await asyncio.to_thread(work)

    async def cost(self) -> CostView:
        async with self._computing:
            leader = self._leader()
            if self._costed is not None and self._costed.holds(leader):
                return self._costed.view
            if problem := twice_hosted(leader):
                raise Refused(problem)
            work = cost_work(leader, self._manager.model(leader.at_s))
            view = await asyncio.to_thread(work)
            self._costed = _Costed(leader.at_s, leader.fence, leader.policy.version, view)
            return view

    def watch(self, last_id: str, caller: str) -> Watcher:
        return self._broadcast.watch(last_id, caller)

    # ---- what is stored --------------------------------------------------------------------------

    async def placement(self) -> PlacementView:
        if self._manager.leads:
            return placement_view(self._leader())
        stored = await self._store.placement()
        return PlacementView(
            live=False,
            epoch=stored.epoch,
            plan_id=stored.plan_id,
            committed_s=stored.committed_s,
            hosts=list(stored.hosts),
        )

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
            return self._leader().policy
        return await self._store.policy()

    async def audit(self, page: PageRequest) -> Page[AuditEntry]:
        try:
            return await self._store.audit(page.cursor, page.limit)
        except ValueError:
            raise UnknownCursorError from None

    # ---- commands --------------------------------------------------------------------------------

    async def propose(self, caller: Caller, body: ProposalBody, key: str) -> Plan:
        if not key:
            return await self._propose(caller, body)
        key = f"{caller.name} {key}"
        request = hashlib.sha256(body.model_dump_json().encode()).hexdigest()[:_KEY_HASH_DIGITS]
        lock = self._keys.setdefault(key, asyncio.Lock())
        async with lock:
            if (known := await self._store.plan_for_key(key)) is not None:
                return await self._as_before(caller, body, known, request)
            plan = await self._propose(caller, body)
            ttl_s = self._settings.idempotency_ttl_s
            await self._store.remember_key(key, f"{plan.id} {request}", ttl_s)
            return plan

    async def _as_before(
        self, caller: Caller, body: ProposalBody, known: str, request: str
    ) -> Plan:
        plan_id, _, before = known.partition(" ")
        if before == request:
            return await self.plan(plan_id)
        error = KeyReusedError(plan_id)
        await self._refuse(caller, Command("propose", "", body.reason), error)
        raise error

    async def _propose(self, caller: Caller, body: ProposalBody) -> Plan:
        leader, command = self._leader(), Command("propose", "", body.reason)
        try:
            options = body.options(leader.rules.solver)
            _check_free(leader, body)
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

    async def metrics(self) -> list[Family]:
        status = self._manager.status(self._driver.now_s())
        topics = self._topics(status.leader) if status.leader is not None else None
        return [
            *families_of(ManagerReadings(status, topics, self._broadcast)),
            *self._driver.metrics(),
        ]


def _check_free(leader: LeaderStatus, body: ProposalBody) -> None:
    """Of two that ask for an execution at the same time, one is told so at once."""
    if not body.execute:
        return
    for plan in leader.plans:
        computing = plan.state is PlanState.PROPOSED and plan.prediction is None
        if plan.state in (PlanState.APPROVED, PlanState.EXECUTING) or (computing and plan.execute):
            raise Busy(plan.id)


def _signed(effect: ManagerEffect, caller: Caller) -> ManagerEffect:
    if isinstance(effect, Audit) and effect.entry.actor == caller.name and not effect.entry.role:
        return Audit(effect.entry.model_copy(update={"role": str(caller.role)}))
    return effect
