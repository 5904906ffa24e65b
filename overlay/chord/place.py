"""Finding one's place: whom to ask now and then where in the ring this node belongs.

The answer joins what had come apart: two rings that a partition made, a node that the ring skips.
Every other time someone silent is asked, who may have been in another ring all the while; and
whoever comes back after a silence is asked at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlay.base.context import Context
from overlay.base.peers import Peer


class PlaceChecks:
    def __init__(self, context: Context) -> None:
        self._rng = context.rng
        self._settings = context.settings
        self._directory = context.directory
        self._seeds: Sequence[Peer] = ()
        self._due_s = 0.0
        self._period_s = context.settings.check_period_min_s
        self._asked_returned_s = 0.0

    def start(self, seeds: Sequence[str], now_s: float) -> None:
        self._seeds = [Peer.at(address) for address in seeds]
        self._due_s = now_s

    def neighbours_changed(self) -> None:
        """Ask more often again, for a while."""
        self._period_s = self._settings.check_period_min_s

    def due(self, now_s: float) -> Peer | None:
        """Whom to ask now."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + self._period_s * self._rng.uniform(0.8, 1.2)
        self._period_s = min(2 * self._period_s, self._settings.check_period_max_s)
        known = [*self._directory, *self._seeds]
        silent = self._directory.silent_for(self._settings.silence_s, now_s)
        if silent and self._rng.random() < 0.5:
            known = silent
        return self._rng.choice(known) if known else None

    def is_worth_asking(self, silent_s: float, now_s: float) -> bool:
        """Whether to ask someone who speaks after so long a silence."""
        if silent_s < self._settings.silence_s:
            return False
        if now_s < self._asked_returned_s + self._settings.check_period_min_s:
            return False
        self._asked_returned_s = now_s
        return True
