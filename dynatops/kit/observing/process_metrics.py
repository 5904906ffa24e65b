"""What every process of the system says of itself: how much of the machine it uses."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

from dynatops.kit.observing.metrics import Metric, counter, gauge

_STATM = Path("/proc/self/statm")
_DESCRIPTORS = "/proc/self/fd"


def _resident_bytes(_: object) -> float:
    """0 where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _tasks(_: object) -> float:
    """Of the event loop that asks; 0 where there is none."""
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:
        return 0.0


def _descriptors(_: object) -> float:
    """0 where the system does not say."""
    try:
        return float(len(os.listdir(_DESCRIPTORS)))  # noqa: PTH208  # a name each is enough
    except OSError:
        return 0.0


def process_metrics(prefix: str) -> list[Metric[Any]]:
    return [
        counter(
            f"{prefix}cpu_seconds_total",
            "Processor time of the process.",
            lambda _: time.process_time(),
        ),
        gauge(
            f"{prefix}resident_memory_bytes", "Memory of the process, as resident.", _resident_bytes
        ),
        gauge(f"{prefix}open_descriptors", "Files and connections that are open.", _descriptors),
        gauge(
            f"{prefix}threads", "Threads of the interpreter.", lambda _: threading.active_count()
        ),
        gauge(f"{prefix}tasks", "What goes on in the event loop: its tasks.", _tasks),
    ]
