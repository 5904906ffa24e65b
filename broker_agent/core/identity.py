"""Who a broker is, and what it may be given besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_agent.core.access import Access
from broker_agent.core.selection_settings import SelectionSettings
from overlay.identifiers import first_node_id
from overlay.peers import Peer


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


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What a broker may be given besides; it runs without."""

    # The rules of who may do what; without them, everyone everything.
    access: Access | None = None
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    labels: Mapping[str, str] = field(default_factory=dict)
    # Rows for the lake that wait to be taken; 0: none are noted.
    logged_rows_max: int = 0
    # Whether sessions are to be saved: `unsaved` and `restore` are used.
    saving: bool = False
