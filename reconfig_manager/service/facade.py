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

from dynatops.metrics import Family
from reconfig_manager.leader.office import Office
from reconfig_manager.manager import Effects, Manager, proposed
from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import Busy, RefusalError, StoreAway, UnknownPlan
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
from reconfig_manager.rest.settings import RestSettings
from reconfig_manager.rest.views import (
    BrokerView,
    ClusterView,
    CostView,
    PlacementView,
    TopicView,
    TreeView,
)
from reconfig_manager.service.figures import Sight, figures_of
from reconfig_manager.service.operation_log import log_command
from reconfig_manager.service.survey import (
    FRESH_S,
    Survey,
    broker_page,
    cluster_view,
    placement_view,
    survey,
    take_cost,
    take_tree,
    topic_page,
)

Item = TypeVar("Item")
_KEY_HASH_DIGITS = 16


class CoreDriver(Protocol):
    """Who drives the core: the service, or a test."""

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

    def figures(self) -> list[Family]:
        """Of its own."""
        ...


@dataclass(frozen=True, slots=True)
class _Costed:
    at_s: float
    office: Office
    policy_version: int
    view: CostView

    def holds(self, office: Office, now_s: float) -> bool:
        same = office is self.office and office.policy.version == self.policy_version
        return same and 0 <= now_s - self.at_s < FRESH_S


class ManagerFacade:
    def __init__(
        self, driver: CoreDriver, store: Store, broadcast: Broadcast, settings: RestSettings
    ) -> None:
        self._driver = driver
        self._store = store
        self._broadcast = broadcast
        self._settings = settings
        self._survey: tuple[Office, Survey] | None = None
        self._costed: _Costed | None = None
        # One that computes at a time: they are for people.
        self._computing = asyncio.Lock()
        # Of keys with proposals that are under way.
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _office(self) -> Office:
        return self._driver.manager.office

    # ---- the live model --------------------------------------------------------------------------

    def _surveyed(self) -> Survey:
        office, now_s = self._office, self._driver.now_s()
        if self._survey is not None:
            of, found = self._survey
            if of is office and 0 <= now_s - found.at_s < FRESH_S:
                return found
        found = survey(office, now_s)
        self._survey = (office, found)
        return found

    async def cluster(self) -> ClusterView:
        return cluster_view(self._driver.manager, self._surveyed())

    async def brokers(self, page: PageRequest) -> Page[BrokerView]:
        return broker_page(self._office, page, self._driver.now_s())

    async def topics(self, page: PageRequest, prefix: str) -> Page[TopicView]:
        return topic_page(self._office, self._surveyed(), page, prefix)

    async def tree(self, topic: str) -> TreeView:
        work = take_tree(self._office, self._surveyed(), topic)
        async with self._computing:
            return await asyncio.to_thread(work)

    async def cost(self) -> CostView:
        async with self._computing:
            office, now_s = self._office, self._driver.now_s()
            known = self._costed
            if known is not None and known.holds(office, now_s):
                return known.view
            view = await asyncio.to_thread(take_cost(office, now_s))
            self._costed = _Costed(now_s, office, office.policy.version, view)
            return view

    def watch(self, last_id: str, caller: str) -> Watcher:
        return self._broadcast.watch(last_id, caller)

    # ---- what is stored --------------------------------------------------------------------------

    async def placement(self) -> PlacementView:
        if self._driver.manager.leads:
            return placement_view(self._office)
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
            if not self._driver.manager.leads:
                raise
            return self._office.plan(plan_id)
        if plan is None:
            raise UnknownPlan(plan_id)
        return plan

    async def policy(self) -> VersionedPolicy:
        if self._driver.manager.leads:
            return self._office.policy
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
        office, command = self._office, Command("propose", "", body.reason)
        try:
            options = body.options(office.rules.solver)
            self._check_free(office, body)
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

    def _check_free(self, office: Office, body: ProposalBody) -> None:
        """Of two that ask for an execution at the same time, one is told so at once."""
        if not body.execute:
            return
        for plan in office.plans.values():
            computing = plan.state is PlanState.PROPOSED and plan.prediction is None
            if plan.state in (PlanState.APPROVED, PlanState.EXECUTING) or (
                computing and plan.execute
            ):
                raise Busy(plan.id)

    async def approve(self, caller: Caller, plan_id: str, reason: str) -> Plan:
        await self._command(
            caller, lambda manager, now_s: manager.approve(plan_id, caller.name, reason, now_s)
        )
        return self._office.plan(plan_id)

    async def cancel(self, caller: Caller, plan_id: str, reason: str) -> Plan:
        await self._command(
            caller, lambda manager, now_s: manager.cancel(plan_id, caller.name, reason, now_s)
        )
        return self._office.plan(plan_id)

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
        manager = self._driver.manager
        office = manager.office
        try:
            effects = do(manager, self._driver.now_s())
        except RefusalError:
            refusals, office.outbox = office.outbox, []
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
        log_command(self._driver.manager.me, entry)
        await self._store.append_audit(entry)

    # ---- this manager ----------------------------------------------------------------------------

    async def leadership(self) -> LeadershipView:
        here = self._driver.manager.leads
        return LeadershipView(here, "" if here else self._driver.leader_url)

    def late(self) -> str:
        """Why this process is not well; empty if it is."""
        late_s = self._driver.late_s
        if late_s <= self._settings.late_max_s:
            return ""
        return f"the manager has not looked at the time for {late_s:.1f} s"

    async def unready(self) -> dict[str, str]:
        problems = dict(self._driver.problems())
        if not (self._driver.manager.leads or self._driver.leader_url):
            problems.setdefault("leader", "nobody leads")
        return problems

    async def metrics(self) -> list[Family]:
        manager = self._driver.manager
        found = self._surveyed() if manager.leads else None
        return [
            *figures_of(Sight(manager, found, self._broadcast)),
            *self._driver.figures(),
        ]


def _signed(effect: ManagerEffect, caller: Caller) -> ManagerEffect:
    if isinstance(effect, Audit) and effect.entry.actor == caller.name and not effect.entry.role:
        return Audit(effect.entry.model_copy(update={"role": str(caller.role)}))
    return effect
