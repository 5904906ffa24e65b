"""Tapestry's mesh, as far as Bayeux needs it: ids of hexadecimal digits, tables by prefix,
surrogate roots, routes (Zhao, Kubiatowicz, Joseph, UCB/CSD-01-1141, 2001).

A broker's table has, at level l and for digit d, one broker whose id shares the first l digits
with its own and goes on with d. A route takes one digit after the other: at each level it goes to
the entry for the target's next digit, and stays where it is while its own digits fit.

A topic's key is nobody's id. Where no broker has the wanted digit, the next higher digit that some
broker has is taken, modulo the base, and the way goes on with the key's digits (surrogate
routing). Whatever broker the way begins at, it ends at the same one: the root.

Worked out on paper, with ids of four digits and these six brokers:

    0: 4227    1: 42A2    2: 6F43    3: 42A9    4: 4E61    5: 27AB

From 5 (27AB) to 3 (42A9). Level 0, digit 4: entries can be 0, 1, 3 and 4; say the table has 4
(4E61). There level 0 fits. Level 1, digit 2: 0, 1 or 3; say 0 (4227). Level 2, digit A: 1 or 3;
say 1 (42A2). Level 3, digit 9: 3 alone. The route is 5, 4, 0, 1, 3: four hops, one for each digit,
and each may be shorter if chance or proximity puts the target itself in an entry.

The root of key 4C00. Level 0, digit 4: brokers 0, 1, 3, 4. Level 1, digit C: none; D: none; E:
broker 4, who is alone by now. Of key 7000: level 0, digit 7, and 8 to F, and 0, 1: none; 2: broker
5. Of key 42B1: level 2, digit B, then up to F, 0, 1: none; 2: broker 0.

Choices that the papers leave open, or that DYNATOPS makes otherwise:

- Prefixes, not suffixes (the report of 2001 resolves suffixes, all later Tapestry prefixes): the
  same for ids without pattern.
- Which of several candidates an entry holds. Tapestry takes the nearest by round trip time;
  DYNATOPS reports that as a system of its own ('loc+PNS'), so without it an entry holds any
  candidate, drawn by the seed.
- Neither backups nor pointers to objects: nobody fails here, and Bayeux' trees use none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.systems.system import Floats, Ints

BASE = 16
DIGITS = 16
# [who, digit]: the first digit is the highest.
Ids = NDArray[np.int8]


def ids_of_keys(keys: NDArray[np.uint64]) -> Ids:
    shifts = np.arange(4 * (DIGITS - 1), -1, -4, dtype=np.uint64)
    return ((keys[:, None] >> shifts[None, :]) & np.uint64(BASE - 1)).astype(np.int8)


def ids_of_text(*ids: str) -> Ids:
    """Of hexadecimal digits, all as long as each other: for hand-made cases."""
    return np.array([[int(digit, BASE) for digit in text] for text in ids], dtype=np.int8)


def next_hops(ids: Ids, preference: Floats) -> Ints:
    """[here, target] -> the entry of the table of `here` that a route to `target` takes; `here`
    where they are the same.

    An entry holds the candidate that `preference[here, candidate]` is least for, the first of
    equals: round trip times make neighbours the nearest, random numbers make them any.
    """
    brokers = len(ids)
    if len(np.unique(ids, axis=0)) != brokers:
        raise ValueError("two brokers have the same id")
    hops = np.empty((brokers, brokers), dtype=np.int32)
    np.fill_diagonal(hops, np.arange(brokers))
    # Brokers with equal beginnings, and the length of these.
    waiting: list[tuple[Ints, int]] = [(np.arange(brokers, dtype=np.int32), 0)]
    while waiting:
        alike, level = waiting.pop()
        for digit in np.unique(ids[alike, level]):
            has_digit = ids[alike, level] == digit
            candidates, others = alike[has_digit], alike[~has_digit]
            if others.size:
                best = preference[np.ix_(others, candidates)].argmin(axis=1)
                hops[np.ix_(others, candidates)] = candidates[best][:, None]
            if candidates.size > 1:
                waiting.append((candidates, level + 1))
    return hops


def surrogate_root(ids: Ids, key: NDArray[np.int8]) -> int:
    """The broker at which every route towards this key ends."""
    alike = np.arange(len(ids))
    level = 0
    while alike.size > 1:
        beyond = (ids[alike, level] - key[level]) % BASE
        alike = alike[beyond == beyond.min()]
        level += 1
    return int(alike[0])
