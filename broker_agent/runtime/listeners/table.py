"""All ways in for clients. Another one is a door in `broker_agent.doors`, a listener here, and a
line in this table; its address is the setting `doors.NAME`, and what clients that come by it reach
the broker at is `advertised.NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from broker_agent.runtime.listeners.listener import ListenerKind
from broker_agent.runtime.listeners.rpc_server import RpcServer

# Where brokers and commands come in as well: what a broker is known by.
KNOWN_BY: Final = "grpc"
OUTSIDE: Final = "outside"

LISTENERS: Final[Mapping[str, ListenerKind]] = MappingProxyType(
    {
        KNOWN_BY: ListenerKind(RpcServer, "Clients, brokers and commands, with gRPC."),
        OUTSIDE: ListenerKind(
            lambda agent: RpcServer(agent, OUTSIDE),
            "Address to listen on for clients with gRPC that know brokers by other names than "
            "brokers know each other by, such as those outside a cluster; neither brokers nor "
            "commands come in there. By default there is none.",
        ),
    }
)


def describe_doors() -> Iterator[tuple[str, object, str]]:
    """(name, default, meaning) of each setting `doors.NAME`."""
    for name, kind in LISTENERS.items():
        if name != KNOWN_BY:
            yield f"doors.{name}", "", kind.meaning
            advertised = (
                f"Address that clients who come in by `doors.{name}` reach this broker at, and are "
                "told by other brokers; by default the one listened on. Its port may be a sum, "
                "such as 31400+2, for pods that know their number."
            )
            yield f"advertised.{name}", "", advertised
