"""Writing what happens at a broker to the lake: the driver's side of the core's logbook.

At the end of each window the core's notes become rows, in the time of the wall, and go to the
writer, whose thread does the rest. Only this module knows what time of day it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

from broker_agent.core.broker import Broker
from broker_agent.core.reports.logbook import LogbookPage
from broker_agent.core.selection.cluster_names import LATITUDE, LONGITUDE, coordinates
from dynatops.lake.counters import LakeCounters
from dynatops.lake.fields import PUBLICATIONS, REQUESTS, SESSIONS, SUBSCRIPTIONS
from dynatops.lake.files import Lake
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.writer import LakeWriter, Row
from overlay.base.catalogue import is_system

_NOWHERE = (None, None)
# Of a window.
_SLIVER = 0.1
# What is less is jitter.
_PUT_BACK_US = 1_000_000


class LakeThreadError(RuntimeError):
    """The thread that writes to the lake has ended; what it says of that is in the log."""


class LakeFeed:
    def __init__(
        self,
        core: Broker,
        lake: Lake,
        settings: LakeSettings,
        labels: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        self._core = core
        self._now = now
        self._window_s = settings.window_s
        self._place: tuple[float | None, float | None] = _NOWHERE
        if LATITUDE in labels and LONGITUDE in labels:
            self._place = coordinates(labels)
        self.writer = LakeWriter(lake, settings, core.identity.broker_id, core.identity.incarnation)
        # What takes the core's time to the wall's.
        self._later_us: int | None = None

    @property
    def counters(self) -> LakeCounters:
        return self.writer.counters

    def start(self) -> None:
        self.writer.start()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # Windows end where those of other brokers do.
            left_s = self._window_s - time.time() % self._window_s
            # Perhaps the last one was ended too soon, as clocks differ.
            await asyncio.sleep(left_s if left_s > _SLIVER * self._window_s else self._window_s)
            self.take()
            self.writer.look()
            if not self.writer.is_alive:
                raise LakeThreadError

    def take(self) -> None:
        """Hand over what was noted since the last time."""
        wall_us = time.time_ns() // 1_000
        self._hand_over(self._core.take_logbook_page(self._now()), wall_us)

    def _hand_over(self, page: LogbookPage, wall_us: int) -> None:
        # From the core's time to the wall's.
        later_us = self._later_us = self._steady(wall_us - page.until_us)
        broker_id = self._core.identity.broker_id
        self.writer.put(SESSIONS, list(self._sessions(page, later_us, broker_id)))
        subscriptions: list[Row] = [
            (at_us + later_us, broker_id, user_id, topic, op)
            for at_us, user_id, topic, op in page.subscriptions
        ]
        self.writer.put(SUBSCRIPTIONS, subscriptions)
        window = (page.since_us + later_us, (page.until_us - page.since_us) / 1e6, broker_id)
        publications: list[Row] = [
            (*window, topic, counted.events, counted.nbytes)
            for topic, counted in page.publications.items()
            if counted.events
        ]
        self.writer.put(PUBLICATIONS, publications)
        requests: list[Row] = [
            (*window, topic, count)
            for topic, count in page.requests.items()
            if not is_system(topic)
        ]
        self.writer.put(REQUESTS, requests)
        self.counters.lake_rows += page.dropped
        self.counters.lake_rows_dropped += page.dropped

    def _steady(self, later_us: int) -> int:
        """Times of rows are in the order of what happened, unless the wall's clock is put back."""
        last_us = self._later_us
        if last_us is not None and 0 < last_us - later_us < _PUT_BACK_US:
            return last_us
        return later_us

    def _sessions(self, page: LogbookPage, later_us: int, broker_id: str) -> Iterator[Row]:
        for at_us, user_id, op, place in page.sessions:
            yield at_us + later_us, user_id, broker_id, op, *(place or self._place)

    def abandon(self) -> None:
        self.writer.abandon()

    async def finish(self) -> None:
        """The broker has ended: write everything."""
        wall_us, core = time.time_ns() // 1_000, self._core
        self._hand_over(core.end_logbook(self._now()), wall_us)
        await asyncio.to_thread(self.writer.close)
