"""`analytics run` that also says on standard output which stages of Spark's have begun, so that
whoever started it can break something in the middle of one.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from py4j.protocol import Py4JError
from pyspark import SparkContext

from analytics.main import main

STAGE = "stage "


def _tell_stages() -> None:
    seen: set[int] = set()
    while True:
        context = SparkContext._active_spark_context
        if context is not None:
            active: set[int] = set()
            # It is still being made, or is over.
            with contextlib.suppress(AttributeError, OSError, Py4JError):
                active = set(context.statusTracker().getActiveStageIds())
            for stage in sorted(active - seen):
                sys.stdout.write(f"{STAGE}{stage}\n")
                sys.stdout.flush()
            seen |= active
        time.sleep(0.02)


if __name__ == "__main__":
    threading.Thread(target=_tell_stages, daemon=True).start()
    sys.exit(main())
