"""When and how the manager reconfigures: what an administrator may say, and its defaults.

`manual`: the process proposes, a person approves. `auto`: what the decision accepts, several
periods in a row, is executed. `off`: nothing is proposed by itself and nothing is executed; dry
runs are answered. Maintenance windows and the waiting for T_free bind `auto` only: a person may act
at any time.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reconfig_manager.placement.decision import BETA
from reconfig_manager.placement.problem import Objective, Task
from reconfig_manager.solvers import ALGORITHMS, DEFAULT_ALGORITHM, SOLVERS

DAY_S = 86_400
WEEK_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# 1 January 1970 was a Thursday.
EPOCH_WEEK_DAY = 3
TimeOfDay = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class Mode(enum.StrEnum):
    MANUAL = "manual"
    AUTO = "auto"
    OFF = "off"


class RatesFrom(enum.StrEnum):
    # Advice while it is fresh, else reports.
    AUTO = "auto"
    REPORTS = "reports"
    # Computed by Spark; nothing is planned while there is none that is fresh.
    ADVICE = "advice"


class DelayIn(enum.StrEnum):
    HOPS = "hops"
    # Round trip times, once every pair of brokers has been measured; hops until then.
    RTT = "rtt"


_NUMBERS = (int, float, int | None, float | None)


class Written(BaseModel):
    """What a person writes, in JSON: unknown keys are rejected, `true` and `"7"` are no numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_no_lookalikes(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, field in cls.model_fields.items():
                if field.annotation in _NUMBERS and isinstance(data.get(name), bool | str):
                    raise ValueError(f"{name} is to be a number, not {data[name]!r:.40}")
        return data


class SolverOptions(Written):
    """How to look for a placement."""

    algorithm: str = Field(
        DEFAULT_ALGORITHM,
        description=f"One of {', '.join(ALGORITHMS)}.",
        json_schema_extra={"enum": list(ALGORITHMS)},
    )
    budget_s: float = Field(
        5.0, gt=0, le=600, description="Time that the solver may take; it gives the best by then."
    )
    iterations_max: int | None = Field(
        None,
        ge=1,
        le=2**53,
        description="Steps that it may take: unlike time, the same everywhere.",
    )
    objective: Objective | None = Field(
        None,
        description="Make small the `cost` of the placement, or `net`, with the cost of moving "
        "there, which is the default of those that can.",
    )
    delay_weight: float = Field(
        1.0, ge=0, le=1e6, description="w_d: what a unit of delay counts beside a relay message."
    )
    delay_in: DelayIn = Field(
        DelayIn.HOPS,
        description="Unit of delays: `hops`, or `rtt`, round trips as multiples of their mean over "
        "all pairs of brokers: a link counts one on average, either way.",
    )
    max_moves: int | None = Field(
        None, ge=1, description="Brokers that may move at once; unlimited by default."
    )
    seed: int = Field(0, ge=0, le=2**53, description="Of the solver's own dice.")

    @field_validator("algorithm")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {value!r}: one of {', '.join(ALGORITHMS)}")
        return value

    @model_validator(mode="after")
    def _are_for_the_algorithm(self) -> Self:
        solver = SOLVERS[self.algorithm]
        if self.max_moves is not None and not solver.limits_moves:
            raise ValueError(f"{self.algorithm} cannot limit how many brokers move; refine can")
        if self.objective is Objective.NET and not solver.minds_moving:
            raise ValueError(f"{self.algorithm} minds cost alone; dynatops-greedy minds moving")
        return self

    def task(self) -> Task:
        best = Objective.NET if SOLVERS[self.algorithm].minds_moving else Objective.COST
        return Task(
            objective=self.objective or best,
            time_limit_s=self.budget_s,
            iterations_max=self.iterations_max or math.inf,
            seed=self.seed,
            max_moves=self.max_moves,
        )


class MaintenanceWindow(Written):
    """On these days from `start` until `end`, UTC; past midnight if the end is not after it."""

    days: tuple[str, ...] = Field(
        WEEK_DAYS,
        min_length=1,
        max_length=len(WEEK_DAYS),
        description="mon, tue, ...",
        json_schema_extra={"items": {"type": "string", "enum": list(WEEK_DAYS)}},
    )
    start: TimeOfDay = "00:00"
    end: TimeOfDay = "00:00"

    @field_validator("days")
    @classmethod
    def _are_days(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for day in value:
            if day not in WEEK_DAYS:
                raise ValueError(f"unknown day {day!r}: one of {', '.join(WEEK_DAYS)}")
        return value

    def contains(self, now_s: float) -> bool:
        day, second = divmod(int(now_s), DAY_S)
        start, end = _seconds(self.start), _seconds(self.end)
        if end <= start:
            end += DAY_S
        return (self._is_on(day) and start <= second < end) or (
            self._is_on(day - 1) and second + DAY_S < end
        )

    def _is_on(self, day: int) -> bool:
        return WEEK_DAYS[(day + EPOCH_WEEK_DAY) % len(WEEK_DAYS)] in self.days


def _seconds(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60


class Policy(Written):
    mode: Mode = Field(Mode.MANUAL, description="manual, auto or off.")
    t_free_s: float = Field(
        3600.0,
        gt=0,
        le=31 * DAY_S,
        description="T_free: least time between two reconfigurations, for which benefit and moving "
        "cost are compared, and how often the process looks for a better placement.",
    )
    hysteresis_periods: int = Field(
        2,
        ge=1,
        le=100,
        description="In `auto`, a placement must be worth it this many periods in a row, each time "
        "by the rates of its own period: what only noise made look good does not last.",
    )
    gain_min: float = Field(
        0.05,
        ge=0,
        le=1,
        description="What the process finds is worth it from this share of the present cost on: "
        "what noise, or a second look of the solver, gains on top is not worth a pause.",
    )
    windows: tuple[MaintenanceWindow, ...] = Field(
        (), max_length=50, description="`auto` executes within these only; without any, always."
    )
    beta: float = Field(BETA, ge=0, le=1e3, description="Of the reconfigurability test (III-D2).")
    completeness_min: float = Field(
        0.9, ge=0, le=1, description="Share of brokers heard of lately without which none plans."
    )
    rates_from: RatesFrom = Field(
        RatesFrom.AUTO,
        description="Publication rates: `reports` of brokers; `advice`, computed by Spark, and no "
        "plan without any that is fresh; `auto`, advice while it is fresh, else reports.",
    )
    solver: SolverOptions = Field(default_factory=SolverOptions)

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.solver.budget_s >= self.t_free_s:
            raise ValueError("solver.budget_s must be shorter than t_free_s")
        return self

    def may_act(self, now_s: float) -> bool:
        """Whether `auto` may execute now."""
        return not self.windows or any(window.contains(now_s) for window in self.windows)


class VersionedPolicy(Written):
    """With the number of its changes: an ETag."""

    policy: Policy = Field(default_factory=Policy)
    version: int = 0
