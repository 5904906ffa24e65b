"""What brokers, managers and commands agree on about tokens."""

from __future__ import annotations

import enum
from hashlib import sha256

# Stands for the client's id in the rules of a token.
CLIENT_ID = "%c"


class Role(enum.StrEnum):
    """What a token's owner may do at a manager, and to a tree of brokers; each may what those
    before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = tuple(Role)
        return order.index(self) >= order.index(other)


def hash_of(token: str) -> str:
    """What is kept of a token."""
    # Tokens are made of 32 random bytes: nothing slower than this is needed to protect them.
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
