"""Two living brokers of one name: the second is not let in.

A ring takes whoever comes under a known name for its former life, restarted, and pushes that aside.
So before it says a word to the ring, a broker asks those that it is to join whether they have its
name or have seen it elsewhere, and asks there. Only a broker that answers, by itself and now, is
alive: one that crashed, hangs or is out of reach is in nobody's way.

Not here: a namesake that none of those asked has seen, in a large ring; the ring pushes it aside,
and it says so in its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker_agent.runtime.streams import METHOD, OutboundStream, PeerRefusedError, StreamBrokenError
from dynatops.v1.peer_pb2 import LinkFrame, LinkHello, LinkRefusal

if TYPE_CHECKING:
    from broker_agent.runtime.peers.links import Links

# Who takes longer to answer is not waited for.
ASK_TIMEOUT_S = 1.0
NAMESAKES_MAX = 8

log = logging.getLogger(__name__)


class _TakenError(Exception):
    """A broker of this name is alive."""


def answer(links: Links, asking: LinkHello) -> LinkFrame:
    """What a broker that is about to join is told."""
    host = links.host
    elsewhere = asking.address != host.address
    if asking.broker_id == host.broker_id and elsewhere and host.is_member():
        log.warning(
            "a second broker named %s, at %s, asked to join: refused, as this one is alive at %s",
            asking.broker_id, asking.address, host.address,
        )  # fmt: skip
        reason = (
            f"a broker named {host.broker_id} is alive at {host.address}: end that one, or start "
            "this one under another name (--broker-id)"
        )
        return LinkFrame(refusal=LinkRefusal(reason=reason, name_taken=True))
    hello = links.hello()
    seen = (one for one in host.namesakes(asking.broker_id) if one != asking.address)
    hello.namesakes.extend(list(dict.fromkeys(seen))[:NAMESAKES_MAX])
    return LinkFrame(hello=hello)


async def living_namesake(links: Links, seeds: Iterable[str]) -> str:
    """Why this broker may not join under its name; empty if it may."""
    here = links.host.address
    seeds = {seed for seed in seeds if seed != here}
    try:
        namesakes = await _ask_all(links, seeds)
        await _ask_all(links, namesakes - seeds - {here})
    except _TakenError as error:
        return str(error)
    return ""


async def _ask_all(links: Links, addresses: Iterable[str]) -> set[str]:
    """Where else the name was seen. Raises _TakenError as soon as one says so."""
    asking = [asyncio.create_task(_ask(links, address)) for address in sorted(addresses)]
    seen: set[str] = set()
    try:
        for answered in asyncio.as_completed(asking):
            seen |= await answered
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return seen


async def _ask(links: Links, address: str) -> set[str]:
    hello = links.hello()
    hello.asks_for_name = True
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            stream = OutboundStream(
                address, links.options, links.credentials.tls, METHOD, LinkFrame
            )
            try:
                frame = await links.greet(stream, address, hello)
            finally:
                stream.close()
    except (StreamBrokenError, TimeoutError, PeerRefusedError) as error:
        log.debug("nobody at %s says who has this name: %s", address, error)
        return set()
    if frame.refusal.name_taken:
        raise _TakenError(frame.refusal.reason)
    # Other refusals are met again when the broker joins, and told then.
    if not frame.HasField("hello"):
        return set()
    return set(frame.hello.namesakes[:NAMESAKES_MAX])
