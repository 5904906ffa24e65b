"""The walks from a broker up to the root of its tree, compiled.

`counts[broker]` is how many subscribing brokers have a route that ends there or passes there; a
link is in the tree while its lower end has a count above 0. The root's own count means nothing to
links, but says whether anybody subscribes.
"""

from __future__ import annotations

from dynatops.kit.compiled import kernel
from experiments.systems.system import Ints


@kernel
def join(counts: Ints, parents: Ints, broker: int) -> int:
    """The links that the tree gains."""
    gained = 0
    while True:
        counts[broker] += 1
        above = parents[broker]
        if above < 0:
            return gained
        if counts[broker] == 1:
            gained += 1
        broker = above


@kernel
def leave(counts: Ints, parents: Ints, broker: int) -> int:
    """The links that the tree loses."""
    lost = 0
    while True:
        counts[broker] -= 1
        above = parents[broker]
        if above < 0:
            return lost
        if counts[broker] == 0:
            lost += 1
        broker = above
