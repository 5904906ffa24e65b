"""How long things take here, told batch by batch.

Of events themselves only the publisher's clock says how old they are. The core knows no time of
day, so it keeps a run for its driver when that asks for one: a sample, not every event.
"""

from __future__ import annotations

from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.observing.metrics import Histogram
from dynatops.v1.overlay_pb2 import Run
from overlay.base.catalogue import is_system

# Seconds. From what one process does at once to what a retry or a reconfiguration adds.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Timings:
    def __init__(self) -> None:
        # From a publication's arrival to its acknowledgement.
        self.acknowledged_s = Histogram(BOUNDS_S)
        # Of the oldest event in what a client is sent: since it was queued.
        self.queued_s = Histogram(BOUNDS_S)
        self._wants_run = False
        self._run: tuple[Run, float] | None = None

    def taken(self, session: Session, bytes_max: int, now_s: float) -> list[Content]:
        """Take output from a session, noting for how long it had waited."""
        since_s = session.oldest_s
        output = session.take_output(bytes_max, now_s)
        if output and since_s is not None:
            self.queued_s.observe(now_s - since_s)
        return output

    def note_run(self, run: Run, now_s: float) -> None:
        """This one has just come along its tree, for clients here."""
        if self._wants_run and run.count and not is_system(run.topic):
            self._run, self._wants_run = (run, now_s), False

    def note_bundle(self, bundle: Bundle, now_s: float) -> None:
        if self._wants_run:
            self._run, self._wants_run = (bundle.run_at(0), now_s), False

    def take_run(self) -> tuple[Run, float] | None:
        """The first run since the last call, and when it came."""
        taken, self._run = self._run, None
        self._wants_run = True
        return taken
