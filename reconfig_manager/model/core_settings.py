"""Every number that the manager's core depends on, with its unit, its reason and its limit.

What an administrator changes while it runs is in `policy.py`.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reconfig_manager.model.policy import Policy

# How old rates may be that were not just reported: those that Spark computed (`advice.ttl_s`), and
# those of the leader before.
ADVICE_TTL_S = 7_200.0


class MonitorSettings(BaseModel):
    """What brokers report, and how it becomes rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    report_period_s: float = Field(10.0, gt=0, description="How often brokers report.")
    period_s: float = Field(
        30.0,
        gt=0,
        description="Periods of eq. 12: after each, estimates of rates take in what was observed. "
        " Three reports, so that one late does not show.",
    )
    alpha: float = Field(0.3, gt=0, le=1, description="Weight of the newest period (eq. 12).")
    periods_min: int = Field(
        3, ge=0, description="A model of fewer periods than this is too thin to plan from."
    )
    window_s: float = Field(
        35.0, gt=0, description="A broker silent for longer does not count as heard."
    )
    topics_max: int = Field(
        200_000,
        ge=1,
        description="Topics watched; past it, new ones are not; models say so.",
    )
    topic_idle_periods: int = Field(
        120, ge=1, description="A topic without subscribers and events for this long is forgotten."
    )
    brokers_max: int = Field(5_000, ge=1, description="Brokers that may register.")
    subscriptions_max: int = Field(
        20_000_000, ge=1, description="Subscriptions of all brokers kept; past it, no more."
    )
    round_trip_brokers_max: int = Field(
        512,
        ge=0,
        description="Round trips are kept of networks up to this size; of larger ones delays are "
        "in hops, and plans say so. A broker remembers those of 512 others (`peers_known_max`) "
        "and takes 17 minutes to measure as many (`rtt_period_s`).",
    )

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.window_s <= self.report_period_s:
            raise ValueError("window_s must be longer than report_period_s")
        return self


class ExecutionSettings(BaseModel):
    """How long each side waits for the other."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    resend_s: float = Field(0.5, gt=0, description="An unanswered command is repeated after this.")
    frozen_max_s: float = Field(
        15.0, gt=0, description="A frozen broker that hears nothing thaws by itself after this."
    )
    prepare_timeout_s: float = Field(
        7.0,
        gt=0,
        description="From the first RCFG_INIT: not at its commit point by then, a plan is rolled "
        "back. At most half of frozen_max_s, so that nobody has thawed by then.",
    )
    complete_timeout_s: float = Field(
        12.0,
        gt=0,
        description="From the commit point: a plan ends by then, and notes who has not answered.",
    )
    roll_back_timeout_s: float = Field(
        20.0, gt=0, description="A plan is rolled back by then, answered or not: all have thawed."
    )
    gone_s: float = Field(
        3.0, gt=0, description="A broker whose stream ended is gone if it is not back after this."
    )
    attend_s: float = Field(
        5.0, gt=0, description="Under a new leader, brokers get so long to register again."
    )
    record_retry_s: float = Field(
        0.25, gt=0, description="What the store did not take is written again after this."
    )

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.prepare_timeout_s * 2 > self.frozen_max_s:
            raise ValueError("prepare_timeout_s must be at most half of frozen_max_s")
        if self.gone_s >= self.prepare_timeout_s:
            raise ValueError("gone_s must be shorter than prepare_timeout_s")
        return self


class MeasuringSettings(BaseModel):
    """What was gained and spent, beside what was predicted."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    settle_s: float = Field(
        5.0, ge=0, description="After a plan, counting begins again this much later: queues drain."
    )
    measure_s: float = Field(
        120.0,
        gt=0,
        description="What a plan gained is counted for so long, or T_free if shorter.",
    )
    events_min: int = Field(
        500,
        ge=1,
        description="With fewer events on either side, the benefit is not told.",
    )
    prediction_tolerance: float = Field(
        0.15, gt=0, description="A benefit that is off by a larger share is flagged."
    )
    constants_from_plans: int = Field(
        5, ge=1, description="Constants of eq. 11 lean on about this many plans."
    )


class StoringSettings(BaseModel):
    """Which stores keep which topics."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    topics_max: int = Field(
        5_000, ge=1, description="Topics in a plan of stores: those that are asked for most."
    )
    demand_pairs_max: int = Field(
        1_000_000,
        ge=1,
        description="Pairs of a broker and a topic that requests are remembered of; past it, new "
        "ones are not.",
    )
    patterns_max: int = Field(
        100_000, ge=1, description="Topics that are heeded of what one store reports to keep."
    )
    resend_s: float = Field(1.0, gt=0, description="An unanswered command is repeated after this.")
    catch_up_timeout_s: float = Field(
        1_800.0,
        gt=0,
        description="New stores have caught up by then, or the plan is rolled back: whoever had a "
        "topic goes on with it.",
    )
    complete_timeout_s: float = Field(
        30.0,
        gt=0,
        description="From the commit point, or from rolling back: the plan ends by then, and notes "
        "who has not answered. Such a store keeps more than it has to.",
    )
    measure_s: float = Field(
        600.0, gt=0, description="How far requests go is counted for so long before and after."
    )
    requests_min: int = Field(
        20, ge=1, description="With fewer requests on either side, what was gained is not told."
    )


class ManagerSettings(BaseModel):
    """The manager's core."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    first_policy: Policy | None = Field(
        None,
        description="Policy of a network that nobody has set one for, as JSON, such as "
        '`{"mode": "auto", "t_free_s": 1800}`: it is written once, and what a person says then '
        "is never undone by it.",
    )
    proposal_ttl_s: float = Field(
        1800.0, gt=0, description="A proposal nobody approved expires after this."
    )
    proposals_max: int = Field(20, ge=1, description="Open proposals; past it, none more.")
    plans_kept: int = Field(100, ge=1, description="Finished plans that the leader has at hand.")
    keep_rates_s: float = Field(
        60.0, gt=0, description="How often estimates are kept with the store, for the next leader."
    )
    monitor: MonitorSettings = Field(default_factory=MonitorSettings)
    execution: ExecutionSettings = Field(default_factory=ExecutionSettings)
    measuring: MeasuringSettings = Field(default_factory=MeasuringSettings)
    storing: StoringSettings = Field(default_factory=StoringSettings)

    @field_validator("first_policy", mode="before")
    @classmethod
    def _is_json(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value else None
        except ValueError as error:
            raise ValueError(f"it is to be JSON: {error}") from None
