"""The tree of brokers, from the file that its operator writes, or as it was learnt since.

A broker that is restarted has the file that it was started with, and perhaps what others told it
while it ran (`disk/learnt_topology.py`): the newer one is used.
"""

from __future__ import annotations

import logging
from pathlib import Path

import yaml

from dynatops.kit.observing.log_operations import TOPOLOGY_CHOSEN
from dynatops.kit.serving.start_errors import StartError
from overlay.forwarding.topology import Topology, TopologyError

log = logging.getLogger(__name__)


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


def topology_of(
    path: str, broker_id: str, address: str, learnt: Topology | None = None, learnt_path: str = ""
) -> Topology:
    """The newer one, with this broker in it, where others find it. Raises StartError."""
    try:
        topology = read_topology(path)
    except TopologyError as error:
        raise StartError(f"topology {path}: {error}") from None
    if learnt is not None and learnt.digest != topology.digest:
        reason = _why_learnt(topology, learnt, path, learnt_path)
        if reason:
            topology, path = learnt, learnt_path
        else:
            reason = f"{path} is newer than version {learnt.version}, which was learnt before"
        TOPOLOGY_CHOSEN.log(
            log,
            f"topology version {topology.version} is used: {reason}",
            broker=broker_id,
            version=topology.version,
            reason=reason,
        )
    _check_place(topology, path, broker_id, address)
    return topology


def _why_learnt(written: Topology, learnt: Topology, path: str, learnt_path: str) -> str:
    """Why it is used in place of the file; empty if the file is."""
    if written.version < learnt.version:
        return (
            f"it was learnt from others, and is in {learnt_path}; {path} has version "
            f"{written.version}, which is older"
        )
    if written.version == learnt.version:
        return (
            f"it was learnt from others, and is in {learnt_path}; {path} has another topology of "
            "that version: a change needs a higher one"
        )
    return ""


def _check_place(topology: Topology, path: str, broker_id: str, address: str) -> None:
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
