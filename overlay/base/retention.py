"""How much of its past a topic keeps, and a node of all its topics.

An ordinary topic keeps recent events, and fewer when the node's budget runs out. A part of the
catalogue keeps names, bounded by itself: it gives way to nobody's events.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from overlay.base.catalogue import CATALOGUE_SHARDS, is_catalogue
from overlay.base.overlay_settings import OverlaySettings

if TYPE_CHECKING:
    from overlay.history.topic_log import TopicLog


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of one topic."""

    events_max: int
    bytes_max: int
    publishers_max: int
    is_catalogue: bool = False

    @classmethod
    def of(cls, topic: str, settings: OverlaySettings) -> Retention:
        return _retention(settings, is_catalogue(topic))


@lru_cache(maxsize=64)
def _retention(settings: OverlaySettings, is_catalogue: bool) -> Retention:
    """One object for all topics of a kind."""
    if is_catalogue:
        names_max = settings.catalogue_names_max // CATALOGUE_SHARDS
        bytes_max = settings.catalogue_part_bytes_max
        # One publisher for each name, and one for the name that comes before another goes.
        return Retention(names_max, bytes_max, names_max + 1, is_catalogue=True)
    return Retention(settings.log_events_max, settings.log_bytes_max, settings.publishers_max)


# So finely it is known which of the logs that fill a budget grew last.
_ROUNDS = 64


class LogBudget:
    """Bytes of recent events over all ordinary topics of a node. When they run out, the topics that
    have been quiet for longest lose the older half of what they keep.
    """

    def __init__(self, bytes_max: int) -> None:
        self.used = 0
        self.trimmed_events = 0
        self.trimmed_names = 0
        self._bytes_max = bytes_max
        self._by_activity: OrderedDict[int, TopicLog] = OrderedDict()
        # Logs that grew while about the same bytes came count as equally active.
        self._round = 0
        self._round_ends = 0
        self._charged = 0

    def charge(self, log: TopicLog, nbytes: int) -> None:
        if log.retention.is_catalogue:
            return
        self.used += nbytes
        self._charged += nbytes
        if self._charged >= self._round_ends:
            self._round += 1
            self._round_ends = self._charged + self._bytes_max // _ROUNDS
        if log.charged_in != self._round:
            log.charged_in = self._round
            self._by_activity[id(log)] = log
            self._by_activity.move_to_end(id(log))
        while self.used > self._bytes_max and self._by_activity:
            quiet = next(iter(self._by_activity.values()))
            quiet.drop_oldest((len(quiet.entries) + 1) // 2)
            if not quiet.entries:
                quiet.charged_in = 0
                del self._by_activity[id(quiet)]

    def trimmed(self, log: TopicLog, nbytes: int, events: int) -> None:
        """The log has dropped so much."""
        self.trimmed_events += events
        if log.retention.is_catalogue:
            self.trimmed_names += events
        else:
            self.used -= nbytes

    def release(self, log: TopicLog) -> None:
        """The log is given up."""
        if not log.retention.is_catalogue:
            self.used -= log.nbytes
            log.charged_in = 0
            self._by_activity.pop(id(log), None)
