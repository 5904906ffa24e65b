"""What a node is to its ring."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"
