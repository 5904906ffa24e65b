"""How brokers and managers of a network know each other: settings, and what their files hold.

Neither imports the other, so what both need to be believed is here.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynatops.kit.addresses import is_loopback, split_address
from dynatops.kit.security.tls import Tls, TlsFileError

_SECRET_CHARACTERS_MIN = 16


class CredentialsError(Exception):
    """A file cannot be used; the message says which, and why."""


class PeerSecurity(BaseModel):
    """Files are named here, and read when the process starts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tls_cert: str = Field(
        "",
        description="PEM file with the certificate, and those that lead to its authority; "
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
        description="The name that other brokers' and managers' certificates are for; by default "
        "the host of their address.",
    )
    require_client_certificates: bool = Field(
        False,
        description="Turn away clients, brokers and commands that show no certificate of tls_ca.",
    )
    peer_secret: str = Field(
        "",
        description="File with what all brokers and managers of the network know, 16 characters or "
        "more; those that do not are turned away. They show that they know it, and never say it. "
        "Any of its lines is believed, the first one is used.",
    )

    watch_s: float = Field(
        0.0,
        ge=0,
        description="How often to look whether the files of certificate, key and tokens have "
        "changed, and read them again then, as on SIGHUP. 0: on SIGHUP only.",
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

    def check_listening(self, listen: str, *, insecure: bool, danger: str) -> None:
        """Raises ValueError if strangers could reach the address; `danger`: what they could do."""
        missing = self.missing_beyond_loopback()
        if missing and not insecure and not is_loopback(split_address(listen)[0]):
            raise ValueError(
                f"listening on {listen} would let anyone who can reach it {danger}; "
                f"set {', and '.join(missing)}; or listen on 127.0.0.1; or say --insecure if the "
                "network is trusted"
            )

    def missing_beyond_loopback(self) -> list[str]:
        """What a network that anyone may reach asks for, and is not set."""
        missing: list[str] = []
        if not self.tls_cert:
            missing.append("security.tls_cert and security.tls_key")
        if not (self.peer_secret or self.require_client_certificates):
            missing.append("security.peer_secret (or security.require_client_certificates=true)")
        return missing


@dataclass(frozen=True, slots=True)
class LinkCredentials:
    """How they know each other: by certificates, by a secret, by both, or not at all."""

    tls: Tls | None = None
    # Any is believed, the first is used.
    secrets: tuple[str, ...] = ()

    @property
    def ask_for_proof(self) -> bool:
        return bool(self.secrets)

    def prove(self, words: bytes) -> bytes:
        """Empty without a secret."""
        return _proof(self.secrets[0], words) if self.secrets else b""

    def believe(self, words: bytes, proof: bytes) -> bool:
        """Whether a process that proves this is of this network."""
        if not self.secrets:
            return True
        # All are compared: which one it was must not show in how long it took.
        return bool(
            sum([hmac.compare_digest(_proof(known, words), proof) for known in self.secrets])
        )


def _proof(secret: str, words: bytes) -> bytes:
    return hmac.digest(secret.encode(), words, "sha256")


def read_link_credentials(settings: PeerSecurity) -> LinkCredentials:
    """Raises CredentialsError."""
    tls = None
    if settings.tls_cert:
        tls = Tls(
            ca=settings.tls_ca,
            cert=settings.tls_cert,
            key=settings.tls_key,
            server_name=settings.tls_server_name,
        )
        try:
            tls.check()
        except TlsFileError as error:
            raise CredentialsError(str(error)) from None
    return LinkCredentials(tls, _read_secrets(settings.peer_secret) if settings.peer_secret else ())


def _read_secrets(path: str) -> tuple[str, ...]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except UnicodeDecodeError:
        raise CredentialsError(f"the peer secret file {path} is not UTF-8") from None
    except OSError as error:
        problem = error.strerror
        raise CredentialsError(f"cannot read the peer secret file {path}: {problem}") from None
    if not lines or min(map(len, lines)) < _SECRET_CHARACTERS_MIN:
        raise CredentialsError(
            f"the peer secret file {path} must hold {_SECRET_CHARACTERS_MIN} characters or more in "
            "a line, and no spaces; `openssl rand -hex 32` makes a good one"
        )
    return tuple(lines)


class ServerCertificates:
    """What the server shows, and asks for. Files are read again when told."""

    def __init__(self, tls: Tls, *, require_client_certificates: bool) -> None:
        self._tls = tls
        self._requires = require_client_certificates
        self._shown = self._read()
        self._renewed: grpc.ServerCertificateConfiguration | None = None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (Path(self._tls.key).read_bytes(), Path(self._tls.cert).read_bytes())
        authorities = Path(self._tls.ca).read_bytes() if self._tls.ca else None
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def reload(self) -> None:
        """Show what the files hold now to the next that comes. Raises TlsFileError."""
        self._tls.check()
        self._renewed = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._shown,
            self._fetch,  # type: ignore[arg-type]  # the stubs do not know of None
            self._requires,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: as before."""
        renewed, self._renewed = self._renewed, None
        return renewed
