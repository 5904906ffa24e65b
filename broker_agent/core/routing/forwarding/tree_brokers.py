"""Where other brokers of the tree are: in the topology."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from broker_agent.core.routing.forwarding.forwarding_context import ForwardingContext
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.forwarding.links.neighbours import ServingState


class TreeBrokers:
    def __init__(self, context: ForwardingContext) -> None:
        self._forwarder = context.forwarder

    @property
    def me(self) -> NodeRef:
        return self._forwarder.me.ref

    def alternatives(self, most: int) -> list[str]:
        """Nearest first, by links on the way."""
        addresses = self._forwarder.topology.addresses
        return [addresses[broker_id] for broker_id in self._by_distance()][:most]

    def _by_distance(self) -> Iterator[str]:
        topology = self._forwarder.topology
        seen = {self._forwarder.me.broker_id: None}
        for broker_id in seen.copy():
            frontier = [broker_id]
            while frontier:
                further = [n for each in frontier for n in topology.neighbours(each)]
                frontier = [n for n in dict.fromkeys(further) if n not in seen]
                seen.update(dict.fromkeys(frontier))
                yield from frontier

    def condemned_addresses(self) -> Collection[str]:
        """Of neighbours that are not heard of."""
        addresses = self._forwarder.topology.addresses
        states = self._forwarder.neighbour_states()
        return [addresses[name] for name, state in states.items() if state is ServingState.CLOSED]

    def has_broker_at(self, address: str) -> bool:
        return address in self._forwarder.topology.addresses.values()

    def address_of(self, broker_id: str) -> str:
        return self._forwarder.topology.addresses.get(broker_id, "")

    def namesakes(self, broker_id: str) -> list[str]:
        """A name stands once in a topology."""
        address = self.address_of(broker_id)
        return [address] if address else []

    def neighbours(self) -> dict[str, str]:
        """Those whose links are up."""
        addresses = self._forwarder.topology.addresses
        states = self._forwarder.neighbour_states()
        return {
            name: addresses[name]
            for name, state in states.items()
            if state is not ServingState.CLOSED
        }

    def is_gone(self, broker_id: str) -> bool:
        """It is no neighbour, or its link is down."""
        states = self._forwarder.neighbour_states()
        return states.get(broker_id, ServingState.CLOSED) is ServingState.CLOSED
