"""What a plan of stores is about: which topics each store is to keep, and what became of it.

It is a `Plan`, with this in its `stores`; its states are a plan's. While EXECUTING it has a phase:

    KEEPING ----------------|--> RELEASING --> (COMMITTED)
       |  new stores keep   ^       former ones are told to keep it no more
       |  too, and catch up  commit point
       +--> ROLLING_BACK --> (ROLLED_BACK)
               new stores are told to keep it no more

Whoever had a topic has it until those that are to have it have caught up, so nothing is lost on the
way, whichever of them, or whichever leader, dies. Every phase is an assignment with an epoch of its
own. A new leader goes on with the phase that it finds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field, field_validator

from reconfig_manager.model.policy import RatesFrom, Written
from reconfig_manager.storing import DEFAULT_STORE_ALGORITHM, STORE_ALGORITHMS

_DAY_S = 86_400.0
# What a request brings, where nobody has asked stores for anything yet.
EVENTS_PER_REQUEST = 100.0


class StorePhase(enum.StrEnum):
    KEEPING = "KEEPING"
    RELEASING = "RELEASING"
    ROLLING_BACK = "ROLLING_BACK"


# A new leader begins the phase that it finds again.
STORE_PHASES: Mapping[StorePhase | None, tuple[StorePhase, ...]] = MappingProxyType(
    {
        None: (StorePhase.KEEPING,),
        StorePhase.KEEPING: (StorePhase.KEEPING, StorePhase.RELEASING, StorePhase.ROLLING_BACK),
        StorePhase.RELEASING: (StorePhase.RELEASING,),
        StorePhase.ROLLING_BACK: (StorePhase.ROLLING_BACK,),
    }
)


class StorePlanOptions(Written):
    """How to look for an assignment of topics to stores."""

    planner: str = Field(
        DEFAULT_STORE_ALGORITHM,
        description=f"One of {', '.join(STORE_ALGORITHMS)}.",
        json_schema_extra={"enum": list(STORE_ALGORITHMS)},
    )
    stores: int | None = Field(
        None, ge=1, le=100_000, description="Brokers that are stores (M); all that may, by default."
    )
    replicas: int = Field(
        2, ge=1, le=100, description="Stores that each topic is on, at least (k_t)."
    )
    replicas_max: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Stores that the most popular topics are on; as many as the others by default.",
    )
    period_s: float = Field(
        _DAY_S,
        gt=0,
        le=365 * _DAY_S,
        description="How long it is expected to last: what it saves in that is compared with what "
        "it takes to get there.",
    )
    events_per_request: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Events that a request brings; by default as brokers counted, or "
        f"{EVENTS_PER_REQUEST:g}.",
    )
    seed: int = Field(0, ge=0, le=2**53, description="Of the planner's own dice.")

    @field_validator("planner")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in STORE_ALGORITHMS:
            raise ValueError(f"unknown planner {value!r}: one of {', '.join(STORE_ALGORITHMS)}")
        return value


class _StorePlanPart(BaseModel):
    # What a newer manager wrote into the store is read by an older one as far as it knows it.
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoreChange(_StorePlanPart):
    """What one store is to keep besides, and no more."""

    broker_id: str
    # All that it kept when the plan was made.
    kept: tuple[str, ...]
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def together(self) -> tuple[str, ...]:
        """While others leave and come."""
        return (*self.kept, *self.begins)

    @property
    def after(self) -> tuple[str, ...]:
        ends = set(self.ends)
        return tuple(pattern for pattern in self.together if pattern not in ends)


class StoreModelFacts(_StorePlanPart):
    """What it was made from."""

    # Brokers that may be told what to keep, and topics that somebody asks for.
    candidates: int
    topics: int
    requests_per_s: float
    requests_from: RatesFrom
    requests_age_s: float | None = None
    events_per_request: float
    notes: tuple[str, ...] = ()


class StorePrediction(_StorePlanPart):
    """What the planner found, and the decision. Traffic is requests x hops in a second; benefit and
    transfer are events x hops."""

    planner: str
    traffic_before: float
    traffic_after: float
    # Of a request, on average.
    hops_before: float
    hops_after: float
    # Requests in a second for topics that no store keeps.
    unserved_before: float
    unserved_after: float
    benefit: float
    transfer: float
    # Replicas that found no store with room.
    missing: int
    accept: bool
    # `ReassignmentReason`, or `topics_left_without_store`; and the same as a sentence.
    reason: str
    explanation: str


class StoreJournalEntry(_StorePlanPart):
    phase: StorePhase
    at_s: float
    fence: int
    manager: str


class AnswerRate(_StorePlanPart):
    """What brokers counted: requests that stores began to answer, and how far these were."""

    requests: int
    seconds: float
    hops_per_request: float
    events_per_request: float


class StoreExecution(_StorePlanPart):
    """How it went."""

    # Of the newest assignment that it has led to.
    epoch: int
    fence: int
    manager: str
    started_s: float
    journal: tuple[StoreJournalEntry, ...] = ()
    # Commands and answers.
    messages: int = 0
    # Stores that had not answered when the plan ended.
    stragglers: tuple[str, ...] = ()
    before: AnswerRate | None = None
    # Why it was rolled back.
    failure: str = ""
    ended_s: float | None = None


class StoreMeasurement(_StorePlanPart):
    """How far requests had to go before and after, beside the prediction."""

    before: AnswerRate
    after: AnswerRate
    predicted_hops_saved: float
    measured_hops_saved: float
    at_s: float


class StorePart(_StorePlanPart):
    options: StorePlanOptions
    # The newest assignment that any store had when it was made: it is stale once there is another.
    base_epoch: int
    facts: StoreModelFacts
    prediction: StorePrediction | None = None
    changes: tuple[StoreChange, ...] = ()
    phase: StorePhase | None = None
    execution: StoreExecution | None = None
    measurement: StoreMeasurement | None = None

    @property
    def moves(self) -> int:
        """Replicas that come and go."""
        return sum(len(change.begins) + len(change.ends) for change in self.changes)
