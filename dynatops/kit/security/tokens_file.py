"""The tokens file: what a person writes, checked.

    [[token]]
    name = "sensors"
    sha256 = "…"                         # `dynatops token create` makes it
    client_ids = ["sensor-*"]
    publish = ["quake/%c/#"]
    subscribe = []
    limits = { publish_events_per_s = 100 }

    [[token]]
    name = "night shift"
    sha256 = "…"
    role = "operator"                    # of managers; brokers do not look at it

One file may serve brokers and managers: each takes what is meant for it. It holds hashes of tokens
only: whoever reads it cannot log in.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from dynatops.kit.filters.pattern import FilterError, check_pattern
from dynatops.kit.security.tokens import CLIENT_ID, Role


class TokensError(Exception):
    """The tokens file cannot be used; the message says where, and what is wrong."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"tokens file {path}: {problem}")


def _rule(pattern: str) -> str:
    """A pattern in which %c may stand for part of a level."""
    try:
        check_pattern(pattern.replace(CLIENT_ID, "client"))
    except FilterError as error:
        raise ValueError(str(error)) from None
    return pattern


_Rule = Annotated[str, AfterValidator(_rule)]


class TokenLimits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    publish_events_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    publish_bytes_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    connections: int | None = Field(None, gt=0)
    sessions: int | None = Field(None, gt=0)
    subscriptions: int | None = Field(None, ge=0)
    filters: int | None = Field(None, ge=0)
    topics: int | None = Field(None, gt=0)
    payload_bytes: int | None = Field(None, gt=0)


class TokenEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=200)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    client_ids: tuple[str, ...] = ("*",)
    claim_client_ids: bool = False
    publish: tuple[_Rule, ...] = ()
    subscribe: tuple[_Rule, ...] = ()
    inspect: bool = False
    limits: TokenLimits = TokenLimits()
    role: Role | None = None

    @model_validator(mode="after")
    def _claims_some_ids(self) -> Self:
        if self.claim_client_ids and any(not pattern.strip("*") for pattern in self.client_ids):
            raise ValueError(
                "claim_client_ids keeps client_ids for this token alone: name them, not all of them"
            )
        return self


class _TokensTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    token: tuple[TokenEntry, ...] = ()


def read_entries(path: str) -> tuple[TokenEntry, ...]:
    """Every token of the file. Raises TokensError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TokensError(path, "it is not UTF-8") from None
    except OSError as error:
        raise TokensError(path, f"cannot be read: {error.strerror}") from None
    return parse_entries(text, path)


def parse_entries(text: str, path: str) -> tuple[TokenEntry, ...]:
    try:
        entries = _TokensTable.model_validate(tomllib.loads(text)).token
    except tomllib.TOMLDecodeError as error:
        raise TokensError(path, f"it is not TOML: {error}") from None
    except ValidationError as error:
        raise TokensError(path, "; ".join(_problems(error, text))) from None
    for field in ("name", "sha256"):
        counts = Counter(getattr(entry, field) for entry in entries)
        repeated = [value for value, count in counts.items() if count > 1]
        if repeated:
            raise TokensError(path, f"two tokens have the {field} {repeated[0]!r}")
    return entries


def _problems(error: ValidationError, text: str) -> Iterator[str]:
    """Each problem with the name of its token, where it has one."""
    tables = tomllib.loads(text).get("token")
    for problem in error.errors():
        where = list(problem["loc"])
        if len(where) > 1 and isinstance(tables, list) and isinstance(where[1], int):
            table = tables[where[1]]
            name = table.get("name") if isinstance(table, dict) else None
            where[:2] = [f"token {name!r}" if name else f"token number {where[1] + 1}"]
        message = problem["msg"].removeprefix("Value error, ")
        yield f"{', '.join(map(str, where))}: {message[:1].lower()}{message[1:]}"
