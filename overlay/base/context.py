"""What all parts of one node share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from overlay.base.counters import OverlayCounters
from overlay.base.effects import Effect, Outbox
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Directory, Liveness, Peer
from overlay.base.retention import LogBudget


@dataclass(frozen=True, slots=True)
class Context:
    me: Peer
    settings: OverlaySettings
    rng: Random
    counters: OverlayCounters
    # Who is where, and who is alive.
    directory: Directory
    liveness: Liveness
    # What is to be said to other nodes, and done by the host, because of the present input.
    outbox: Outbox
    effects: list[Effect]
    # Bytes of recent events over all topics.
    budget: LogBudget

    @classmethod
    def of(
        cls, me: Peer, settings: OverlaySettings, rng: Random, counters: OverlayCounters
    ) -> Context:
        directory = Directory(me, settings.peers_known_max)
        return cls(
            me=me,
            settings=settings,
            rng=rng,
            counters=counters,
            directory=directory,
            liveness=Liveness(
                ping_period_s=settings.ping_period_s,
                silence_s=settings.silence_s,
                condemned_s=settings.condemned_s,
                condemned_max=settings.peers_known_max,
                counters=counters,
            ),
            outbox=Outbox(me, directory),
            effects=[],
            budget=LogBudget(settings.log_total_bytes_max),
        )
