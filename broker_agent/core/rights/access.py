"""Who may do what: the rules of a tokens file, and what they grant a client.

A token is looked up by its SHA-256; brokers never keep the token itself. What it grants is a
`Grant`, bound to one client id: `%c` in a rule stands for that id. A broker without a tokens file
lets everyone do everything, within the broker's own limits. What rights there are
(`dynatops.kit.security.token_rights`), reading the file (`tokens_file`), and counting what is used
(`gate`) are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from broker_agent.core.base.core_settings import CoreSettings
from dynatops.kit.filters.pattern import pattern_covers, pattern_matches
from dynatops.kit.security.token_rights import (
    LIMITS,
    NOBODY,
    UNLIMITED,
    TokenLimits,
    TokenRules,
)
from dynatops.kit.security.tokens import CLIENT_ID, Role, hash_of
from dynatops.v1.client_pb2 import ErrorCode

# In place of %c these would make a rule say more than was meant.
_UNFIT_IN_RULES = "+#/$\0"
_ID_CHARACTERS_SHOWN = 40


class RefusalReason(Enum):
    TOKEN_MISSING = auto()
    TOKEN_UNKNOWN = auto()
    CLIENT_ID_NOT_ALLOWED = auto()
    CLIENT_ID_UNFIT = auto()
    CLIENT_ID_TAKEN = auto()
    CLIENT_ID_CLAIMED = auto()
    TOO_MANY_SESSIONS = auto()
    TOO_MANY_CONNECTIONS = auto()
    MAY_NOT_INSPECT = auto()
    MAY_NOT_ADMINISTER = auto()
    RULES_CHANGED = auto()


_CODES = {
    RefusalReason.TOO_MANY_SESSIONS: ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS,
    RefusalReason.TOO_MANY_CONNECTIONS: ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS,
    RefusalReason.MAY_NOT_INSPECT: ErrorCode.ERROR_CODE_NOT_ALLOWED,
    RefusalReason.MAY_NOT_ADMINISTER: ErrorCode.ERROR_CODE_NOT_ALLOWED,
    # It may come again, and will be told which of its subscriptions it cannot have.
    RefusalReason.RULES_CHANGED: ErrorCode.ERROR_CODE_NOT_ALLOWED,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why someone is not let in, and what to do about it."""

    reason: RefusalReason
    message: str

    @property
    def code(self) -> ErrorCode.ValueType:
        return _CODES.get(self.reason, ErrorCode.ERROR_CODE_NOT_AUTHENTICATED)


def narrowed(settings: CoreSettings, limits: TokenLimits) -> CoreSettings:
    """The broker's bounds of a session, drawn closer where these limits are."""
    closer: dict[str, Any] = {}
    for name, limit in LIMITS.items():
        bound = getattr(limits, name)
        if limit.narrows and bound is not None:
            closer[limit.narrows] = min(bound, getattr(settings, limit.narrows))
    return replace(settings, **closer)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one client may do. `rules` is None where there are no tokens: everything. Where there
    are, they are bound to the client.

    `settings` are the broker's, drawn closer by the token's limits.
    """

    settings: CoreSettings
    rules: TokenRules | None = NOBODY

    @property
    def name(self) -> str:
        return self.rules.name if self.rules is not None else ""

    @property
    def rights(self) -> TokenRules:
        """Each right by its name, whether there are tokens or not."""
        return self.rules if self.rules is not None else UNLIMITED

    def may_publish(self, topic: str) -> bool:
        if self.rules is None:
            return True
        return any(pattern_matches(allowed, topic) for allowed in self.rules.publish)

    def may_subscribe(self, pattern: str) -> bool:
        """Whether one rule covers all that the pattern could match."""
        if self.rules is None:
            return True
        return any(pattern_covers(allowed, pattern) for allowed in self.rules.subscribe)


class Access:
    """All rules of a broker, at one moment. Immutable."""

    def __init__(self, settings: CoreSettings, tokens: Iterable[TokenRules] | None = None) -> None:
        """Without `tokens`, everyone may do everything; with none in it, nobody anything."""
        self._settings = settings
        self._by_hash = None if tokens is None else {rules.sha256: rules for rules in tokens}
        self._claiming = [r for r in (self._by_hash or {}).values() if r.claim_client_ids]
        self._everything = Grant(settings, None)
        # The same client comes back, and all without %c share one.
        self._bound_to = lru_cache(maxsize=10_000)(self._bind)

    @property
    def rules(self) -> tuple[TokenRules, ...] | None:
        """Of all tokens; None: none is asked for."""
        return tuple(self._by_hash.values()) if self._by_hash is not None else None

    @property
    def names(self) -> set[str]:
        """Of all tokens."""
        return {rules.name for rules in (self._by_hash or {}).values()}

    def authenticate(self, token: str, client_id: str) -> Grant | Refusal:
        rules = self._look_up(token)
        if rules is None:
            return self._everything
        if isinstance(rules, Refusal):
            return rules
        if not rules.allows_client(client_id):
            allowed = ", ".join(rules.client_ids)
            shown = client_id[:_ID_CHARACTERS_SHOWN]
            message = f"the token {rules.name!r} is for client ids {allowed}, not {shown!r}"
            return Refusal(RefusalReason.CLIENT_ID_NOT_ALLOWED, message)
        if self._is_claimed_from(rules, client_id):
            shown = client_id[:_ID_CHARACTERS_SHOWN]
            message = f"the client id {shown!r} is kept for the clients of another token"
            return Refusal(RefusalReason.CLIENT_ID_CLAIMED, message)
        return self._grant(rules, client_id)

    def _is_claimed_from(self, rules: TokenRules, client_id: str) -> bool:
        """Whether only clients of other tokens may have it. Several may claim it: one token takes
        the place of another for a while."""
        if rules.claim_client_ids:
            return False
        return any(other.allows_client(client_id) for other in self._claiming)

    def renew(self, grant: Grant, client_id: str) -> Grant | None:
        """What the client of a grant by former rules may do by these; None: nothing any more."""
        if self._by_hash is None:
            return self._everything
        rules = self._by_hash.get(grant.rules.sha256) if grant.rules is not None else None
        if rules is None or not rules.allows_client(client_id):
            return None
        if self._is_claimed_from(rules, client_id):
            return None
        renewed = self._grant(rules, client_id)
        return renewed if isinstance(renewed, Grant) else None

    def inspector(self, token: str) -> Refusal | None:
        """Why this token does not let its owner look into the broker; None if it does."""
        rules = self._look_up(token)
        if rules is None or isinstance(rules, Refusal):
            return rules
        if not rules.inspect:
            message = f"the token {rules.name!r} has no `inspect = true` in the tokens file"
            return Refusal(RefusalReason.MAY_NOT_INSPECT, message)
        return None

    def administrator(self, token: str) -> Refusal | None:
        """Why this token does not let its owner change the network; None if it does."""
        rules = self._look_up(token)
        if rules is None or isinstance(rules, Refusal):
            return rules
        if rules.role is not Role.ADMIN:
            message = f'the token {rules.name!r} has no `role = "admin"` in the tokens file'
            return Refusal(RefusalReason.MAY_NOT_ADMINISTER, message)
        return None

    def name_of(self, token: str) -> str:
        """Empty of one that is not known, and where none is asked for."""
        rules = self._look_up(token)
        return rules.name if isinstance(rules, TokenRules) else ""

    def _look_up(self, token: str) -> TokenRules | Refusal | None:
        if self._by_hash is None:
            return None
        if not token:
            message = "this broker asks for a token, and none was given"
            return Refusal(RefusalReason.TOKEN_MISSING, message)
        # How long this takes tells something about the hash of what was tried, and nothing about
        # any token.
        rules = self._by_hash.get(hash_of(token))
        if rules is None:
            return Refusal(RefusalReason.TOKEN_UNKNOWN, "this broker does not know the token")
        return rules

    def _grant(self, rules: TokenRules, client_id: str) -> Grant | Refusal:
        if not rules.names_client:
            return self._bound_to(rules, "")
        if not client_id or any(character in client_id for character in _UNFIT_IN_RULES):
            message = (
                f"the token {rules.name!r} has rules with {CLIENT_ID}; for these a client id must "
                f"not be empty nor contain any of + # / $; this one is "
                f"{client_id[:_ID_CHARACTERS_SHOWN]!r}"
            )
            return Refusal(RefusalReason.CLIENT_ID_UNFIT, message)
        return self._bound_to(rules, client_id)

    def _bind(self, rules: TokenRules, client_id: str) -> Grant:
        return Grant(narrowed(self._settings, rules.limits), rules.bound_to(client_id))
