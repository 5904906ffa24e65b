"""The options with which commands say who they are, and whom they believe."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynatops.cli.errors import UsageError

if TYPE_CHECKING:
    from dynatops.kit.security.credentials import Credentials

_FILE_VARIABLE = "DYNATOPS_TOKEN_FILE"


def add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "access", "Each is also read from the environment: DYNATOPS_TOKEN, DYNATOPS_TLS_CA …"
    )
    token = group.add_mutually_exclusive_group()
    token.add_argument(
        "--token",
        metavar="TOKEN",
        help="who this is, where brokers ask; other users of this machine can see it",
    )
    token.add_argument("--token-file", metavar="FILE", help="the same, from a file")
    group.add_argument(
        "--tls", action="store_true", help="encrypt, and believe the public authorities"
    )
    group.add_argument(
        "--tls-ca", metavar="FILE", help="encrypt, and believe these authorities' brokers (PEM)"
    )
    group.add_argument(
        "--tls-cert", metavar="FILE", help="a certificate to show, where brokers ask (PEM)"
    )
    group.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    group.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="the name that brokers' certificates are for, if not the host of their address",
    )


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """What the options say, or else the environment. Raises UsageError."""
    from dynatops.kit.security.credentials import (
        TLS_FILE_VARIABLES,
        TLS_VARIABLE,
        TOKEN_VARIABLE,
        Credentials,
    )

    variables = dict(os.environ)
    token_file = arguments.token_file or variables.get(_FILE_VARIABLE, "")
    if arguments.token:
        variables[TOKEN_VARIABLE] = arguments.token
    elif arguments.token_file or (token_file and not variables.get(TOKEN_VARIABLE)):
        variables[TOKEN_VARIABLE] = _read_token(token_file)
    if arguments.tls:
        variables[TLS_VARIABLE] = "1"
    for name, variable in TLS_FILE_VARIABLES.items():
        if given := getattr(arguments, f"tls_{name}"):
            variables[variable] = given
    credentials = Credentials.from_environment(variables)
    if not credentials.token.isascii():
        raise UsageError("the token contains characters that no token has; is it complete?")
    return credentials


def access_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """For `dynatops.connect` and `Inspector`."""
    return credentials_of(arguments).options()


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {path}: it is not text") from None
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if not token:
        raise UsageError(f"--token-file {path}: it is empty")
    return token
