"""What a broker in the middle of a tree forwards, of events that conditions ask about.

    python -m benchmarks.forwarding [--events N] [--filters 1,10000] [--json]

Three brokers are processes: `hub`, the root of a hierarchical tree, and below it `west`, where
everything is published, and `east`, where it is subscribed to. A child sends its parent every event
without looking at it, so conditions are the hub's work. With one filter there is no condition;
otherwise each names a sensor and a bound, and about a quarter of the events meet one. Figures are
the events of a second through all of it, and what an event costs the hub's processor: a core of its
own could forward so many.
"""

from __future__ import annotations

from random import Random

TOPIC = "plant/hall"
PAYLOAD = bytes(100)
WINDOW = 20_000
CLIENTS = 20
_AT_ONCE = 100


def where(filters: int) -> list[str]:
    rng = Random(1)
    if filters == 1:
        return [""]
    return [f'sensor == "s{n}" and value > {rng.randrange(50, 100)}' for n in range(filters)]
