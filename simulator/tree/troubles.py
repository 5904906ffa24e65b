"""When a run in a tree may tell of losses: while something is away for long, or much at once.

Either of an origin and its keeper may be away, one after the other, and nothing is lost. Past that,
what publishers were told to be safe may be gone, if that is told: when something breaks before what
broke last is repaired, and when somebody asks for the past of a broker that is out of reach for
longer than he waits (`ForwardingSettings.fetch_patience_s`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.forwarding.base.forwarding_settings import ForwardingSettings

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

# Copies are made anew, and kept sessions have what they missed, so long after something came back.
REPAIR_S = 8.0
# A link takes so long to be up again behind what it waited for.
GREETING_S = 1.0
# What lay behind what was away for long is told so long after that is back: to sessions that waited
# for others first. Where nobody knows what was lost, each session is told when it goes elsewhere.
TELLING_S = 30.0
# A new process of a kept session knows within this where that stood; one that leaves before that
# is told.
PLACES_TOLD_S = 30.0
# So long after everything is back, what was under way by then may still be given up.
SETTLING_S = 6.0


@dataclass(slots=True)
class Troubles:
    settings: ForwardingSettings
    # From when to when losses may be told.
    excuses: list[tuple[float, float]] = field(default_factory=list)
    _last_began_s: float = -REPAIR_S
    _last_ended_s: float = -REPAIR_S

    def note(self, run: SimulatedRun, lasts_s: float, *, is_drastic: bool = False) -> None:
        """Something goes away now, for so long."""
        now_s = run.scheduler.now_s
        ends_s = now_s + lasts_s
        is_long = lasts_s + GREETING_S >= self.settings.fetch_patience_s
        is_too_much = now_s < self._last_ended_s + REPAIR_S
        if is_too_much:
            self._excuse(run, self._last_began_s, max(self._last_ended_s, ends_s))
        elif is_drastic:
            self._excuse(run, now_s, ends_s)
        elif is_long:
            self._excuse(run, now_s, ends_s, ends_s + TELLING_S)
        self._last_began_s = now_s if not is_too_much else self._last_began_s
        self._last_ended_s = max(self._last_ended_s, ends_s)

    def _excuse(
        self, run: SimulatedRun, since_s: float, until_s: float, told_until_s: float = math.inf
    ) -> None:
        self.excuses.append((since_s, told_until_s))
        run.world.taken_away.append(until_s + SETTLING_S)

    def check_gaps(self, run: SimulatedRun) -> list[str]:
        """Gaps that were told though nothing may have been lost."""
        return [
            f"{gap.client} was told of a gap on {gap.topic!r} at {gap.at_s:.3f} s, for no reason"
            for gap in run.world.gaps
            if gap.at_s - gap.process_since_s > PLACES_TOLD_S
            and not any(since_s <= gap.at_s <= until_s for since_s, until_s in self.excuses)
        ]
