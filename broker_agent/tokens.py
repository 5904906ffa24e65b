"""The tokens file (`dynatops.kit.security.tokens_file`), as rules for the core."""

from __future__ import annotations

from collections.abc import Iterable

from broker_agent.core.rights.access import Limits, TokenRules
from dynatops.kit.security.tokens_file import TokenEntry, parse_entries, read_entries


def read_tokens(path: str) -> list[TokenRules]:
    """Every token of the file. Raises TokensError."""
    return rules_of(read_entries(path))


def parse_tokens(text: str, path: str) -> list[TokenRules]:
    return rules_of(parse_entries(text, path))


def rules_of(entries: Iterable[TokenEntry]) -> list[TokenRules]:
    return [
        TokenRules(
            name=entry.name,
            sha256=entry.sha256,
            client_ids=entry.client_ids,
            claim_client_ids=entry.claim_client_ids,
            publish=entry.publish,
            subscribe=entry.subscribe,
            inspect=entry.inspect,
            limits=Limits(**entry.limits.model_dump()),
        )
        for entry in entries
    ]
