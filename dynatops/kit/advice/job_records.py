"""What a job of analytics leaves of its runs beside its advice: names and values, for those who
write and those who read.

    dynatops:job:JOB:v1     a hash: how the last run ended, and what all runs have counted

It is written at the end of each run, also of one that failed. It outlives the advice, as it is to
say why there is none, and is forgotten when the job has not run for `KEPT_S`. Counts go up only:
they are of everything that was taken in, once, since there is a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

KEPT_S = 30 * 86_400
REASON_MAX = 500
# Past it a count is none.
_DIGITS_MAX = 15


class JobEnd(StrEnum):
    """How a run ended."""

    DONE = "done"
    NOTHING_NEW = "nothing_new"
    FAILED = "failed"


def record_key(job: str) -> str:
    return f"dynatops:job:{job}:v1"


def runs_field(end: JobEnd) -> str:
    """Of runs that ended so."""
    return f"runs_{end}"


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Of rows and files of the lake."""

    files: int = 0
    rows: int = 0
    # They came after newer ones had been settled, and count; or came too late to count.
    late: int = 0
    dropped: int = 0
    quarantined: int = 0
    quarantined_files: int = 0


COUNTS = tuple(field.name for field in fields(JobCounts))


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run that has ended."""

    end: JobEnd
    # UNIX time.
    ended_s: float
    seconds: float
    # Why it failed, for people.
    reason: str = ""
    counts: JobCounts = JobCounts()

    def to_fields(self) -> dict[str, str]:
        """What is said of the last run only; of one that ended well, that as well."""
        said = {
            "end": str(self.end),
            "ended_s": f"{self.ended_s:.3f}",
            "seconds": f"{self.seconds:.3f}",
            "reason": self.reason[:REASON_MAX],
        }
        if self.end is not JobEnd.FAILED:
            said["succeeded_s"] = f"{self.ended_s:.3f}"
        return said

    def to_increments(self) -> dict[str, int]:
        """What is added to what the runs before have counted."""
        counted = {name: getattr(self.counts, name) for name in COUNTS}
        return {runs_field(self.end): 1, **counted}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of a job's runs."""

    end: JobEnd
    ended_s: float
    # How long the last run took.
    seconds: float
    reason: str
    # When a run last ended well; None if none ever did.
    succeeded_s: float | None
    runs: Mapping[JobEnd, int]
    # Of all runs.
    counts: JobCounts

    @classmethod
    def of(cls, raw: Mapping[bytes, bytes]) -> Self:
        """Of a hash that somebody wrote. Raises ValueError."""
        said = {_text(name): _text(value) for name, value in raw.items()}
        succeeded = said.get("succeeded_s")
        return cls(
            end=JobEnd(said.get("end", "")),
            ended_s=_number(said, "ended_s"),
            seconds=_number(said, "seconds"),
            reason=said.get("reason", "")[:REASON_MAX],
            succeeded_s=_number(said, "succeeded_s") if succeeded is not None else None,
            runs={end: _count(said, runs_field(end)) for end in JobEnd},
            counts=JobCounts(**{name: _count(said, name) for name in COUNTS}),
        )


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _number(said: Mapping[str, str], name: str) -> float:
    number = float(said.get(name, "nan"))
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} is no number")
    return number


def _count(said: Mapping[str, str], name: str) -> int:
    digits = said.get(name, "0")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise ValueError(f"{name} is no count")
    return int(digits)
