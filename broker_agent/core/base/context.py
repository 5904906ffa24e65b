"""What all parts of one broker share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.identity import Identity
from broker_agent.core.base.outbox import BrokerOutbox

if TYPE_CHECKING:
    from broker_agent.core.reports.logbook import Logbook
    from broker_agent.core.routing.confirming import Confirming
    from broker_agent.core.sessions.local_topics import LocalTopics
    from broker_agent.core.sessions.timings import Timings
    from broker_agent.core.sessions.unsaved import Unsaved


@dataclass(frozen=True, slots=True)
class BrokerContext:
    identity: Identity
    settings: CoreSettings
    rng: Random
    counters: BrokerCounters
    # What is to be done because of the present input.
    outbox: BrokerOutbox
    # What of the sessions has changed since it was last written to disk.
    unsaved: Unsaved
    # What happens here, for the lake.
    logbook: Logbook
    # What users subscribe to, for broker selection.
    local: LocalTopics
    # Who waits to hear that it is subscribed.
    confirming: Confirming
    # How long things take.
    timings: Timings
