"""What must hold of brokers in a tree, said without the code that is to make it hold.

`ExpectedTables` is what brokers must tell each other, worked out of the filters of all sessions and
of the topology at once. `check_tree` holds once the network has been whole, and nobody has come,
gone or subscribed, for long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from broker_agent.core.routing.forwarding.forwarding import tree_of
from dynatops.kit.filters import Filter, covers, intersects
from overlay.base.catalogue import is_system
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.links.neighbours import ServingState
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tree.topology import Topology, TreeMode
from simulator.world import SimulatedBroker

# Positions in streams, by broker.
Positions = Mapping[str, Mapping[int, int]]


def check_tree(
    topology: Topology, brokers: Iterable[SimulatedBroker], before: Positions
) -> list[str]:
    """`before`: how far each broker had come with its own streams some seconds ago."""
    living = {broker.broker_id: broker for broker in brokers if broker.alive}
    if set(living) != set(topology.addresses):
        there, wanted = sorted(living), sorted(topology.addresses)
        return [f"there are {there}, and the topology has {wanted}"]
    forwarders = {name: tree_of(broker.core).forwarder for name, broker in living.items()}
    if found := list(_check_links(topology, forwarders)):
        return found
    return [
        *_check_tables(topology, living, forwarders),
        *_check_positions(forwarders, before),
        *(text for broker in living.values() for text in _check_sessions(broker)),
    ]


def quiet_brokers(brokers: Iterable[SimulatedBroker]) -> Iterator[str]:
    """Those at which nothing is under way, to or from others."""
    for broker in brokers:
        if broker.alive and tree_of(broker.core).forwarder.is_quiet:
            yield broker.broker_id


# ---- links ---------------------------------------------------------------------------------------


def _check_links(topology: Topology, forwarders: Mapping[str, Forwarder]) -> Iterator[str]:
    for name, forwarder in forwarders.items():
        version = forwarder.topology.version
        if version != topology.version:
            yield f"{name} has topology {version} instead of {topology.version}"
            continue
        states = forwarder.neighbour_states()
        if sorted(states) != sorted(topology.neighbours(name)):
            yield f"{name} has links to {sorted(states)}"
        for other, state in states.items():
            if state is not ServingState.LIVE:
                yield f"{name}'s link to {other} is {state.value}"
        if states and forwarder.keeper not in states:
            yield f"{name} has {forwarder.keeper} as its keeper"
        if not forwarder.is_ready:
            yield f"{name} still asks what it published before"


# ---- tables --------------------------------------------------------------------------------------


class ExpectedTables:
    """Who must have told whom what."""

    def __init__(
        self,
        topology: Topology,
        wanted: Mapping[str, set[Filter]],
        advertised: Mapping[str, set[Filter]],
    ) -> None:
        """By broker: what its own sessions want, and what its own publishers publish on."""
        self._topology = topology
        self._wanted = wanted
        self._advertised = advertised
        self._told: dict[tuple[str, str], set[Filter]] = {}
        self._ads: dict[tuple[str, str], set[Filter]] = {}

    def told(self, name: str, to: str) -> set[Filter]:
        found = self._told.get((name, to))
        if found is None:
            found = set(self._wanted[name])
            for other in self._topology.neighbours(name):
                if other != to:
                    found |= self.told(other, name)
            found = self._told[name, to] = self._of_those(found, name, to)
        return found

    def _of_those(self, found: set[Filter], name: str, to: str) -> set[Filter]:
        chosen = self._uncovered(found)
        if self._topology.mode is TreeMode.HIERARCHICAL:
            if to == self._topology.parent(name):
                return chosen
            if not self._topology.advertisements:
                return set()
        if not self._topology.advertisements:
            return chosen
        ads = self.advertised(to, name)
        return {each for each in chosen if any(intersects(ad, each) for ad in ads)}

    def advertised(self, name: str, to: str) -> set[Filter]:
        found = self._ads.get((name, to))
        if found is None:
            found = set(self._advertised[name])
            for other in self._topology.neighbours(name):
                if other != to:
                    found |= self.advertised(other, name)
            is_up = to == self._topology.parent(name)
            if not self._topology.advertisements or (
                self._topology.mode is TreeMode.HIERARCHICAL and not is_up
            ):
                found = set()
            found = self._ads[name, to] = self._uncovered(found)
        return found

    def _uncovered(self, filters: set[Filter]) -> set[Filter]:
        """Of two that cover each other the first stays."""
        if not self._topology.covering:
            return filters
        return {
            each
            for each in filters
            if not any(
                covers(other, each) and (not covers(each, other) or str(other) < str(each))
                for other in filters
                if other != each
            )
        }


def _check_tables(
    topology: Topology,
    brokers: Mapping[str, SimulatedBroker],
    forwarders: Mapping[str, Forwarder],
) -> Iterator[str]:
    wanted = {name: _wanted_at(broker) for name, broker in brokers.items()}
    for name, forwarder in forwarders.items():
        here = forwarder.tables.wanted_by(HERE)
        own = {each for each in here if not is_system(each.pattern)}
        if own != wanted[name]:
            yield f"{name} wants {_show(own)}, and its sessions {_show(wanted[name])}"
        # What brokers tell each other of themselves.
        wanted[name] |= set(here) - own
    ads = {name: set(each.tables.advertised_by(HERE)) for name, each in forwarders.items()}
    expected = ExpectedTables(topology, wanted, ads)
    for name, forwarder in forwarders.items():
        for other in topology.neighbours(name):
            tables, heard = forwarder.tables, forwarders[other].tables
            yield from _differences(
                f"{name} tells {other}", tables.told(other), expected.told(name, other)
            )
            yield from _differences(
                f"{other} has heard of {name}", heard.wanted_by(name), expected.told(name, other)
            )
            yield from _differences(
                f"{name} advertises to {other}",
                tables.advertised_to(other),
                expected.advertised(name, other),
            )


def _wanted_at(broker: SimulatedBroker) -> set[Filter]:
    registry = broker.core.registry
    store = broker.core.storing.store
    sessions = dict.fromkeys(
        (
            *registry.clients.values(),
            *registry.connections.values(),
            *((store.session,) if store is not None else ()),
        )
    )
    return {each for session in sessions for held in session.filters.values() for each in held}


def _differences(what: str, found: Iterable[Filter], expected: set[Filter]) -> Iterator[str]:
    present = set(found)
    if present != expected:
        missing, extra = _show(expected - present), _show(present - expected)
        yield f"{what}: missing {missing}, too many {extra}"


def _show(filters: Iterable[Filter]) -> str:
    return "[" + ", ".join(sorted(map(str, filters))) + "]"


# ---- streams and sessions ------------------------------------------------------------------------


def own_positions(brokers: Iterable[SimulatedBroker]) -> Positions:
    """How far each has come with its present stream."""
    found: dict[str, Mapping[int, int]] = {}
    for broker in brokers:
        if broker.alive:
            forwarder = tree_of(broker.core).forwarder
            newest = forwarder.own_stream
            found[broker.broker_id] = {newest: forwarder.positions().get(newest, 0)}
    return found


def _check_positions(forwarders: Mapping[str, Forwarder], before: Positions) -> Iterator[str]:
    """All know how far everybody was."""
    for origin, places in before.items():
        for stream, number in places.items():
            for name, forwarder in forwarders.items():
                here = forwarder.positions().get(stream, 0)
                if here < number:
                    yield f"{name} is at {here} of the stream of {origin}, which is at {number}"


def _check_sessions(broker: SimulatedBroker) -> Iterator[str]:
    subscriptions = broker.core.routing.subscriptions
    for session in broker.core.registry.clients.values():
        if next(iter(subscriptions.catching_up(session)), None) is not None:
            yield f"{broker.broker_id}: {session.shown} still catches up"
