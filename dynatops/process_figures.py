"""What every process of the system says of itself: how much of the machine it uses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from dynatops.metrics import Metric, counter, gauge

_STATM = Path("/proc/self/statm")


def _resident_bytes(_: object) -> float:
    """0 where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


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
    ]
