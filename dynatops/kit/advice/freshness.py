"""How long advice is fresh: one rule for all kinds, and for what managers keep of their own rates.

Advice is fresh until Redis forgets its head, or until it is older than its kind may be, whichever
comes first; a kind need not have both. What Redis has left needs no two clocks that agree. An age
does, but outlasts the head, and can be told to people.
"""

from __future__ import annotations

import math


def fresh_for_s(*, left_s: float = math.inf, age_s: float = 0.0, ttl_s: float = math.inf) -> float:
    """From now on. A clock that is ahead keeps nothing fresh for longer: an age is 0 at least."""
    return min(left_s, ttl_s - max(age_s, 0.0))


def is_fresh(now_s: float, until_s: float) -> bool:
    return now_s < until_s
