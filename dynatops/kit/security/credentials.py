"""What a command shows to brokers, and how it is handed from process to process: by environment
variables, which other users of the machine cannot read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dynatops.kit.security.tls import Tls

TOKEN_VARIABLE = "DYNATOPS_TOKEN"  # noqa: S105  # its name, not its value
TLS_VARIABLE = "DYNATOPS_TLS"
# Fields of Tls and their variables.
TLS_FILE_VARIABLES = {
    "ca": "DYNATOPS_TLS_CA",
    "cert": "DYNATOPS_TLS_CERT",
    "key": "DYNATOPS_TLS_KEY",
    "server_name": "DYNATOPS_TLS_SERVER_NAME",
}
VARIABLES = (TOKEN_VARIABLE, TLS_VARIABLE, *TLS_FILE_VARIABLES.values())


@dataclass(frozen=True, slots=True)
class Credentials:
    token: str = ""
    tls: Tls | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        parts = {
            name: environment[variable]
            for name, variable in TLS_FILE_VARIABLES.items()
            if environment.get(variable)
        }
        encrypted = bool(parts) or environment.get(TLS_VARIABLE, "") not in ("", "0")
        return cls(environment.get(TOKEN_VARIABLE, ""), Tls(**parts) if encrypted else None)

    def as_environment(self) -> dict[str, str]:
        variables = dict.fromkeys(VARIABLES, "")
        variables[TOKEN_VARIABLE] = self.token
        if self.tls is not None:
            variables[TLS_VARIABLE] = "1"
            for name, variable in TLS_FILE_VARIABLES.items():
                variables[variable] = getattr(self.tls, name)
        return variables

    def options(self) -> dict[str, Any]:
        """For `dynatops.connect` and `Inspector`."""
        return {"token": self.token, "tls": self.tls}
