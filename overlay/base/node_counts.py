"""What is too much to count at once: a node may have 100,000 topics.

`Node.count_in_steps` walks a part of them at a time, in the modules that keep them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NodeCounts:
    """Of topics of applications; those of the system's own are not counted."""

    # Topics whose rendezvous point the node is, those that it stands by for, and trees through it.
    topics: int = 0
    copies: int = 0
    trees: int = 0
    # Of these trees, those that its broker subscribes to, and those that it only passes events on
    # along.
    member_trees: int = 0
    relay_trees: int = 0
    # Branches of all trees that begin here.
    branches: int = 0
    # Acknowledgements that wait for the replica, and for the catalogue: of all topics.
    waiting_acknowledgements: int = 0
    held_acknowledgements: int = 0
