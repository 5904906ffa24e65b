"""Who a broker is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is. A restart is a new incarnation."""

    broker_id: str
    address: str
    incarnation: int

    @property
    def life(self) -> str:
        """The name of this life: no two brokers, and no two lives of one, have the same."""
        return f"{self.broker_id}/{self.incarnation:x}"
