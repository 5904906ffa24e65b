"""What answers have in common: shapes of the JSON that people and programs read.

What a resource answers stands in its module, with how it is made of what the manager says of
itself (`status.py`). Times are seconds since 1970, UTC; nodes are 16 hexadecimal digits; costs are
in messages for T_free.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class RestView(BaseModel):
    model_config = ConfigDict(frozen=True)


class PageView(RestView, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(description="Where the next page begins; null at the end.")
