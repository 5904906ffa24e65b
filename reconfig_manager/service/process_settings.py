"""Everything that can be set about a manager process, validated when it starts.

`dynatops manager --set NAME=VALUE` and `dynatops settings --manager` are made from these models.
Those of the core are in `model/core_settings.py`, of the store and the lease in
`store/store_settings.py`, of the HTTP side in `rest/rest_settings.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dynatops.kit.addresses import split_address
from dynatops.kit.security.peer_credentials import PeerSecurity
from reconfig_manager.model.core_settings import ADVICE_TTL_S, ManagerSettings
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.store.store_settings import LeadershipSettings, StoreSettings

DEFAULT_PORT = 7470

# Settings that have another name now: what was meant is not to be dropped in silence.
_RENAMED = {("manager", "monitor", "advice_ttl_s"): "advice.ttl_s"}


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServiceSettings(_Group):
    """How the process deals with time, brokers' streams and the solver."""

    tick_s: float = Field(0.1, gt=0, le=1, description="How often the core looks at the time.")
    message_bytes_max: int = Field(
        32 << 20, gt=0, description="Largest message accepted from a broker."
    )
    unnamed_bytes_max: int = Field(
        64 << 20,
        gt=0,
        description="Memory for first messages of streams: as many that have not said which "
        "broker they are of are read from at a time as largest messages fit in. The others wait, "
        "and one that says nothing is ended for them.",
    )
    agent_queue_frames_max: int = Field(
        64,
        ge=2,
        description="Commands waiting for one broker; past it the newest is dropped, and repeated "
        "later.",
    )
    keepalive_s: float = Field(
        3.0,
        gt=0,
        description="A broker whose host has vanished, or whose process hangs, is noticed after "
        "twice this.",
    )
    records_max: int = Field(
        1_000,
        ge=1,
        description="Writes waiting for the store; past it, they fail, and are retried.",
    )
    audit_waiting_max: int = Field(
        1_000,
        ge=1,
        description="Audit entries waiting while the store is away; past it the oldest are lost, "
        "and counted.",
    )
    solver_start_s: float = Field(
        300.0, gt=0, description="The solver's process must be ready by then: compiling takes long."
    )
    solver_grace_s: float = Field(
        30.0, gt=0, description="A solver that is so long past its budget is ended, and failed."
    )


class RateAdviceSettings(_Group):
    """Publication rates computed by Spark, used while they are fresh (policy: `rates_from`)."""

    redis_url: str = Field(
        "", description="Where analytics write their advice; by default the store's server."
    )
    password: str = Field(
        "",
        description="File with the password of that server, where it is another than the store's.",
    )
    period_s: float = Field(15.0, gt=0, description="How often to look.")
    ttl_s: float = Field(
        ADVICE_TTL_S,
        gt=0,
        description="Rates computed longer ago are not used, nor those that Redis has forgotten; a "
        "new leader takes no older ones from the leader before.",
    )
    topics_max: int = Field(1_000_000, ge=1, description="More are not taken, and that is said.")


class ManagerProcessSettings(_Group):
    """One manager process."""

    manager_id: str = Field(
        "",
        max_length=200,
        pattern=r"^\S*$",
        description="Name of this manager, its own among those of the network. "
        "By default host name and port.",
    )
    listen: str = Field(
        f"127.0.0.1:{DEFAULT_PORT}",
        description="Address to listen on for brokers, host:port; port 0 takes any.",
    )
    advertise: str = Field(
        "",
        description="Address that brokers reach this manager at; by default the one listened on.",
    )
    data_dir: str = Field(
        "",
        description="Folder of this manager alone, where its own server keeps the state; needed "
        "unless store.url or store.redis_url names another place.",
    )
    insecure: bool = Field(
        False, description="Listen beyond loopback although not everyone is authenticated."
    )
    manager: ManagerSettings = Field(default_factory=ManagerSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    leadership: LeadershipSettings = Field(default_factory=LeadershipSettings)
    service: ServiceSettings = Field(default_factory=ServiceSettings)
    advice: RateAdviceSettings = Field(default_factory=RateAdviceSettings)
    rest: RestSettings = Field(default_factory=RestSettings)
    security: PeerSecurity = Field(default_factory=PeerSecurity)

    @model_validator(mode="before")
    @classmethod
    def _has_present_names(cls, values: Any) -> Any:
        for (*groups, name), present in _RENAMED.items():
            place = values
            for group in groups:
                place = place.get(group) if isinstance(place, dict) else None
            if isinstance(place, dict) and name in place:
                former = ".".join((*groups, name))
                raise ValueError(f"{former} is called {present} now: set that instead")
        return values

    @field_validator("listen", "advertise")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @model_validator(mode="after")
    def _has_a_store(self) -> Self:
        if sum(map(bool, (self.store.url, self.store.redis_url, self.data_dir))) != 1:
            raise ValueError(
                "name one place for the state: data_dir (--data-dir) for a server of this "
                "manager's own, store.redis_url (--redis) for one that is there, or store.url "
                "(--store) for any kind of store"
            )
        return self

    @property
    def store_url(self) -> str:
        """Where the state is kept, however that was said."""
        return self.store.url or self.store.redis_url or f"embedded:{self.data_dir}"

    @model_validator(mode="after")
    def _stays_private(self) -> Self:
        danger = "pass for a broker"
        self.security.check_listening(self.listen, insecure=self.insecure, danger=danger)
        return self


def default_manager_id(port: int) -> str:
    return f"{socket.gethostname()}:{port}"


def describe_settings() -> Iterator[tuple[str, object, str]]:
    """(name, default, meaning) of everything that `--set` takes."""
    for group in ("manager", "store", "leadership", "service", "advice", "rest", "security"):
        kind = ManagerProcessSettings.model_fields[group].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        yield from _describe(group, kind)


def _describe(group: str, kind: type[BaseModel]) -> Iterator[tuple[str, object, str]]:
    for name, info in kind.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _describe(f"{group}.{name}", info.annotation)
        else:
            yield f"{group}.{name}", info.default, info.description or ""
