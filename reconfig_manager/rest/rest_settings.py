"""Settings of the HTTP side of a manager: where it listens, whom it lets in, and its bounds."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dynatops.kit.addresses import is_loopback, split_address

DEFAULT_PORT = 7480


class RestSettings(BaseModel):
    """Files are named here, and read when the manager starts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    listen: str = Field(
        f"127.0.0.1:{DEFAULT_PORT}",
        description="Address to serve HTTP at, host:port; port 0 takes any.",
    )
    advertise: str = Field(
        "",
        description="URL that this manager is reached at, to which others redirect while it leads; "
        "by default made of the address listened on.",
    )
    forward: bool = Field(
        False,
        description="While another manager leads, ask it on the client's behalf, and do not "
        "redirect there: for managers that clients reach by one address only.",
    )
    leader_ca: str = Field(
        "",
        description="PEM file with the authorities by which the leader's certificate is believed, "
        "where requests are forwarded; by default the public ones.",
    )
    leader_name: str = Field(
        "", description="The name that it is for; by default the host of the leader's URL."
    )
    tls_cert: str = Field("", description="PEM file with the certificate; with it HTTPS is spoken.")
    tls_key: str = Field("", description="PEM file with its private key, without a password.")
    tokens: str = Field(
        "",
        description="The tokens file; those with a role are let in. Without it everyone may do "
        "everything, who can reach the address.",
    )
    insecure: bool = Field(
        False, description="Listen beyond loopback although not everyone is authenticated."
    )
    body_bytes_max: int = Field(
        65_536, ge=1, description="Largest request body; larger ones are refused."
    )
    body_timeout_s: float = Field(10.0, gt=0, description="A body must have arrived by then.")
    connections_max: int = Field(
        1_000,
        ge=10,
        description="Connections at once; past it the oldest one that asks for nothing, of the "
        "address with most, is closed for the next. Where nine of ten are being answered, further "
        "requests are answered 503, and probes go on.",
    )
    head_bytes_max: int = Field(
        16_384, ge=1_024, description="Largest head of a request; larger ones are answered 400."
    )
    request_timeout_s: float = Field(
        10.0,
        gt=0,
        description="The head of a request must be there by then, counted from the beginning of "
        "the connection or its last answer; the connection is closed otherwise.",
    )
    answer_timeout_s: float = Field(
        30.0,
        gt=0,
        description="A connection that takes nothing of its answer for so long is closed.",
    )
    watchers_max: int = Field(
        100, ge=1, description="Streams of events at once; further ones are turned away."
    )
    caller_watchers_max: int = Field(
        10,
        ge=1,
        description="Of these, by one token, or without tokens from one address; further ones are "
        "answered 429.",
    )
    watcher_events_max: int = Field(
        1_000, ge=1, description="Events waiting for one watcher; past it, its stream is ended."
    )
    events_kept: int = Field(
        2_000, ge=0, description="Events kept for watchers that come back after a broken stream."
    )
    late_max_s: float = Field(
        15.0,
        gt=0,
        description="`healthz` answers 503 when the manager has not looked at the time for this "
        "long, which it should every `service.tick_s`. Compiling and reading a large state take "
        "seconds.",
    )
    keepalive_s: float = Field(
        15.0, gt=0, description="A quiet stream of events carries a comment this often."
    )
    watch_max_s: float = Field(
        3_600.0, gt=0, description="A stream of events is ended after this; watchers come back."
    )
    idempotency_ttl_s: float = Field(
        86_400.0, gt=0, description="An Idempotency-Key is remembered for this long."
    )

    @field_validator("listen")
    @classmethod
    def _is_address(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("advertise")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is no URL; write http://host:port or https://host:port")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _stays_private(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together; set the other one too")
        missing = [
            name
            for name, value in (("tls_cert and tls_key", self.tls_cert), ("tokens", self.tokens))
            if not value
        ]
        if missing and not self.insecure and not self.on_loopback:
            raise ValueError(
                f"listening on {self.listen} would let anyone who can reach it reconfigure the "
                f"network; set {' and '.join(missing)}; or listen on 127.0.0.1; or set insecure "
                "if the network is trusted"
            )
        return self

    @property
    def requests_max(self) -> int:
        """Requests being answered at once. The other connections are for requests to come."""
        return self.connections_max * 9 // 10

    @property
    def on_loopback(self) -> bool:
        return is_loopback(split_address(self.listen)[0])

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"
