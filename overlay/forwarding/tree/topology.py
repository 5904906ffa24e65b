"""Which brokers there are, and which of them are neighbours: a tree.

    version: 3                      grows with every change
    mode: peer                      or hierarchical
    root: hub                       events go up to it; a peer tree is spread out from it, too
    brokers: {hub: "10.0.0.1:7400", leaf: "10.0.0.2:7400"}
    links: [[hub, leaf]]            or {between: [hub, leaf], weight: 2}
    advertisements: false           subscriptions go only to where somebody publishes
    covering: true                  what another subscription covers is not passed on

`Topology.from_mapping` reads what a person wrote and says all that is wrong with it at once. A
connected graph is reduced to a spanning tree: links of less weight come first, among equals those
nearer to the root, and those that are not needed are named in `left_out`. Who reads files, and who
decides that a version is the newest, is not here.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

BROKERS_MAX = 10_000
_VERSION_MAX = (1 << 63) - 1
_KEYS = frozenset(
    {"version", "mode", "root", "brokers", "links", "advertisements", "covering", "cycles"}
)


class TreeMode(Enum):
    """Where subscriptions go: to every neighbour, or up to the root."""

    PEER = "peer"
    HIERARCHICAL = "hierarchical"


class TopologyError(ValueError):
    """What was written is no topology. Every entry of `problems` says where, and what to do."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, order=True)
class TopologyLink:
    one: str
    other: str
    weight: float = 1.0

    def __str__(self) -> str:
        return f"{self.one}-{self.other}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Made by `from_mapping`; always a tree, of at least one broker."""

    version: int
    mode: TreeMode
    root: str
    addresses: Mapping[str, str]
    links: tuple[TopologyLink, ...]
    left_out: tuple[TopologyLink, ...] = ()
    advertisements: bool = False
    covering: bool = True
    _neighbours: Mapping[str, tuple[str, ...]] = field(
        repr=False, compare=False, default_factory=dict
    )
    # Of each broker the next one towards the root.
    _parents: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Topology:
        """Raise TopologyError unless it is one."""
        return _Reading(mapping).topology()

    @classmethod
    def from_text(cls, text: str) -> Topology:
        """The other side of `to_text`. Raise TopologyError unless it is one."""
        try:
            mapping = json.loads(text)
        except ValueError as error:
            raise TopologyError([f"it is no JSON: {error}"]) from error
        if not isinstance(mapping, dict):
            raise TopologyError(["it is no mapping"])
        return cls.from_mapping(mapping)

    def to_mapping(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "mode": self.mode.value,
            "root": self.root,
            "brokers": dict(sorted(self.addresses.items())),
            "links": [
                {"between": [link.one, link.other], "weight": link.weight}
                for link in sorted((*self.links, *self.left_out))
            ],
            "advertisements": self.advertisements,
            "covering": self.covering,
        }

    def to_text(self) -> str:
        return json.dumps(self.to_mapping(), sort_keys=True)

    @property
    def digest(self) -> int:
        """Differs where topologies do: 64 bits."""
        return int.from_bytes(hashlib.sha256(self.to_text().encode()).digest()[:8], "big")

    def __contains__(self, broker_id: str) -> bool:
        return broker_id in self.addresses

    def neighbours(self, broker_id: str) -> tuple[str, ...]:
        """In the order of their names; none of a broker that is not in it."""
        return self._neighbours.get(broker_id, ())

    def parent(self, broker_id: str) -> str | None:
        """The neighbour towards the root; None of the root."""
        return self._parents.get(broker_id)

    def path_to_root(self, broker_id: str) -> list[str]:
        path = [broker_id]
        while (parent := self._parents.get(path[-1])) is not None:
            path.append(parent)
        return path

    def next_hop(self, origin: str, target: str) -> str | None:
        """The neighbour of `origin` on the way to `target`; None if that is itself, or unknown."""
        if origin == target or origin not in self or target not in self:
            return None
        upwards = self.path_to_root(target)
        if origin in upwards:
            return upwards[upwards.index(origin) - 1]
        return self._parents[origin]


class _Reading:
    """One mapping while it is read: its problems are collected."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._mapping = mapping
        self._problems: list[str] = []

    def topology(self) -> Topology:
        unknown = sorted(set(map(str, self._mapping)) - _KEYS)
        if unknown:
            self._problem(
                f"unknown keys {', '.join(unknown)}; there are {', '.join(sorted(_KEYS))}"
            )
        version = self._version()
        mode = self._mode()
        addresses = self._addresses()
        links = self._links(addresses)
        root = self._root(addresses, mode)
        advertisements, covering = (
            self._truth("advertisements", False),
            self._truth("covering", True),
        )
        if self._problems:
            raise TopologyError(self._problems)
        parents, kept = _spanning_tree(root, addresses, links)
        unreached = sorted(set(addresses) - set(parents) - {root})
        if unreached:
            self._problem(
                f"no links lead from {root!r} to {', '.join(unreached)}: link them, or remove them"
            )
        left_out = tuple(link for link in links if link not in kept)
        if left_out and self._mapping.get("cycles", "reduce") == "refuse":
            named = ", ".join(map(str, left_out))
            self._problem(f"links make cycles: without {named} there would be none")
        if self._problems:
            raise TopologyError(self._problems)
        return Topology(
            version=version,
            mode=mode,
            root=root,
            addresses=addresses,
            links=tuple(link for link in links if link in kept),
            left_out=left_out,
            advertisements=advertisements,
            covering=covering,
            _neighbours=_neighbours_of(addresses, kept),
            _parents=parents,
        )

    def _problem(self, text: str) -> None:
        self._problems.append(text)

    def _version(self) -> int:
        version = self._mapping.get("version", 1)
        if isinstance(version, bool) or not isinstance(version, int):
            self._problem(f"version is {version!r}, and must be a whole number")
            return 1
        if not 1 <= version <= _VERSION_MAX:
            self._problem(f"version is {version}, and must be at least 1")
        return version

    def _mode(self) -> TreeMode:
        mode = self._mapping.get("mode", TreeMode.PEER.value)
        known = [each.value for each in TreeMode]
        if mode not in known:
            self._problem(f"mode is {mode!r}, and must be one of {', '.join(known)}")
            return TreeMode.PEER
        return TreeMode(mode)

    def _truth(self, key: str, default: bool) -> bool:
        value = self._mapping.get(key, default)
        if not isinstance(value, bool):
            self._problem(f"{key} is {value!r}, and must be true or false")
        return bool(value)

    def _addresses(self) -> dict[str, str]:
        brokers = self._mapping.get("brokers")
        if not isinstance(brokers, Mapping) or not brokers:
            self._problem(
                "brokers: a mapping from at least one broker id to its address is missing"
            )
            return {}
        if len(brokers) > BROKERS_MAX:
            self._problem(f"there are {len(brokers):,} brokers; the limit is {BROKERS_MAX:,}")
            return {}
        addresses: dict[str, str] = {}
        owners: dict[str, str] = {}
        for broker_id, entry in brokers.items():
            address = entry.get("address") if isinstance(entry, Mapping) else entry
            if not isinstance(broker_id, str) or not broker_id:
                self._problem(f"broker id {broker_id!r} is no text")
            elif not isinstance(address, str) or not address:
                self._problem(f"broker {broker_id!r} has no address")
            elif address in owners:
                self._problem(f"{owners[address]!r} and {broker_id!r} have one address, {address}")
            else:
                owners[address] = broker_id
                addresses[broker_id] = address
        return addresses

    def _links(self, addresses: Mapping[str, str]) -> list[TopologyLink]:
        entries = self._mapping.get("links") or []
        if not isinstance(entries, list):
            self._problem("links: a list of pairs of broker ids is expected")
            return []
        links: dict[tuple[str, str], TopologyLink] = {}
        for place, entry in enumerate(entries, start=1):
            link = self._link(place, entry, addresses)
            if link is None:
                continue
            ends = (link.one, link.other)
            if ends in links:
                self._problem(f"link {place}: {link} is there twice")
            links[ends] = link
        return sorted(links.values())

    def _link(self, place: int, entry: Any, addresses: Mapping[str, str]) -> TopologyLink | None:
        weight: Any = 1.0
        if isinstance(entry, Mapping):
            odd = sorted(set(map(str, entry)) - {"between", "weight"})
            if odd:
                self._problem(f"link {place}: unknown keys {', '.join(odd)}")
            weight = entry.get("weight", 1.0)
            entry = entry.get("between")
        pair = entry if isinstance(entry, list) else []
        if len(pair) != 2 or not all(isinstance(end, str) for end in pair):
            self._problem(f"link {place}: two broker ids are expected")
            return None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
            self._problem(f"link {place}: its weight is {weight!r}, and must be above 0")
            return None
        missing = [end for end in pair if end not in addresses]
        for end in missing:
            self._problem(f"link {place}: there is no broker {end!r}")
        if missing:
            return None
        one, other = sorted(pair)
        if one == other:
            self._problem(f"link {place}: {one!r} is linked to itself")
            return None
        return TopologyLink(one, other, float(weight))

    def _root(self, addresses: Mapping[str, str], mode: TreeMode) -> str:
        root = self._mapping.get("root")
        if root is None:
            if mode is TreeMode.HIERARCHICAL:
                self._problem("root is missing: a hierarchical tree has one")
            return min(addresses, default="")
        if root not in addresses:
            self._problem(f"root: there is no broker {root!r}")
        return str(root)


def _spanning_tree(
    root: str, addresses: Mapping[str, str], links: list[TopologyLink]
) -> tuple[dict[str, str], set[TopologyLink]]:
    """Of each broker that can be reached its parent, and the links of the tree.

    Brokers are taken in the order of what the way from the root weighs: where all links weigh the
    same, breadth first."""
    ways: dict[str, list[tuple[str, TopologyLink]]] = {broker: [] for broker in addresses}
    for link in links:
        ways[link.one].append((link.other, link))
        ways[link.other].append((link.one, link))
    parents: dict[str, str] = {}
    kept: set[TopologyLink] = set()
    reached: set[str] = set()
    waiting: list[tuple[float, str, str, TopologyLink | None]] = [(0.0, root, "", None)]
    while waiting:
        distance, broker, parent, via = heapq.heappop(waiting)
        if broker in reached:
            continue
        reached.add(broker)
        if via is not None:
            parents[broker] = parent
            kept.add(via)
        for other, link in ways[broker]:
            if other not in reached:
                heapq.heappush(waiting, (distance + link.weight, other, broker, link))
    return parents, kept


def _neighbours_of(
    addresses: Mapping[str, str], links: set[TopologyLink]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {broker: [] for broker in addresses}
    for link in links:
        found[link.one].append(link.other)
        found[link.other].append(link.one)
    return {broker: tuple(sorted(others)) for broker, others in found.items()}
