"""The bounds of a store's log, each with its unit, its reason and what happens past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overlay.base.overlay_settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    segment_bytes: int = setting(
        64 << 20,
        "A segment that is as large is written to no more. What is dropped, is dropped by "
        "segments; after a crash the last one is read.",
    )
    frame_bytes: int = setting(
        256 << 10,
        "Rows in one frame, which is read and checked as a whole; a larger row has one of its own.",
    )
    group_bytes_max: int = setting(
        4 << 20, "Events that are written and synced together; further ones wait for the next sync."
    )
    waiting_bytes_max: int = setting(
        64 << 20, "Events that wait to be written; further ones are refused, and may come again."
    )
    appends_max: int = setting(
        100_000, "Appends that wait to be written; further ones are refused, and may come again."
    )
    reads_max: int = setting(10_000, "Reads that wait for their answer; further ones are refused.")
    read_bytes_max: int = setting(
        1 << 20, "Events in one answer to who reads the log; a larger row is an answer of its own."
    )
    index_bytes_max: int = setting(
        64 << 20, "Indexes of segments that are held in memory; the one used longest ago goes."
    )
    units_max: int = setting(
        200_000,
        "Units: topics on a ring, streams in a tree. Events of further ones are refused. In memory "
        "a unit takes about 500 bytes.",
    )
    ranges_max: int = setting(
        1_000,
        "Ranges of one unit, with holes or what has filled them between; past it the oldest is "
        "given up, and told as missing.",
    )
    damaged_max: int = setting(
        10_000, "Damaged frames that are known; with more the log is taken for lost, and stops."
    )
    notices_max: int = setting(1_000, "Notices that wait to be taken; past it the oldest goes.")
    log_bytes_max: int = setting(
        0, "All segments together; past it events are refused until some are dropped. 0: no bound."
    )
    refuse_below_free_bytes: int = setting(
        512 << 20, "Events are refused while the disk has less room than this."
    )
    resume_above_free_bytes: int = setting(
        1 << 30, "Events that were refused for want of room are taken again above this."
    )
    retention_interval_s: float = setting(
        60.0, "What is not retained is looked for again so long after the last time."
    )
    rewrite_below_share: float = setting(
        0.5,
        "A segment of which less than this share is retained is written anew without the rest.",
    )
    compaction_keys_max: int = setting(
        1_000_000,
        "Keys that one compaction tells apart, the latest first; of further ones all events stay.",
    )
