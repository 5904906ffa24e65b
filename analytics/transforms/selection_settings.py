"""Settings of `selection`: apart, as workers have them too."""

from __future__ import annotations

from dataclasses import dataclass

from analytics.analytics_settings import DAY_S, late_setting, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionJobSettings:
    late_s: float = late_setting(DAY_S)
    load_weight: float = setting(
        1.2,
        "What a load of twice the average costs, in similarity: w_l over the number of brokers, as "
        "brokers have it.",
    )
    load_floor: float = setting(
        20.0, "Loads are compared as if each broker had so many subscriptions more."
    )
    margin: float = setting(0.05, "Nobody is moved for a gain of utility below this.")
    capacity: float = setting(
        1.2, "A broker takes users until it has so many times the average load.", least=1.0
    )
    intake: float = setting(
        0.5,
        "In one round a broker takes users of so many times the average load at most: all move at "
        "once, and would run to the same one.",
        above=True,
    )
    rounds_max: int = setting(16, "Rounds at most, if nothing settles before.", least=1)
    settled: float = setting(
        0.002,
        "A cluster is settled when fewer than this share of its users moves in each of two rounds.",
    )
    cluster_size: int = setting(
        16, "Brokers without a cluster are divided into clusters of about so many.", least=1
    )
    keep_s: float = setting(
        30 * DAY_S,
        "A subscription that nothing was heard of for so long is forgotten: a broker that crashed "
        "does not say who left.",
        above=True,
    )
