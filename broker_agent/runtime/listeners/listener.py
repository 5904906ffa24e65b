"""Where clients come in: a listener for each kind of them, begun and ended together.

A listener takes an address, and gives each connection to `Agent.serve_client`, as a `ClientWire`
and with the door of its kind (`broker_agent.doors`). How a connection notices that nobody is at its
other end any more is the listener's affair, too. All else is the same for all clients, whichever
way they came: who may be read from first, what waits for a client that is slow, what is counted,
and how a broker that leaves takes leave of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from broker_agent.process_settings import BrokerSettings
from dynatops.kit.addresses import join_address, split_address
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.kit.serving.start_errors import StartError

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent


class Listener(Protocol):
    def bind(self, address: str, credentials: LinkCredentials) -> int | None:
        """Take the address; the port, or None if it cannot be had. Nobody is let in yet."""

    async def start(self) -> None:
        """Let clients in."""

    def reload_certificates(self) -> None:
        """Show what the files hold now. Raises TlsFileError."""

    async def stop(self) -> None:
        """Let nobody in any more, and end whoever is still there. It may never have begun."""


@dataclass(frozen=True, slots=True)
class ListenerKind:
    make: Callable[[Agent], Listener]
    # For the reference: what is set with `doors.NAME`.
    meaning: str


class Listeners:
    """All of a broker: the one that it is known by (`listen`), and those of `doors`."""

    def __init__(self, agent: Agent, kinds: Mapping[str, ListenerKind], known_by: str) -> None:
        self._agent = agent
        self._kinds = kinds
        self._known_by = known_by
        self._listeners: dict[str, Listener] = {}
        # Where each listens, once it is bound.
        self.addresses: dict[str, str] = {}
        self.are_open = False

    @property
    def address(self) -> str:
        """Of the one that the broker is known by."""
        return self.addresses[self._known_by]

    @property
    def others(self) -> dict[str, str]:
        """Where those listen that it is not known by."""
        return {name: at for name, at in self.addresses.items() if name != self._known_by}

    def advertised(self, names: Mapping[str, str]) -> dict[str, str]:
        """Where clients reach them that the broker is not known by: as `names` say, or where they
        listen."""
        return {door: names.get(door, at) for door, at in self.others.items()}

    async def bind(self, settings: BrokerSettings, credentials: LinkCredentials) -> None:
        """Take all addresses, or none. Raises StartError."""
        further = [name for name in self._kinds if name != self._known_by]
        for name in settings.doors:
            if name not in further:
                there_are = f"there are {', '.join(further)}" if further else "there is none"
                raise StartError(f"doors.{name}: no further door has this name; {there_are}")
        for name, address in {self._known_by: settings.listen, **settings.doors}.items():
            listener = self._kinds[name].make(self._agent)
            port = listener.bind(address, credentials)
            if port is None:
                await self.stop()
                raise StartError(
                    f"cannot listen on {address}: the port is in use, or the address is not "
                    "this host's; choose another"
                )
            self._listeners[name] = listener
            host, _ = split_address(address)
            self.addresses[name] = join_address(host, port)

    async def start(self) -> None:
        for listener in self._listeners.values():
            await listener.start()
        self.are_open = True

    def reload_certificates(self) -> None:
        """Raises TlsFileError."""
        for listener in self._listeners.values():
            listener.reload_certificates()

    async def stop(self) -> None:
        self.are_open = False
        await asyncio.gather(*(listener.stop() for listener in self._listeners.values()))
