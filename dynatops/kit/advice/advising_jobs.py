"""Jobs of analytics that advise, and the tables that the head of each counts.

Made from the jobs by `tools/generate_reference.py`; change a job, then `make docs`. Whoever looks
for advice of all jobs is not to load Spark, or analytics.
"""

from __future__ import annotations

JOB_TABLES: dict[str, tuple[str, ...]] = {
    "clusters": ("brokers",),
    "demand": ("topics",),
    "mobility": ("next",),
    "rates": ("topics",),
    "selection": ("clients", "topics"),
}
