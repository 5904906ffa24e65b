"""What a token may say of its owner: each right is declared here, and nowhere else.

A right is a field of `TokenRules`, a limit one of `TokenLimits`. Of its declaration are made: the
entry of the tokens file, and what is wrong with one (`tokens_file`); the options of `dynatops token
create`, and what `check` shows; the tables of docs/security.md; what is written down of it where a
broker is recorded. A core asks for it by its name, `grant.rights.NAME`
(`broker_agent/core/rights/access.py`), wherever it is to hold.

What kinds there are is said here, too; what each looks like in a file or on a command line, there.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final

from dynatops.kit.security.tokens import CLIENT_ID, Role

_KEY = "right"


class RightKind(enum.Enum):
    """What a right is written as."""

    # Patterns of client ids: `*` stands for any characters.
    CLIENT_IDS = enum.auto()
    # Patterns of topics, in which %c stands for the client's id.
    TOPICS = enum.auto()
    YES_OR_NO = enum.auto()
    ROLE = enum.auto()
    # Of limits: above 0, whole numbers above 0, and whole numbers from 0.
    RATE = enum.auto()
    COUNT = enum.auto()
    COUNT_OR_ZERO = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One right, as it is declared."""

    kind: RightKind
    # For docs/security.md.
    meaning: str
    # For `dynatops token create`.
    help: str
    # What stands for it where there are no tokens, and everybody may do everything.
    unlimited: Any = None
    # Whether `dynatops token check` has a column of it.
    shown: bool = True
    # Of limits: what they are of, for docs/security.md; and the field of the broker's settings that
    # is the least of it and of this.
    of: str = ""
    narrows: str = ""


def _topics(meaning: str, *, help: str) -> Any:  # noqa: A002  # what argparse calls it
    right = Right(kind=RightKind.TOPICS, meaning=meaning, help=help, unlimited=("#",))
    return field(default=(), metadata={_KEY: right})


def _flag(
    default: bool,
    meaning: str,
    *,
    help: str,  # noqa: A002
    unlimited: bool = True,
    shown: bool = True,
) -> Any:
    """`help` is of the option that says the opposite of the default."""
    kind = RightKind.YES_OR_NO
    right = Right(kind=kind, meaning=meaning, help=help, unlimited=unlimited, shown=shown)
    return field(default=default, metadata={_KEY: right})


def _limit(
    kind: RightKind,
    *,
    help: str,  # noqa: A002
    of: str,
    past_it: str,
    narrows: str = "",
) -> Any:
    right = Right(kind=kind, meaning=past_it, help=help, of=of, narrows=narrows)
    return field(default=None, metadata={_KEY: right})


_REFUSED: Final = "further ones are refused"
_TRIES_ANOTHER: Final = "refused; the client tries another broker"
_TOGETHER: Final = "all clients of the token together"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What a token's clients may use up on one broker; None: no limit but the broker's own."""

    publish_events_per_s: float | None = _limit(
        RightKind.RATE,
        help="events published a second",
        of=_TOGETHER,
        past_it="the broker reads no more from them until they may go on, so publishing slows "
        "down; a second's worth may come at once. What would have to wait longer than "
        "`core.throttle_wait_max_s` is refused",
    )
    publish_bytes_per_s: float | None = _limit(
        RightKind.RATE, help="bytes published a second", of=_TOGETHER, past_it="the same"
    )
    connections: int | None = _limit(
        RightKind.COUNT, help="connections at a time", of=_TOGETHER, past_it=_TRIES_ANOTHER
    )
    sessions: int | None = _limit(
        RightKind.COUNT,
        help="sessions at a time, with those that are kept",
        of="the same, with those that are kept for absent clients",
        past_it=_TRIES_ANOTHER,
    )
    subscriptions: int | None = _limit(
        RightKind.COUNT_OR_ZERO,
        help="subscriptions of a session",
        of="one session",
        past_it=_REFUSED,
        narrows="filters_per_session_max",
    )
    filters: int | None = _limit(
        RightKind.COUNT_OR_ZERO,
        help="subscriptions of all sessions",
        of="all sessions of the token together",
        past_it=_REFUSED,
    )
    topics: int | None = _limit(
        RightKind.COUNT,
        help="topics that are published on",
        of="topics that the token's clients publish on, and so its share of the "
        "[catalogue](protocol.md#the-catalogue). One that they leave alone for an hour does not "
        "count any more. Without: `core.topics_per_token_max`, 250,000",
        past_it="events on further ones are refused",
    )
    payload_bytes: int | None = _limit(
        RightKind.COUNT,
        help="bytes of one event",
        of="one event",
        past_it="refused",
        narrows="payload_bytes_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """One token of the file, and what it lets its owner do."""

    name: str
    # Of the token, in lower-case hexadecimal.
    sha256: str
    client_ids: tuple[str, ...] = field(
        default=("*",),
        metadata={
            _KEY: Right(
                kind=RightKind.CLIENT_IDS,
                meaning="client ids it is good for; `*` stands for anything",
                help="client ids it is for",
                unlimited=("*",),
            )
        },
    )
    claim_client_ids: bool = _flag(
        False,
        "its `client_ids` are for tokens that claim them alone: all others are refused those ids, "
        "at every broker with this file. They must be named then, not `*`",
        help="refuse the ids of --client-id to all tokens that do not claim them, on every broker",
        unlimited=False,
        # With the client ids.
        shown=False,
    )
    publish: tuple[str, ...] = _topics(
        "topics that may be published on, with `+` and `#`", help="topics that may be published on"
    )
    subscribe: tuple[str, ...] = _topics(
        "topics that may be subscribed to: one rule must cover all that a subscription may match, "
        "so `orders/+` allows `orders/7` and `orders/+`, not `orders/#`",
        help="topics that may be subscribed to",
    )
    inspect: bool = _flag(
        False,
        "look into brokers: `dynatops brokers`, `topics`, `tree`, `ring`, `sessions`, `tables`, "
        "`topology show`",
        help="allow looking into brokers: brokers, topics, …",
    )
    role: Role | None = field(
        default=None,
        metadata={
            _KEY: Right(
                kind=RightKind.ROLE,
                meaning="at [managers](manager.md#roles-and-tokens): `viewer`, `operator` or "
                "`admin`; at brokers in a tree `admin` may [change the topology]"
                "(trees.md#another-topology)",
                help="at managers: look, reconfigure, or change the policy too; at brokers in a "
                "tree `admin` may change the topology",
            )
        },
    )
    limits: TokenLimits = TokenLimits()

    @property
    def names_client(self) -> bool:
        return any(
            CLIENT_ID in pattern for name in _TOPIC_RIGHTS for pattern in getattr(self, name)
        )

    def allows_client(self, client_id: str) -> bool:
        return any(_id_pattern(pattern).fullmatch(client_id) for pattern in self.client_ids)

    def bound_to(self, client_id: str) -> TokenRules:
        """These, for one client."""
        if not self.names_client:
            return self
        bound: dict[str, Any] = {
            name: tuple(pattern.replace(CLIENT_ID, client_id) for pattern in getattr(self, name))
            for name in _TOPIC_RIGHTS
        }
        return replace(self, **bound)

    def check(self) -> None:
        """What of it goes with what. Raises ValueError."""
        if self.claim_client_ids and any(not pattern.strip("*") for pattern in self.client_ids):
            raise ValueError(
                "claim_client_ids keeps client_ids for this token alone: name them, not all of them"
            )


@lru_cache(maxsize=10_000)
def _id_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _declared(kind: type[TokenRules | TokenLimits]) -> Mapping[str, Right]:
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}


# By what the tokens file calls them.
RIGHTS: Final = _declared(TokenRules)
LIMITS: Final = _declared(TokenLimits)
DEFAULTS: Final = {each.name: each.default for each in fields(TokenRules) if each.name in RIGHTS}
_TOPIC_RIGHTS: Final = tuple(n for n, right in RIGHTS.items() if right.kind is RightKind.TOPICS)

# Of whoever has not been let in yet; and of everybody, where there are no tokens.
NOBODY: Final = TokenRules(name="", sha256="", client_ids=())
UNLIMITED: Final = TokenRules(
    name="", sha256="", **{name: right.unlimited for name, right in RIGHTS.items()}
)
