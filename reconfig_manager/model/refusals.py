"""Why the manager does not do what it was asked to, each reason a type with its fields.

A refusal is an answer for the caller, not a fault: its text says what was wrong and what to do.
`Deposed` and `StoreAway` are the store's; they never reach a person as they are.
"""

from __future__ import annotations

from collections.abc import Iterable


class RefusalError(Exception):
    """The request cannot be carried out as things are."""


class UnknownPlan(RefusalError):
    def __init__(self, plan_id: str) -> None:
        super().__init__(f"there is no plan {plan_id!r}")
        self.plan_id = plan_id


class IllegalTransition(RefusalError):
    def __init__(self, plan_id: str, state: str, wanted: str, allowed: Iterable[str]) -> None:
        possible = ", ".join(allowed)
        rest = f"now, only {possible}" if possible else "any more"
        super().__init__(f"plan {plan_id} is {state}: it cannot be {wanted} {rest}")
        self.plan_id = plan_id
        self.state = state
        self.wanted = wanted


class StalePlan(RefusalError):
    """Brokers are not where they were when the plan was made."""

    def __init__(self, plan_id: str, why: str) -> None:
        super().__init__(f"plan {plan_id} is stale: {why}; propose again")
        self.plan_id = plan_id
        self.why = why


class StalePolicy(RefusalError):
    """The policy was changed since it was read."""

    def __init__(self, given: int, current: int) -> None:
        super().__init__(f"the policy is at version {current}, not {given}: read it again")
        self.given = given
        self.current = current


class Busy(RefusalError):
    """One execution at a time."""

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"plan {plan_id} is being executed: wait until it is over, or cancel it")
        self.plan_id = plan_id


class ModelTooThin(RefusalError):
    """Too little is known to plan from."""


class Refused(RefusalError):
    """Not allowed as things are: the policy says so, or the network is not ready for it."""


class NotLeading(RefusalError):
    """Another manager leads; ask it."""

    def __init__(self) -> None:
        super().__init__("this manager does not lead")


class StoreError(Exception):
    """What a store's writes raise."""


class Deposed(StoreError):
    """A manager with a higher fencing number leads."""

    def __init__(self, fence: int, current: int) -> None:
        super().__init__(f"fence {fence} is over: {current} leads")
        self.fence = fence
        self.current = current


class StoreAway(StoreError):
    """The store did not answer; what was written may have arrived, or not."""
