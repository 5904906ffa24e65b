"""Encrypted connections to brokers: which files, and why one does not come about."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc


class TlsFileError(ValueError):
    """A file of a certificate or key cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """That a connection is encrypted, and how the two sides know each other. Files are PEM."""

    # Authorities whose brokers are believed; without it, the public ones.
    ca: str = ""
    # Where brokers ask for certificates: one's own, and its key.
    cert: str = ""
    key: str = ""
    # The name that the broker's certificate is for, where that is not the host of its address.
    server_name: str = ""

    def check(self) -> None:
        """Raise TlsFileError unless the files are there, and fit each other."""
        if bool(self.cert) != bool(self.key):
            raise TlsFileError("a certificate and its key go together: name both files, or neither")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca:
            _read("authorities", self.ca)
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError:
                raise TlsFileError(f"{self.ca} holds no certificates in PEM format") from None
        if self.cert:
            _read("certificate", self.cert)
            _read("key", self.key)
            try:
                # Without the word it would ask for a password at the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
            except ssl.SSLError as error:
                raise TlsFileError(self._misfit(error)) from None

    def _misfit(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {self.key} is not that of the certificate in {self.cert}"
        return (
            f"{self.cert} and {self.key} are no certificate and its key in PEM format, the key "
            "without a password"
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """What the files hold now. Raises TlsFileError."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read("authorities", self.ca) if self.ca else None,
            private_key=_read("key", self.key) if self.key else None,
            certificate_chain=_read("certificate", self.cert) if self.cert else None,
        )


def _read(what: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsFileError(f"cannot read the {what} file {path}: {error.strerror}") from None


def open_channel(
    address: str, tls: Tls | None, options: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """Raises TlsFileError."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


_CLOSED_AT_ONCE = (
    "it closed the connection at once: perhaps it speaks TLS (--tls-ca), or asks for a certificate "
    "that it can believe (--tls-cert, --tls-key)"
)
# What gRPC says (a part of it), and what that means.
_MEANINGS = (
    ("onnection refused", "connection refused: nobody listens there"),
    (
        "Hostname Verification",
        "its certificate is for another name; connect by that one, or name it (--tls-server-name)",
    ),
    ("certificate has expired", "its certificate has expired"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not from an authority that is believed here (ca, --tls-ca)",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; connect without"),
    ("Socket closed", _CLOSED_AT_ONCE),
)


def explain(details: str) -> str:
    """A failure to connect, in words that help."""
    connecting = "failed to connect" in details
    for part, meaning in _MEANINGS:
        if part in details and (connecting or part != "Socket closed"):
            return meaning
    return details
