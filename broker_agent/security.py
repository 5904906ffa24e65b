"""The settings of who may come in: certificates, tokens, the secret of brokers."""

from __future__ import annotations

from pydantic import Field

from dynatops.kit.security.peer_credentials import PeerSecurity


class SecuritySettings(PeerSecurity):
    """Of a broker."""

    tokens: str = Field(
        "", description="File with the tokens of clients; without it everyone may do everything."
    )

    def missing_beyond_loopback(self) -> list[str]:
        missing = super().missing_beyond_loopback()
        if not self.tokens:
            missing.insert(0 if self.tls_cert else 1, "security.tokens")
        return missing
