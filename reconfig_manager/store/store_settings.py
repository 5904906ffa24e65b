"""Settings of the store: the server that keeps the state, and the lease of the leader."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reconfig_manager.store.opening import REDIS, describe_stores, kind_of, unknown_store


class StoreSettings(BaseModel):
    """Where plans, journal, placement and the lease are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str = Field(
        "",
        description=f"Where the state is kept, if not as redis_url says: {describe_stores()}.",
    )
    redis_url: str = Field(
        "",
        description="redis://, rediss:// or unix:// URL of a Redis or Valkey server that all "
        "managers share; without it, the manager runs one of its own in its data folder. Several "
        "managers need one that keeps what it has confirmed: appendonly yes, appendfsync always.",
    )
    password: str = Field(
        "",
        description="File with the server's password; by default $DYNATOPS_REDIS_PASSWORD. In the "
        "URL every user of the machine could read it.",
    )
    key_prefix: str = Field(
        "dynatops:manager:",
        min_length=1,
        max_length=200,
        description="Keys begin with this; managers of one network have the same.",
    )
    timeout_s: float = Field(
        1.0, gt=0, description="An answer that is not there by then is none: the store is away."
    )
    connections_max: int = Field(8, ge=2, description="Connections to the server.")
    plans_max: int = Field(
        1_000, ge=1, description="Plans kept; past it, the oldest that are over are forgotten."
    )
    audit_max: int = Field(
        100_000, ge=1, description="Audit entries kept; past it, the oldest are forgotten."
    )
    keys_max: int = Field(
        10_000, ge=1, description="Idempotency keys kept; past it, the oldest are forgotten."
    )

    @field_validator("url")
    @classmethod
    def _is_of_a_store(cls, value: str) -> str:
        if value and kind_of(value) is None:
            raise ValueError(unknown_store())
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and kind_of(value) is not REDIS:
            # Not the value: there may be a password in it.
            raise ValueError("write redis://host:port/0, rediss://host:port/0 or unix:///path")
        return value


class LeadershipSettings(BaseModel):
    """Which manager leads, and for how long without a word."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ttl_s: float = Field(
        4.0,
        gt=0,
        description="A leader that has not renewed its lease for so long leads no more, and "
        "another manager may. Longer: fewer false alarms; shorter: a crash is mended sooner.",
    )
    renew_s: float = Field(1.0, gt=0, description="How often the leader renews its lease.")
    margin_s: float = Field(
        0.5,
        gt=0,
        description="A leader that cannot renew stops so long before its lease ends.",
    )
    poll_s: float = Field(
        0.5, gt=0, description="How often the others look whether the lease is free."
    )

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.renew_s + self.margin_s >= self.ttl_s:
            raise ValueError("renew_s and margin_s must be shorter than ttl_s together")
        return self
