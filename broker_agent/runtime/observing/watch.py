"""What is measured about a running broker beside what its core counts: how late the event loop is,
how old events are when they get here, and the census. Done with each tick, in a fraction of it.
"""

from __future__ import annotations

import time

from google.protobuf.message import DecodeError

from broker_agent.core.broker import Broker
from broker_agent.core.sessions.timings import BOUNDS_S
from broker_agent.runtime.observing.census import Census
from dynatops.kit.observing.metrics import Histogram
from dynatops.v1.overlay_pb2 import Event, Run

_EVENT_TAG = 0x0A
_FIRST_BYTES_MAX = 1 << 20


class Watch:
    def __init__(self, core: Broker, *, closely: bool) -> None:
        """`closely`: somebody may want to know."""
        self.census = Census(core)
        self.lag_s = Histogram(BOUNDS_S)
        self.delivery_s = Histogram(BOUNDS_S)
        self._core = core
        self._closely = closely

    def tick(self, late_s: float, now_s: float) -> None:
        """`late_s`: how much later than it wished the tick came."""
        self.lag_s.observe(max(late_s, 0.0))
        if self._closely:
            self.census.step(now_s)
            self._sample()

    def _sample(self) -> None:
        """One run of those that have come since the last tick: how old was its first event?"""
        sample = self._core.take_run_sample()
        if sample is None:
            return
        run, ago_s = sample
        event = first_event(run)
        if event is not None and event.published_us:
            came_us = time.time_ns() / 1e3 - ago_s * 1e6
            # Clocks of different machines differ.
            self.delivery_s.observe(max(came_us - event.published_us, 0.0) / 1e6)


def first_event(run: Run) -> Event | None:
    """Without looking at the others: a run may have thousands."""
    raw = run.events
    if len(raw) < 2 or raw[0] != _EVENT_TAG:
        return None
    size = shift = 0
    at = 1
    while at < min(len(raw), 6):
        byte = raw[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            break
    else:
        return None
    if size > min(_FIRST_BYTES_MAX, len(raw) - at):
        return None
    try:
        return Event.FromString(raw[at : at + size])
    except DecodeError:
        return None
