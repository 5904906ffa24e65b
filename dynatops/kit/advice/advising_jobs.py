"""Jobs of analytics that advise, and the tables that the head of each counts.

Made from the jobs by `tools/generate_reference.py`; change a job, then `make docs`. Managers look
for all of it, and load nothing of analytics.
"""

from __future__ import annotations

JOB_TABLES: dict[str, tuple[str, ...]] = {
    "clusters": ("brokers",),
    "demand": ("topics",),
    "mobility": ("next",),
    "rates": ("topics",),
    "selection": ("clients", "topics"),
}
