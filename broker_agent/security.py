"""The settings of who may come in: certificates, tokens, the secret of brokers."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SecuritySettings(BaseModel):
    """Files are named here, and read when the broker starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_cert: str = Field(
        "",
        description="PEM file with the broker's certificate, and those that lead to its authority; "
        "with it everything on the port is encrypted.",
    )
    tls_key: str = Field("", description="PEM file with the private key, without a password.")
    tls_ca: str = Field(
        "",
        description="PEM file with the authorities whose certificates are believed: other brokers' "
        "and, where they are required, clients'. Without it, the public ones are.",
    )
    tls_server_name: str = Field(
        "",
        description="The name that other brokers' certificates are for; by default the host of "
        "their address.",
    )
    require_client_certificates: bool = Field(
        False,
        description="Turn away whoever shows no certificate of tls_ca: clients, brokers, commands.",
    )
    tokens: str = Field(
        "", description="File with the tokens of clients; without it everyone may do everything."
    )
    peer_secret: str = Field(
        "",
        description="File with what all brokers of the network know, 16 characters or more; those "
        "that do not are turned away. Any of its lines is believed, the first one is said.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise ValueError(f"tls_cert and tls_key go together; set security.{missing} too")
        if not self.tls_cert and (self.tls_ca or self.tls_server_name):
            raise ValueError("nothing is encrypted: set security.tls_cert and security.tls_key too")
        if self.require_client_certificates and not self.tls_ca:
            raise ValueError(
                "require_client_certificates needs to know whose: set security.tls_cert, "
                "security.tls_key and security.tls_ca"
            )
        return self

    def missing_beyond_loopback(self) -> list[str]:
        """What a network that anyone may reach asks for, and is not set."""
        missing: list[str] = []
        if not self.tls_cert:
            missing.append("security.tls_cert and security.tls_key")
        if not self.tokens:
            missing.append("security.tokens")
        if not (self.peer_secret or self.require_client_certificates):
            missing.append("security.peer_secret (or security.require_client_certificates=true)")
        return missing
