"""How long advice is fresh: one rule for all kinds.

Advice is fresh until Redis forgets its head, or until it is older than its kind may be, whichever
comes first; a kind need not have both. What Redis has left needs no two clocks that agree. An age
does, but outlasts the head, and can be told to people.
"""

from __future__ import annotations

import math


def fresh_for_s(
    *, left_s: float = math.inf, age_s: float = 0.0, age_max_s: float = math.inf
) -> float:
    """From now on; below 0 it is fresh no more."""
    return min(left_s, age_max_s - age_s)
