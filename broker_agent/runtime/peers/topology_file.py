"""The tree of brokers, from the file that its operator writes."""

from __future__ import annotations

from pathlib import Path

import yaml

from dynatops.kit.serving.start_errors import StartError
from overlay.forwarding.topology import Topology, TopologyError


def read_topology(path: str) -> Topology:
    """Raises TopologyError: what is wrong with what is in the file, or with the file."""
    try:
        mapping = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError([f"it cannot be read: {error}"]) from None
    except yaml.YAMLError as error:
        raise TopologyError([f"it is neither YAML nor JSON: {error}"]) from None
    if not isinstance(mapping, dict):
        raise TopologyError(["it is no mapping: `brokers` and `links` are missing"])
    return Topology.from_mapping(mapping)


def topology_of(path: str, broker_id: str, address: str) -> Topology:
    """With this broker in it, where others find it. Raises StartError."""
    try:
        topology = read_topology(path)
    except TopologyError as error:
        raise StartError(f"topology {path}: {error}") from None
    written = topology.addresses.get(broker_id)
    if written is None:
        known = ", ".join(sorted(topology.addresses)[:10])
        raise StartError(
            f"topology {path} has no broker {broker_id!r}: give this one a name of those that it "
            f"has (--broker-id), which are {known}, or add it there"
        )
    if written != address:
        raise StartError(
            f"topology {path} has {broker_id} at {written}, and it is at {address}: change one of "
            "them (--listen, --advertise)"
        )
    return topology
