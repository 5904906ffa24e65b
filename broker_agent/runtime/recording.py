"""Where a broker's core is made: on a ring or in a tree, plain or with a log.

A plain core costs nothing for this: recording is a class of its own (`broker_agent.recording`).
"""

from __future__ import annotations

import random
import secrets
import time

from broker_agent.core.base.identity import Identity
from broker_agent.core.broker import Broker
from broker_agent.core.options import BrokerOptions
from broker_agent.core.rights.access import Access
from broker_agent.process_settings import BrokerSettings
from broker_agent.recording.keyed_random import KEY_BYTES
from broker_agent.recording.recorded_broker import RecordedBroker
from broker_agent.recording.records import RecordedOptions
from broker_agent.runtime.disk.learnt_topology import LearntTopology
from broker_agent.runtime.disk.stimulus_file import StimulusFile
from broker_agent.runtime.peers.topology_file import topology_of
from overlay.forwarding.topology import Topology


def make_core(
    settings: BrokerSettings,
    identity: Identity,
    options: BrokerOptions,
    learnt: LearntTopology | None = None,
) -> tuple[Broker, StimulusFile | None]:
    """Raises StimulusFileError, StartError."""
    overlay, core = settings.overlay, settings.core
    recorded = RecordedOptions.of(identity, overlay, core, options)
    if settings.topology:
        recorded = recorded.within(_topology(settings, identity, learnt), settings.forwarding)
    # Session ids and publisher numbers are drawn at random: nobody must be able to guess.
    if not settings.record.dir:
        return Broker(identity, recorded.routing(), core, random.SystemRandom(), options), None
    began_ms = time.time_ns() // 1_000_000
    file = StimulusFile(settings.record, began_ms)
    access = options.access or Access(core)
    key = secrets.token_bytes(KEY_BYTES)
    return RecordedBroker(recorded, access, key, file, began_ms, options.counters), file


def _topology(
    settings: BrokerSettings, identity: Identity, learnt: LearntTopology | None
) -> Topology:
    broker_id, address = identity.broker_id, identity.address
    if learnt is None:
        return topology_of(settings.topology, broker_id, address)
    return topology_of(settings.topology, broker_id, address, learnt.read(), str(learnt.path))
