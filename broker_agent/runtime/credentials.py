"""What a broker knows of itself and of whom it believes, read from the files that settings name."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

import grpc

from broker_agent.security import SecuritySettings
from dynatops.tls import Tls, TlsFileError

_SECRET_CHARACTERS_MIN = 16


class CredentialsError(Exception):
    """A file cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class LinkCredentials:
    """How brokers know each other: by certificates, by a secret, by both, or not at all."""

    tls: Tls | None = None
    # Any is believed, the first is said.
    secrets: tuple[str, ...] = ()

    @property
    def secret(self) -> str:
        return self.secrets[0] if self.secrets else ""

    def believes(self, secret: str) -> bool:
        """Whether whoever said this is a broker of this network."""
        if not self.secrets:
            return True
        said = secret.encode()
        # All are compared: which one it was must not show in how long it took.
        return bool(sum([hmac.compare_digest(known.encode(), said) for known in self.secrets]))


def read_link_credentials(settings: SecuritySettings) -> LinkCredentials:
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
        """Show what the files hold now to whoever comes next. Raises TlsFileError."""
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
