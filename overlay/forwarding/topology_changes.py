"""What is different between two topologies, and whether one may take the other's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overlay.forwarding.topology import Topology


@dataclass(frozen=True, slots=True)
class BrokerMove:
    """A broker that is in both. Its parent is the neighbour towards the root, None of the root."""

    broker_id: str
    address: str
    new_address: str
    parent: str | None
    new_parent: str | None


@dataclass(frozen=True, slots=True)
class TopologyDifference:
    added: tuple[str, ...]
    removed: tuple[str, ...]
    moved: tuple[BrokerMove, ...]
    # Pairs of names, in their order.
    links_added: tuple[tuple[str, str], ...]
    links_removed: tuple[tuple[str, str], ...]
    # (key of the file, what it was, what it is).
    settings: tuple[tuple[str, str, str], ...]

    @property
    def is_empty(self) -> bool:
        brokers = self.added or self.removed or self.moved
        return not (brokers or self.links_added or self.links_removed or self.settings)


def difference(before: Topology, after: Topology) -> TopologyDifference:
    """But for the version."""
    old, new = set(before.addresses), set(after.addresses)
    links, new_links = _links(before), _links(after)
    return TopologyDifference(
        added=tuple(sorted(new - old)),
        removed=tuple(sorted(old - new)),
        moved=tuple(_moves(before, after)),
        links_added=tuple(sorted(new_links - links)),
        links_removed=tuple(sorted(links - new_links)),
        settings=tuple(_changed_settings(before, after)),
    )


def _links(topology: Topology) -> set[tuple[str, str]]:
    return {(link.one, link.other) for link in topology.links}


def _moves(before: Topology, after: Topology) -> Iterator[BrokerMove]:
    """With another root all ways lead elsewhere: that says nothing of any one broker."""
    has_same_root = before.root == after.root
    for broker_id in sorted(set(before.addresses) & set(after.addresses)):
        address, new_address = before.addresses[broker_id], after.addresses[broker_id]
        parent, new_parent = before.parent(broker_id), after.parent(broker_id)
        if address != new_address or (has_same_root and parent != new_parent):
            yield BrokerMove(broker_id, address, new_address, parent, new_parent)


def _changed_settings(before: Topology, after: Topology) -> Iterator[tuple[str, str, str]]:
    old, new = before.to_mapping(), after.to_mapping()
    for key in ("mode", "root", "advertisements", "covering"):
        if old[key] != new[key]:
            yield key, _as_written(old[key]), _as_written(new[key])


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def why_not_after(current: Topology, new: Topology, broker_id: str, address: str) -> str:
    """Why the broker that has the current one cannot use the new one; empty if it can, or does."""
    if new.version == current.version:
        if new.digest == current.digest:
            return ""
        return (
            f"{broker_id} has another topology of version {current.version} already: see `dynatops "
            f"topology show`, and give yours version {current.version + 1}"
        )
    if new.version < current.version:
        return (
            f"{broker_id} has version {current.version}, which is newer than {new.version}: see "
            f"`dynatops topology show`, and give yours version {current.version + 1}"
        )
    if broker_id not in new:
        return f"{broker_id} is not in it: tell a broker that stays, which passes it on"
    if new.addresses[broker_id] != address:
        return (
            f"it has {broker_id} at {new.addresses[broker_id]}, and that is at {address}: tell "
            "another broker, which stays where it is"
        )
    return ""
