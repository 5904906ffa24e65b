"""A node's whole state as messages: how it changes hands.

    parts = parts_of(node)                   # at its former host, which has sealed it
    state = put_together(parts)              # at its next one
    node = restore(state, peer, …)

The state names other nodes by id. Where they are hosted is known to the directory, which the next
host fills with what it knows itself, what the former host knew, and what the plan says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from google.protobuf.message import Message

from dynatops.v1.overlay_pb2 import Finger, NodeRef, NodeState
from overlay.base.counters import OverlayCounters
from overlay.base.identifiers import NodeId
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Directory, Peer
from overlay.node import Node
from overlay.soundness import is_sound

PART_BYTES = 512 << 10


def parts_of(node: Node, part_bytes: int = PART_BYTES) -> list[NodeState]:
    """The node's state in messages of about this size; a long history is never cut."""
    parts = [_ring_state(node)]
    nbytes = parts[0].ByteSize()
    for field, entry in _entries(node):
        size = entry.ByteSize()
        if nbytes + size > part_bytes:
            parts.append(NodeState())
            nbytes = 0
        getattr(parts[-1], field).append(entry)
        nbytes += size
    return parts


def put_together(parts: Iterable[NodeState]) -> NodeState:
    state = NodeState()
    for part in parts:
        state.MergeFrom(part)
    return state


def _ring_state(node: Node) -> NodeState:
    ring = node.ring
    predecessor = ring.predecessor
    return NodeState(
        predecessor=predecessor.node_id if predecessor is not None else None,
        successors=[peer.node_id for peer in ring.successors],
        fingers=[Finger(exponent=k, node_id=peer.node_id) for k, peer in ring.fingers.items()],
        known=[peer.ref for peer in node.directory],
    )


def _entries(node: Node) -> Iterator[tuple[str, Message]]:
    for tree in node.trees.states():
        yield "trees", tree
    for reign in node.reigns.states():
        yield "reigns", reign
    for copy in node.replication.states():
        yield "copies", copy
    for history in node.succession.states():
        yield "handing", history


def restore(
    state: NodeState,
    me: Peer,
    hosts: Iterable[NodeRef],
    settings: OverlaySettings,
    rng: Random,
    counters: OverlayCounters,
    now_s: float,
) -> Node:
    """The node as its former host sealed it, hosted by `me`. `hosts` says where others are, the
    most important last: a directory is bounded."""
    node = Node(me, settings, rng, counters)
    _drop_unsound(state, counters)
    directory = node.directory
    for ref in hosts:
        directory.learn(ref)
    # It starts with what is known now; nobody has moved or been reborn meanwhile.
    directory.take_moved()
    directory.take_reborn()
    predecessor = state.predecessor if state.HasField("predecessor") else None
    node.ring.load(
        directory.get(NodeId(predecessor)) if predecessor is not None else None,
        _known(directory, state.successors),
        [(f.exponent, peer) for f in state.fingers for peer in _known(directory, [f.node_id])],
    )
    node.resume(state, now_s)
    return node


def _drop_unsound(state: NodeState, counters: OverlayCounters) -> None:
    """What has numbers that cannot be is forgotten: the next that speaks of it would be ignored."""
    for entries in (state.trees, state.reigns, state.copies, state.handing):
        for index in reversed(range(len(entries))):
            if not is_sound(entries[index]):
                counters.messages_malformed += 1
                del entries[index]


def _known(directory: Directory, node_ids: Iterable[int]) -> list[Peer]:
    peers = (directory.get(NodeId(node_id)) for node_id in node_ids)
    return [peer for peer in peers if peer is not None]
