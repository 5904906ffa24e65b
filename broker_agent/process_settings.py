"""Everything that can be set about a broker process, validated when it starts.

`dynatops broker --set NAME=VALUE` and `dynatops settings` are made from these models.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.selection.cluster_names import LATITUDE, LONGITUDE, coordinates
from broker_agent.core.selection.selection_settings import AdviceSettings, SelectionSettings
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.retention_text import retention_rules
from broker_agent.security import SecuritySettings
from dynatops.kit.addresses import split_address
from dynatops.kit.filters import Filter
from dynatops.lake.lake_settings import LakeSettings
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.stores.past_settings import PastSettings

DEFAULT_PORT = 7400
_SUM = re.compile(r"(.+:)(\d+)\+(\d+)")
# What is listened on, and cannot be connected to from elsewhere.
_ANY_HOST = ("0.0.0.0", "::")  # noqa: S104


class RuntimeSettings(BaseModel):
    """How the process deals with time, connections and its own end."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tick_s: float = Field(0.05, gt=0, le=1, description="How often the core looks at the time.")
    join_timeout_s: float = Field(
        15.0, gt=0, description="The broker gives up if no seed has let it join by then."
    )
    alone_s: float = Field(
        5.0,
        gt=0,
        description="A broker that may found a ring (`--found-if-alone`) does so when none of a "
        "ring has answered for this long. Should there be one after all, they find together.",
    )
    link_queue_bytes_max: int = Field(
        64 << 20,
        gt=0,
        description="Bytes waiting for one other broker; past it, the newest frames are dropped. "
        "What they carried is asked for again.",
    )
    links_max: int = Field(
        4_096,
        gt=0,
        description="Other brokers that there are links with at a time; frames for further ones "
        "are dropped, and their streams refused.",
    )
    link_frame_bytes_max: int = Field(
        1 << 20, gt=0, description="Frames to one broker are put together up to this size."
    )
    link_backoff_min_s: float = Field(0.05, gt=0, description="First pause before reconnecting.")
    link_backoff_max_s: float = Field(
        2.0, gt=0, description="Longest pause before reconnecting; pauses double, and are jittered."
    )
    link_patience_s: float = Field(
        5.0, gt=0, description="Frames for a broker that cannot be reached are dropped after this."
    )
    link_idle_s: float = Field(
        60.0, gt=0, description="A link that carried nothing for this long is closed."
    )
    keepalive_s: float = Field(
        5.0,
        gt=0,
        description="A link with a broker whose host has vanished, or whose process hangs, is "
        "given up after twice this.",
    )
    client_keepalive_s: float = Field(
        30.0,
        gt=0,
        description="The same for connections of clients, which are many: their sessions count as "
        "absent from then on.",
    )
    session_flush_s: float = Field(
        0.25,
        gt=0,
        description="Sessions are saved this often, if at all (`--data-dir`). What a client "
        "confirms sooner is never written; what a crash leaves unwritten is read again.",
    )
    session_unsaved_s: float = Field(
        10.0,
        gt=0,
        description="A broker whose disk takes no sessions for this long says that it is not ready "
        "(`/readyz`): clients that come anew had better go elsewhere.",
    )
    session_frame_bytes_max: int = Field(
        256 << 10, gt=0, description="Events to one client are put together up to this size."
    )
    drain_timeout_s: float = Field(
        5.0, gt=0, description="On shutdown, clients get this long to take what is queued for them."
    )
    message_bytes_max: int = Field(
        32 << 20, gt=0, description="Largest message accepted from the network at all."
    )
    unnamed_bytes_max: int = Field(
        64 << 20,
        gt=0,
        description="Memory for first messages, of strangers that pose as clients, and as much "
        "for those that pose as brokers: as many streams without a hello are read from at a time "
        "as largest messages fit in. The others wait, and one that says nothing is ended for them.",
    )
    connection_idle_s: float = Field(
        60.0, gt=0, description="A connection without any stream is closed after this."
    )


class ManagerLinkSettings(BaseModel):
    """The reconfiguration managers of the network."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    addresses: tuple[str, ...] = Field(
        (),
        description="Addresses of reconfiguration managers, with commas between them (`--manager`);"
        " the broker keeps a stream to the one that leads. Without any it is never moved.",
    )
    backoff_min_s: float = Field(0.2, gt=0, description="First pause before the next one is asked.")
    backoff_max_s: float = Field(
        2.0, gt=0, description="Longest pause; pauses double, and are jittered."
    )

    @field_validator("addresses", mode="before")
    @classmethod
    def _are_split(cls, value: object) -> object:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if split_address(address)[1] == 0:
                raise ValueError(f"{address!r} has port 0, which nobody can ask")
        return value


class HttpSettings(BaseModel):
    """Probes and metrics, for the operators of the process. There is nothing secret in them, and
    nothing that changes anything: no token is asked for, and no TLS spoken."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    listen: str = Field(
        "",
        description="Address to answer `/livez`, `/readyz` and `/metrics` at, host:port (`--http`);"
        " port 0 takes any. By default nobody is answered.",
    )
    connections_max: int = Field(
        256,
        gt=0,
        description="Connections at once; past it the oldest one, of the address with most, is "
        "closed for the next, so that probes are always answered.",
    )
    request_bytes_max: int = Field(
        8192, ge=256, description="Largest request; a larger one is answered 400."
    )
    late_max_s: float = Field(
        10.0,
        gt=0,
        description="`/livez` answers 503 when the broker has not looked at the time for this long,"
        " which it should every `runtime.tick_s`: something keeps it busy, or stands still. A "
        "machine that is short of time makes it late by a second or two.",
    )
    timeout_s: float = Field(
        5.0, gt=0, description="A request must be there by then, and its answer taken in as much."
    )

    @field_validator("listen")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value


class RecordSettings(BaseModel):
    """A log of all that the core is told, to be replayed: `dynatops replay`. Payloads are in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dir: str = Field(
        "",
        description="Folder of this broker alone, where all that its core is told is written down, "
        "a file for each start, for `dynatops replay`; payloads and what clients publish under are "
        "in it, tokens are not. Empty: nothing is recorded, which costs nothing.",
    )
    bytes_max: int = Field(
        64 << 20,
        gt=0,
        description="Length of a file, compressed; past it the rest is not recorded. A file is "
        "whole from the broker's start on, as nothing else can be replayed.",
    )
    files_max: int = Field(
        4, gt=0, description="Files in the folder; before another is begun, the oldest are removed."
    )


class KeepingSettings(BaseModel):
    """A store: a broker that keeps events on its disk, for publishers that want them `stored`, and
    for whoever asks for the past."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    keep: tuple[str, ...] = Field(
        (),
        description="Topics that this broker keeps on its disk, with commas between them (`--store`"
        "); + and # stand for any. Without any it is no store.",
    )
    dir: str = Field(
        "",
        description="Folder of this broker alone, for what it keeps; by default `store` in its "
        "`data_dir`.",
    )
    capacity: int = Field(
        0,
        ge=0,
        le=100_000,
        description="How many topics a manager may have this broker keep (L): then it is a store "
        "even if `keep` names none, and `keep` is only what it begins with. 0: it keeps what its "
        "settings say, and nobody else has a say in it.",
    )
    retain: str = Field(
        "",
        description="How much of that is kept: `quake/# age=7d bytes=10GB; devices/+/state last; # "
        "events=1000000`. Of each topic the first rule counts whose pattern matches; `last` keeps "
        "only its last event, `last=NAME` the last for each value of that attribute. What no rule "
        "is about is kept for good.",
    )

    @property
    def is_store(self) -> bool:
        return bool(self.keep or self.capacity)

    @field_validator("retain")
    @classmethod
    def _are_rules(cls, value: str) -> str:
        retention_rules(value)
        return value

    @field_validator("keep", mode="before")
    @classmethod
    def _are_split(cls, value: object) -> object:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("keep")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            # A FilterError is a ValueError, and says what is wrong.
            Filter.parse(pattern)
        return value


class BrokerSettings(BaseModel):
    """One broker process."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    broker_id: str = Field(
        "",
        max_length=200,
        description="Stable name of the broker; its first ring position is made from it. "
        "By default host name and port.",
    )
    listen: str = Field(
        f"127.0.0.1:{DEFAULT_PORT}",
        description="Address to listen on, host:port; port 0 takes any.",
    )
    advertise: str = Field(
        "", description="Address that others reach this broker at; by default the one listened on."
    )
    join: tuple[str, ...] = Field(
        (),
        description="Addresses of brokers of the ring to join; without any, a new ring is founded.",
    )
    found_if_alone: bool = Field(
        False,
        description="Found a ring if no broker of `join` has one, and this broker is the first of "
        "`join`: the same for all brokers, so that one founds and the others wait for it.",
    )
    topology: str = Field(
        "",
        description="File with the tree of brokers that events are forwarded in, YAML or JSON, and "
        "this broker among them. By default brokers are a ring.",
    )
    pid_file: str = Field(
        "",
        description="File to write the process number to, and to lock while the broker is of the "
        "ring: `dynatops leave` needs it.",
    )
    data_dir: str = Field(
        "",
        description="Folder of this broker alone, where sessions are kept that outlive their "
        "connections; without one they end with the broker.",
    )
    insecure: bool = Field(
        False, description="Listen beyond loopback although not everyone is authenticated."
    )
    overlay: OverlaySettings = Field(default_factory=OverlaySettings)
    forwarding: ForwardingSettings = Field(default_factory=ForwardingSettings)
    core: CoreSettings = Field(default_factory=CoreSettings)
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    selection: SelectionSettings = Field(default_factory=SelectionSettings)
    advice: AdviceSettings = Field(default_factory=AdviceSettings)
    manager: ManagerLinkSettings = Field(default_factory=ManagerLinkSettings)
    lake: LakeSettings = Field(default_factory=LakeSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    store: KeepingSettings = Field(default_factory=KeepingSettings)
    eventlog: LogSettings = Field(default_factory=LogSettings)
    past: PastSettings = Field(default_factory=PastSettings)
    doors: dict[str, str] = Field(
        default_factory=dict,
        description="Further ways in for clients, by name, and the address that each listens on.",
    )
    advertised: dict[str, str] = Field(
        default_factory=dict,
        description="Of those, the addresses that clients who come in there reach this broker at; "
        "by default the one listened on. A port may be a sum, such as 31400+2.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="What is known of the broker, such as region, latitude and longitude.",
    )

    @field_validator("labels")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        if LATITUDE in value and LONGITUDE in value:
            coordinates(value)
        return value

    @field_validator("listen", "advertise")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @field_validator("advertised", mode="before")
    @classmethod
    def _have_sums(cls, value: object) -> object:
        """A pod that knows its number has a port of its own: host:31400+2."""
        if not isinstance(value, dict):
            return value
        return {name: _with_sum(address) for name, address in value.items()}

    @field_validator("doors", "advertised")
    @classmethod
    def _have_addresses(cls, value: dict[str, str]) -> dict[str, str]:
        for address in value.values():
            split_address(address)
        return value

    @field_validator("join")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if split_address(address)[1] == 0:
                raise ValueError(f"{address!r} has port 0, which nobody can join")
        return value

    @model_validator(mode="after")
    def _knows_who_is_first(self) -> Self:
        if self.found_if_alone and not self.join:
            raise ValueError(
                "found_if_alone (--found-if-alone) needs to know who else there may be: name all, "
                "this broker too, with --join; the first of them founds the ring"
            )
        return self

    @model_validator(mode="after")
    def _is_of_a_ring_or_a_tree(self) -> Self:
        if not self.topology:
            return self
        if self.join or self.found_if_alone:
            raise ValueError(
                "topology says who is next to whom: leave out join (--join, --found-if-alone), "
                "which is for brokers of a ring"
            )
        if self.manager.addresses:
            raise ValueError(
                "a manager moves brokers on a ring: leave out topology, or manager.addresses"
            )
        return self

    @model_validator(mode="after")
    def _has_a_folder_for_what_it_keeps(self) -> Self:
        if self.store.is_store and not (self.store.dir or self.data_dir):
            raise ValueError(
                "a store needs a folder: name one as data_dir (--data-dir), or as store.dir"
            )
        return self

    @model_validator(mode="after")
    def _stays_private(self) -> Self:
        danger = "publish and subscribe"
        for address in (self.listen, *self.doors.values()):
            self.security.check_listening(address, insecure=self.insecure, danger=danger)
        return self

    @model_validator(mode="after")
    def _is_reached_by_its_doors(self) -> Self:
        for name in self.advertised:
            if name not in self.doors:
                raise ValueError(f"advertised.{name} needs doors.{name}: where that listens")
        for name, address in self.doors.items():
            if name not in self.advertised and split_address(address)[0] in _ANY_HOST:
                raise ValueError(
                    f"doors.{name} listens on {address}, which is nobody's address: set "
                    f"advertised.{name} to the one that its clients reach this broker at"
                )
        return self


# What `--set` takes something of.
SETTING_GROUPS: Final = tuple(
    name
    for name, field in BrokerSettings.model_fields.items()
    # Labels have an option of their own.
    if field.default_factory is not None and name != "labels"
)


def _with_sum(address: object) -> object:
    found = _SUM.fullmatch(address) if isinstance(address, str) else None
    return f"{found[1]}{int(found[2]) + int(found[3])}" if found is not None else address


def default_broker_id(port: int) -> str:
    return f"{socket.gethostname()}:{port}"


# Those that `--set` takes something of, in the order of the reference.
_DESCRIBED: Final[Mapping[str, type]] = MappingProxyType(
    {
        "overlay": OverlaySettings,
        "forwarding": ForwardingSettings,
        "core": CoreSettings,
        "selection": SelectionSettings,
        "advice": AdviceSettings,
        "runtime": RuntimeSettings,
        "manager": ManagerLinkSettings,
        "store": KeepingSettings,
        "eventlog": LogSettings,
        "past": PastSettings,
        "lake": LakeSettings,
        "http": HttpSettings,
        "record": RecordSettings,
        "security": SecuritySettings,
    }
)


def describe_settings() -> Iterator[tuple[str, object, str]]:
    """(name, default, meaning) of everything that `--set` takes."""
    for group, kind in _DESCRIBED.items():
        if issubclass(kind, BaseModel):
            for name, info in kind.model_fields.items():
                yield f"{group}.{name}", info.default, info.description or ""
        elif is_dataclass(kind):
            for field in fields(kind):
                yield f"{group}.{field.name}", field.default, field.metadata["doc"]
