"""Becoming a member of a ring: the others let the broker in, or it founds one.

Brokers that are started together, each told of all, must agree on who founds: the first that they
are told of, once it has asked the others in vain. Should it be mistaken, because those of a ring
were out of reach, there are two rings for a while, as after a partition; it goes on asking.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from broker_agent.core.base.effects import BrokerEffect
from broker_agent.core.broker import Broker
from broker_agent.process_settings import BrokerSettings

log = logging.getLogger(__name__)


def may_found(settings: BrokerSettings, address: str) -> bool:
    """Whether the broker of this address founds a ring if nobody has one."""
    return settings.found_if_alone and settings.join[0] == address


async def joined(
    core: Broker,
    settings: BrokerSettings,
    perform: Callable[[Sequence[BrokerEffect]], None],
) -> bool:
    """Wait until the broker is a member; False if nobody let it in."""
    loop, runtime = asyncio.get_running_loop(), settings.runtime
    started_s = loop.time()
    founding = may_found(settings, core.identity.address)
    founding_s = started_s + runtime.alone_s if founding else math.inf
    while core.is_joining:
        if loop.time() >= founding_s:
            log.warning("nobody of a ring answers at %s: founding one", ", ".join(settings.join))
            perform(core.start(settings.join, loop.time(), founding=True))
        elif loop.time() > started_s + runtime.join_timeout_s:
            return False
        else:
            await asyncio.sleep(runtime.tick_s / 2)
    return True
