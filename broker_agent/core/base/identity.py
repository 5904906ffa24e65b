"""Who a broker is."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.base.identifiers import first_node_id
from overlay.base.peers import Peer


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

    @property
    def first_node(self) -> Peer:
        """The node that it begins with, as others know it."""
        return Peer(
            first_node_id(self.broker_id),
            self.broker_id,
            self.address,
            incarnation=self.incarnation,
        )
