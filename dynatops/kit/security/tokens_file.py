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
    role = "operator"                    # at managers; `admin` at brokers, too

What rights there are is declared in `token_rights`.

One file may serve brokers and managers: each takes what is meant for it. It holds hashes of tokens
only: whoever reads it cannot log in.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from dynatops.kit.filters.pattern import FilterError, check_pattern
from dynatops.kit.security.token_rights import (
    DEFAULTS,
    LIMITS,
    RIGHTS,
    RightKind,
    TokenLimits,
    TokenRules,
)
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


# What each kind of right is in the file.
_TYPES: Final[dict[RightKind, Any]] = {
    RightKind.CLIENT_IDS: tuple[str, ...],
    RightKind.TOPICS: tuple[_Rule, ...],
    RightKind.YES_OR_NO: bool,
    RightKind.ROLE: Role | None,
    RightKind.RATE: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
    RightKind.COUNT: Annotated[int, Field(gt=0)] | None,
    RightKind.COUNT_OR_ZERO: Annotated[int, Field(ge=0)] | None,
}
_STRICT: Final = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Entry(BaseModel):
    """One table of the file: what is in all of them; the rights are added to it below."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=200)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.rules().check()
        return self

    def rules(self) -> TokenRules:
        values = self.model_dump()
        return TokenRules(**values | {"limits": TokenLimits(**values["limits"])})


def _table_of_tokens() -> type[BaseModel]:
    """The whole file, from what is declared."""
    of_limits: dict[str, Any] = {name: (_TYPES[each.kind], None) for name, each in LIMITS.items()}
    limits = create_model("Limits", __config__=_STRICT, **of_limits)
    of_rights: dict[str, Any] = {
        name: (_TYPES[each.kind], DEFAULTS[name]) for name, each in RIGHTS.items()
    }
    of_rights["limits"] = (limits, limits())
    token: Any = create_model("Token", __base__=_Entry, **of_rights)
    every: dict[str, Any] = {"token": (tuple[token, ...], ())}
    return create_model("Tokens", __config__=_STRICT, **every)


_Tokens: Final[Any] = _table_of_tokens()


def read_tokens(path: str) -> tuple[TokenRules, ...]:
    """Every token of the file. Raises TokensError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TokensError(path, "it is not UTF-8") from None
    except OSError as error:
        raise TokensError(path, f"cannot be read: {error.strerror}") from None
    return parse_tokens(text, path)


def parse_tokens(text: str, path: str) -> tuple[TokenRules, ...]:
    try:
        tables = _Tokens.model_validate(tomllib.loads(text)).token
    except tomllib.TOMLDecodeError as error:
        raise TokensError(path, f"it is not TOML: {error}") from None
    except ValidationError as error:
        raise TokensError(path, "; ".join(_problems(error, text))) from None
    tokens = tuple(table.rules() for table in tables)
    for field in ("name", "sha256"):
        counts = Counter(getattr(token, field) for token in tokens)
        repeated = [value for value, count in counts.items() if count > 1]
        if repeated:
            raise TokensError(path, f"two tokens have the {field} {repeated[0]!r}")
    return tokens


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
