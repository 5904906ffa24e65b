"""Which of several managers leads: the one that holds the lease in the store.

    following --acquired--> leading --Deposed, or not renewed in time--> following
                               `--told to step down: lease given back--'

A leader stops leading by its own clock before its lease can have run out, so that there is no
moment with two. Should its process have been held up for longer, what it writes is refused by the
store, and what it says by brokers: each leadership has a fence, higher than all before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dynatops.kit.observing.log_operations import DEPOSED, LEADING, STORE_AWAY, STORE_BACK
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import FENCE_MAX, ManagerFacts, Store
from reconfig_manager.store.store_settings import LeadershipSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeadershipHost:
    """What a manager that competes is told."""

    # It leads from now on, with this fence.
    on_lead: Callable[[int], None]
    # It leads no more, and why.
    on_depose: Callable[[str], None]


class Leadership:
    def __init__(
        self,
        store: Store,
        settings: LeadershipSettings,
        facts: ManagerFacts,
        host: LeadershipHost,
    ) -> None:
        self._store = store
        self._settings = settings
        self.facts = facts
        self._me = facts.manager_id
        self._host = host
        self._fence: int | None = None
        self._lead_until_s = 0.0
        # Above all that anybody is known to have had.
        self._fence_min = 0
        self._rest_until_s = 0.0
        self._woken = asyncio.Event()
        self._stopping = False
        # The manager that leads, as far as it is known here.
        self.leader: ManagerFacts | None = None
        self.managers: list[ManagerFacts] = []
        # Why the store cannot be asked; empty if it can.
        self.problem = ""

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def fence(self) -> int | None:
        """Of the present leadership; None if this manager does not lead, or no longer surely."""
        return self._fence if self._now() < self._lead_until_s else None

    def outranked(self, fence: int) -> None:
        """A broker obeys this fence: lead again with a higher one, if nobody else does."""
        if not 0 <= fence <= FENCE_MAX // 2:
            log.error(
                "a broker says that it obeys fence %d, which nobody was given: ignored", fence
            )
            return
        self._fence_min = max(self._fence_min, fence + 1)
        self._woken.set()

    def lost(self) -> None:
        """The store has said so, to another part of this manager."""
        self._woken.set()

    def step_down(self) -> None:
        """Let others have a try first."""
        self._rest_until_s = self._now() + 2 * self._settings.ttl_s
        self._woken.set()

    # ---- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopping:
            asked_s = self._now()
            fence = await self._acquire()
            if fence is None:
                if await self._is_woken_within(self._settings.poll_s):
                    self._woken.clear()
            else:
                await self._lead(fence, asked_s)

    def stop(self) -> None:
        """A lease is given back: the next leader need not wait until it runs out."""
        self._stopping = True
        self._woken.set()

    async def _acquire(self) -> int | None:
        try:
            if self._now() >= self._rest_until_s:
                ttl_s = self._settings.ttl_s
                fence = await self._store.acquire(self._me, ttl_s, self._fence_min)
                if fence is not None:
                    return fence
            await self._look_around()
        except StoreAway as error:
            # If the lease was given after all, it runs out.
            self._store_is_away(error)
            return None
        self._store_is_back()
        return None

    async def _look_around(self) -> None:
        """Tell the others of this one, and see who they are."""
        await self._store.announce(self.facts, 3 * self._settings.ttl_s)
        self.managers = await self._store.managers()
        held = await self._store.leader()
        if held is None:
            self.leader = None
        else:
            known = {facts.manager_id: facts for facts in self.managers}
            self.leader = known.get(held[0], ManagerFacts(manager_id=held[0]))

    async def _lead(self, fence: int, asked_s: float) -> None:
        self._store_is_back()
        self._fence_min = max(self._fence_min, fence + 1)
        self._prolong(asked_s)
        self._fence = fence
        self.leader = self.facts
        text = f"{self._me} leads, with fence {fence}"
        LEADING.log(log, text, manager=self._me, fence=fence)
        reason = "an error"
        try:
            self._host.on_lead(fence)
            reason = await self._hold(fence)
        finally:
            self._fence = None
            self.leader = None
            DEPOSED.log(log, f"{self._me} leads no more: {reason}", manager=self._me, reason=reason)
            self._host.on_depose(reason)

    def _prolong(self, asked_s: float) -> None:
        settings = self._settings
        self._lead_until_s = asked_s + settings.ttl_s - settings.margin_s

    async def _hold(self, fence: int) -> str:
        """Renew until that fails; why."""
        pause_s = 0.0
        while True:
            try:
                async with asyncio.timeout_at(self._lead_until_s):
                    if await self._is_woken_within(pause_s):
                        break
                    pause_s = await self._renewed(fence)
            except TimeoutError:
                return f"the lease could not be renewed: {self.problem or 'there was no time to'}"
            except Deposed as deposed:
                # A store that has lost everything begins again at 0.
                self._fence_min = max(self._fence_min, min(deposed.current, FENCE_MAX - 1) + 1)
                return str(deposed)
        self._woken.clear()
        try:
            await self._store.release(self._me, fence)
        except StoreAway as error:
            log.debug("the lease was not given back: %s", error)
        return "this manager stops" if self._stopping else "it stepped down"

    async def _is_woken_within(self, pause_s: float) -> bool:
        waiting = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((waiting,), timeout=pause_s)
            return self._woken.is_set()
        finally:
            waiting.cancel()

    async def _renewed(self, fence: int) -> float:
        """Seconds until the next time."""
        asked_s = self._now()
        try:
            await self._store.renew(self._me, fence, self._settings.ttl_s)
            self._prolong(asked_s)
            await self._look_around()
        except StoreAway as error:
            self._store_is_away(error)
            return self._settings.renew_s / 4
        self._store_is_back()
        return self._settings.renew_s

    def _store_is_away(self, error: StoreAway) -> None:
        if not self.problem:
            STORE_AWAY.log(log, f"the store is away: {error}", manager=self._me, error=str(error))
        self.problem = str(error)

    def _store_is_back(self) -> None:
        if self.problem:
            STORE_BACK.log(log, "the store is back", manager=self._me)
        self.problem = ""
