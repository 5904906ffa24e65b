"""Which part of a node heeds which message, and when: the table that `node` works from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overlay.base.peers import Peer

if TYPE_CHECKING:
    from overlay.node import Node

# Called with the sender, the message and the time.
Handler = Callable[[Peer, Any, float], None]

# Messages about one topic that travel to its rendezvous point.
ROUTED = frozenset({"join_tree", "leave_tree", "outdated", "fetch"})

# What a node that is not yet a member of the ring, or not any more, still takes part in.
BEFORE_MEMBERSHIP = frozenset({"found", "pong", "not_here", "hosted", "publish_ack", "fetched"})
AFTER_MEMBERSHIP = BEFORE_MEMBERSHIP | frozenset(
    {"leave", "leave_seen", "adopted", "publish", "runs", "fetch", "join_tree", "leave_tree"}
    | {"replica_ack", "tree_update", "tree_content"}
)

# What a node heeds while its state is on its way to another host: what only reads it, and what says
# that it lives.
WHILE_SEALED = frozenset({"ping", "stabilise", "lookup", "hosted"})


def handlers_of(node: Node) -> dict[str, Handler]:
    ring, trees, reigns = node.ring, node.trees, node.reigns
    replication, succession = node.replication, node.succession
    return {
        "ping": node.on_ping,
        "pong": node.on_pong,
        "stabilise": node.on_stabilise,
        "neighbours": lambda sender, message, now_s: ring.on_neighbours(sender, message),
        "notify": lambda sender, message, now_s: ring.on_notify(sender),
        "nudge": lambda sender, message, now_s: ring.on_nudge(now_s),
        "lookup": lambda sender, message, now_s: ring.on_lookup(message),
        "found": ring.on_found,
        "leave": node.on_leave,
        "leave_seen": lambda sender, message, now_s: ring.on_leave_seen(sender),
        "not_here": node.on_not_here,
        "hosted": lambda sender, message, now_s: node.hosting.on_hosted(message),
        "join_tree": lambda sender, message, now_s: reigns.on_join_tree(message, now_s),
        "leave_tree": lambda sender, message, now_s: reigns.on_leave_tree(message, now_s),
        "outdated": lambda sender, message, now_s: reigns.on_outdated(message, now_s),
        "fetch": lambda sender, message, now_s: reigns.on_fetch(message),
        "tree_update": trees.on_update,
        "tree_digest": trees.on_digest,
        "tree_mismatch": lambda sender, message, now_s: trees.on_mismatch(sender, message),
        "tree_content": trees.on_content,
        "publish": reigns.on_publish,
        "to_stamper": node.stamper_mail.on_to_stamper,
        "publish_ack": node.on_publish_ack,
        "fetched": node.on_fetched,
        "runs": node.on_runs,
        "replicate": replication.on_replicate,
        "replica_ack": lambda sender, message, now_s: replication.on_replica_ack(sender, message),
        "replica_pull": replication.on_replica_pull,
        "claim_range": node.on_claim_range,
        "range_granted": lambda sender, message, now_s: succession.on_range_granted(sender, now_s),
        "adopt": succession.on_adopt,
        "adopted": succession.on_adopted,
        "ask_copies": succession.on_ask_copies,
        "copies_given": lambda sender, message, now_s: succession.on_copies_given(sender, message),
    }
