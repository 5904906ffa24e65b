"""What people send. Unknown keys are rejected; every command says what it is for."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from reconfig_manager.model.policy import DelayIn, Policy, SolverOptions, Written
from reconfig_manager.model.store_plan import StorePlanOptions
from reconfig_manager.placement.problem import Objective
from reconfig_manager.solvers import ALGORITHMS, SOLVERS

REASON_MAX = 1_000

Reason = Annotated[
    str,
    StringConstraints(min_length=1, max_length=REASON_MAX, pattern=r"\S"),
    Field(description="What this is for; kept with the plan and in the audit log."),
]


def _known(name: str) -> str:
    if name not in ALGORITHMS:
        raise ValueError(f"should be one of {', '.join(ALGORITHMS)}")
    return name


Algorithm = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "enum": list(ALGORITHMS)}),
]


class Weights(Written):
    delay: float = Field(
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="w_d: what a unit of delay counts beside a relay message.",
    )


# What `SolverOptions` would refuse, for those who read the schema.
_CONTRADICTIONS: dict[str, Any] = {
    "not": {
        "anyOf": [
            {
                "required": ["algorithm", "max_moves"],
                "properties": {
                    "algorithm": {
                        "enum": [name for name in ALGORITHMS if not SOLVERS[name].limits_moves]
                    },
                    "max_moves": {"type": "integer"},
                },
            },
            {
                "required": ["algorithm", "objective"],
                "properties": {
                    "algorithm": {
                        "enum": [name for name in ALGORITHMS if not SOLVERS[name].minds_moving]
                    },
                    "objective": {"const": "net"},
                },
            },
        ]
    }
}


class ProposalBody(Written):
    """A reconfiguration to look for. What is left out is as the policy has it."""

    model_config = ConfigDict(json_schema_extra=_CONTRADICTIONS)

    reason: Reason
    execute: StrictBool = Field(
        False,
        description="Execute it as soon as the decision accepts it; otherwise it is a dry run, "
        "which somebody may approve.",
    )
    algorithm: Algorithm | None = None
    budget_s: float | None = Field(
        None, gt=0, le=600, allow_inf_nan=False, description="Time that the solver may take."
    )
    iterations_max: int | None = Field(
        None, ge=1, le=2**53, description="Steps that it may take: unlike time, the same always."
    )
    objective: Objective | None = Field(
        None, description="`net` of the moving cost, or the `cost` of the placement alone."
    )
    weights: Weights | None = None
    delay_in: DelayIn | None = Field(None, description="`hops`, or `rtt`, in mean round trips.")
    max_moves: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Brokers that may move at once."
    )
    seed: int | None = Field(None, ge=0, le=2**53, description="Of the solver's own dice.")

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.algorithm is not None:
            self.options(SolverOptions(algorithm=self.algorithm))
        return self

    def options(self, defaults: SolverOptions) -> SolverOptions:
        """Raises ValidationError if they do not go together."""
        chosen = self.model_dump(exclude_none=True, exclude={"reason", "execute", "weights"})
        if self.weights is not None:
            chosen["delay_weight"] = self.weights.delay
        return SolverOptions.model_validate({**defaults.model_dump(), **chosen})


class StoreProposalBody(StorePlanOptions):
    """Which stores had better keep which topics. What is left out gets its default."""

    reason: Reason
    execute: StrictBool = Field(
        False,
        description="Execute it as soon as the decision accepts it; otherwise it is a dry run, "
        "which somebody may approve.",
    )

    def options(self) -> StorePlanOptions:
        return StorePlanOptions.model_validate(self.model_dump(exclude={"reason", "execute"}))


class CommandBody(Written):
    reason: Reason


class PolicyBody(Written):
    """The whole policy: what is left out gets its default."""

    policy: Policy
    reason: Reason
