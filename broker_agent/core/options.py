"""What a broker may be given besides its settings; it runs without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.rights.access import Access
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.stores.store_options import StoreOptions
from overlay.stores.past_settings import PastSettings


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
    # What is counted here: given by a driver that counts, too.
    counters: BrokerCounters | None = None
    # What makes it a store; None: it is none.
    store: StoreOptions | None = None
    # How the past is found in the network.
    past: PastSettings = field(default_factory=PastSettings)
    # Where clients that come by a further door reach this broker, by the door's name.
    doors: Mapping[str, str] = field(default_factory=dict)
