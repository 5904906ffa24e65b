"""The names in Redis of what analytics advises: shared by those who write and those who read.

    dynatops:advice:JOB:v1                  the head: a hash, with an expiry; `version` names the
                                            tables, other fields say how many entries they have
    dynatops:advice:JOB:v1:VERSION:TABLE    a table: a hash

Whoever writes it writes the tables first, under a version never used before, and the head last, so
that a head names tables that are whole. Tables outlive their head by some minutes.
"""

from __future__ import annotations

# client id -> broker, key of a topic -> broker: docs/selection.md.
SELECTION_KEY = "dynatops:advice:selection:v1"
# topic -> events/s; its head also says `computed_s` (UNIX time).
RATES_KEY = "dynatops:advice:rates:v1"

# Nobody reads these yet; docs/analytics.md has their fields. broker -> cluster.
CLUSTERS_KEY = "dynatops:advice:clusters:v1"
# "BROKER HOUR PREVIOUS" -> the next brokers, most probable first.
MOBILITY_KEY = "dynatops:advice:mobility:v1"
# topic -> rate, popularity, locality, and who asks for it.
DEMAND_KEY = "dynatops:advice:demand:v1"


def table_key(head: str, version: str, table: str) -> str:
    return f"{head}:{version}:{table}"


# Jobs that advise, and the tables that the head of each counts.
JOB_TABLES = {
    "clusters": ("brokers",),
    "demand": ("topics",),
    "mobility": ("next",),
    "rates": ("topics",),
    "selection": ("clients", "topics"),
}


def head_key(job: str) -> str:
    return f"dynatops:advice:{job}:v1"
