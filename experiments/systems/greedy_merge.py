"""Topic-connected overlays by Greedy Merge, and by divide and conquer.

An overlay is topic-connected if, for each topic, the links among its subscribers connect them all:
then no event passes through a broker that does not want it. The fewest links that do are hard to
find. Greedy Merge (Chockler, Melamed, Tock, Vitenberg, PODC 2007) begins without links, each
subscriber of each topic a component by itself, and takes again and again the link that joins the
most components over all topics, until each topic is one: within a factor of log(V T) of the fewest.

Divide and conquer (Chen, Jacobsen, Vitenberg, ICDCS 2010) merges within parts first and between
parts afterwards, each time with all that stands counted. Brokers that subscribe to more than a
share of all topics (bulk) would draw links of all parts to themselves wherever they were put: they
belong to no part, and come in with the second merge. With representatives, links between parts end
only at a few brokers of each part that subscribe between them to all topics of the part: less to
look at, a little more links.

Choices that the papers leave open:

- Of links of equal gain the one that stood before is taken (`preferred`), else the first in the
  order of brokers' numbers. The papers take any.
- Representatives are chosen greedily: the broker that adds the most topics, until none is missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.systems import greedy_merge_kernels as kernels
from experiments.systems.greedy_merge_kernels import Links
from experiments.systems.system import Ints

# A part for each broker that is in none: bulk.
ALONE = -1


def greedy_merge(
    table: Links,
    *,
    links: Links | None = None,
    allowed: Links | None = None,
    preferred: Links | None = None,
) -> Links:
    """The links of an overlay in which no allowed pair would join components of any topic.

    `table[topic, broker]` says who subscribes; `links` stand already; all pairs are allowed unless
    it is said which are. All are symmetric, and so is what is returned.
    """
    brokers = table.shape[1]
    found = np.zeros((brokers, brokers), dtype=np.bool_) if links is None else links.copy()
    kernels.merge(
        table,
        found,
        np.ones((brokers, brokers), dtype=np.bool_) if allowed is None else allowed,
        np.zeros((brokers, brokers), dtype=np.bool_) if preferred is None else preferred,
    )
    return found


def divide_and_conquer(
    table: Links, parts: Ints, anew: NDArray[np.bool_], links: Links, *, representatives: bool
) -> Links:
    """Links among brokers that are not `anew` stay; all others are found anew, first within parts
    and then between them. `parts[broker]` is the part, or `ALONE`."""
    stay = links & ~anew[:, None] & ~anew[None, :]
    together = (parts[:, None] == parts[None, :]) & (parts[:, None] != ALONE)
    within = greedy_merge(table, links=stay, allowed=together, preferred=links)
    ends = _representatives(table, parts) if representatives else np.ones_like(anew)
    between = ~together & ends[:, None] & ends[None, :]
    return greedy_merge(table, links=within, allowed=between, preferred=links)


def _representatives(table: Links, parts: Ints) -> NDArray[np.bool_]:
    """Of each part, a few brokers that subscribe to all of its topics; and all that are alone."""
    chosen = np.zeros(len(parts), dtype=np.bool_)
    chosen[parts == ALONE] = True
    for part in np.unique(parts[~chosen]):
        members = np.flatnonzero(parts == part)
        wanted = np.logical_or.reduce(table[:, members], axis=1)
        while wanted.any():
            adds = (table[:, members] & wanted[:, None]).sum(axis=0)
            best = members[adds.argmax()]
            chosen[best] = True
            wanted &= ~table[:, best]
    return chosen


def all_connected(table: Links, links: Links, topics: Ints) -> bool:
    return all(kernels.connected(table[topic], links) for topic in topics.tolist())
