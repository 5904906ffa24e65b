"""What a log knows of its sealed segments, in one small file: nothing that is not in them, too.

It is written when a segment is sealed, dropped or written anew, and when damage is found. Whoever
opens the log believes it if it is whole and the segments have the sizes that it says; otherwise all
of them are read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from broker_agent.core.stores.log.coverage import Coverage, CoveredRange

_FORMAT = 2


class CheckpointError(ValueError):
    """These bytes are no checkpoint of this program; the message says why."""


class SegmentInfo(NamedTuple):
    """Of a sealed segment."""

    number: int
    nbytes: int
    frames: int
    events: int
    first_us: int
    last_us: int
    # The number of its last frame.
    last_frame: int


@dataclass(slots=True)
class LogCheckpoint:
    life: int = 0
    # The number of the next frame, and of the newest segment that was ever sealed.
    next_frame: int = 1
    newest_sealed: int = 0
    segments: Mapping[int, SegmentInfo] = field(default_factory=dict)
    coverage: Mapping[str, Coverage] = field(default_factory=dict)
    # Of each: segment and offset.
    damaged: frozenset[tuple[int, int]] = frozenset()


def encode_checkpoint(checkpoint: LogCheckpoint) -> bytes:
    said = {
        "format": _FORMAT,
        "life": checkpoint.life,
        "next_frame": checkpoint.next_frame,
        "newest_sealed": checkpoint.newest_sealed,
        "segments": list(checkpoint.segments.values()),
        "units": {
            unit: [coverage.is_ordered, coverage.expired, coverage.ranges]
            for unit, coverage in checkpoint.coverage.items()
        },
        "damaged": sorted(checkpoint.damaged),
    }
    body = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x\n%s\n" % (crc32(body), body)


def decode_checkpoint(raw: bytes) -> LogCheckpoint:
    """Raises CheckpointError."""
    check, _, rest = raw.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if check != b"%08x" % crc32(body) or not body:
        raise CheckpointError("the checkpoint is damaged")
    said = json.loads(body)
    if said["format"] != _FORMAT:
        raise CheckpointError("the checkpoint was written by another version of this program")
    return LogCheckpoint(
        life=said["life"],
        next_frame=said["next_frame"],
        newest_sealed=said["newest_sealed"],
        segments={info[0]: SegmentInfo._make(info) for info in said["segments"]},
        coverage={
            unit: Coverage(
                [
                    CoveredRange((after[0], after[1]), (upto[0], upto[1]), first, last)
                    for after, upto, first, last in ranges
                ],
                is_ordered=is_ordered,
                expired=(expired[0], expired[1]),
            )
            for unit, (is_ordered, expired, ranges) in said["units"].items()
        },
        damaged=frozenset((segment, offset) for segment, offset in said["damaged"]),
    )
