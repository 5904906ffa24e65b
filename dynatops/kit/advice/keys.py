"""The names in Redis of what analytics advises: shared by those who write and those who read.

    dynatops:advice:JOB:v1                  the head: a hash, with an expiry; `version` names the
                                            tables, other fields say how many entries they have
    dynatops:advice:JOB:v1:VERSION:TABLE    a table: a hash

Which jobs there are, and which tables, is in `advising_jobs`; what is in these, in
docs/analytics.md. Analytics writes the tables first, under a version never used before, and the
head last, so that a head names tables that are whole. Tables outlive their head by some minutes.
"""

from __future__ import annotations


def head_key(job: str) -> str:
    return f"dynatops:advice:{job}:v1"


def table_key(head: str, version: str, table: str) -> str:
    return f"{head}:{version}:{table}"
