"""What broker selection depends on, each with its unit, its reason and what happens past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overlay.base.overlay_settings import setting

_POSITIVE = (
    *("cluster_parts", "cluster_size_max", "update_period_s", "early_period_s", "stale_after_s"),
    *("summary_keys_max", "interests_max", "min_stay_s", "moves_per_s", "moves_burst"),
    *("sent_per_update_max", "remembered_max"),
)
_NOT_NEGATIVE = (
    *("cluster_cell_degrees", "early_share", "load_weight", "load_floor", "advice_weight"),
    *("margin", "join_margin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    enabled: bool = setting(
        True, "Tell other brokers of the cluster what is subscribed to here, and send users there."
    )
    cluster: str = setting(
        "", "Name of the cluster: brokers exchange users within it. Empty: see the next two."
    )
    cluster_label: str = setting(
        "", "The broker's label, such as region, whose value names its cluster."
    )
    cluster_cell_degrees: float = setting(
        0.0,
        "Brokers of one cell of so many degrees of latitude and longitude are a cluster; 0: "
        "geography does not matter.",
    )
    cluster_parts: int = setting(
        1,
        "Every cluster is divided into so many, by the hash of the broker's name: arcs of the "
        "ring. Messages grow with the square of a cluster's size.",
    )
    cluster_size_max: int = setting(
        128, "Other brokers that a broker knows of its cluster; further ones are ignored, counted."
    )
    update_period_s: float = setting(
        2.0, "How often a broker tells its topics and load to its cluster (T_update)."
    )
    early_share: float = setting(
        0.05,
        "A broker whose topics changed by this share tells so before its period is over; 0: never. "
        "Users who come all at once are sorted in a second, not in some periods.",
    )
    early_period_s: float = setting(0.2, "But not sooner than this after its last summary.")
    summary_keys_max: int = setting(
        20_000,
        "Topics in one summary, 8 bytes each; of more, the lowest keys are sent, which are a fair "
        "sample.",
    )
    interests_max: int = setting(
        256, "Topics of one user that are compared; of more, those with the lowest keys."
    )
    stale_after_s: float = setting(
        7.0, "No user is sent to a broker whose last summary is older than this."
    )
    load_weight: float = setting(
        1.2,
        "What a load of twice the average costs, in similarity. The paper's w_l is this times the "
        "number of brokers, so that it suits any number.",
    )
    load_floor: int = setting(
        20,
        "Loads are compared as if each broker had so many subscriptions more: among few users, "
        "balance does not matter.",
    )
    advice_weight: float = setting(
        0.5, "What fresh advice for a broker is worth, in similarity; 0: advice is ignored."
    )
    margin: float = setting(
        0.2, "A user who is settled here moves only if its utility grows by more than this."
    )
    join_margin: float = setting(0.02, "The same for one who has just come, and has little here.")
    min_stay_s: float = setting(5.0, "A user who was moved is not moved again for this long.")
    moves_per_s: float = setting(
        50.0, "Users that a broker sends away each second; further ones stay for now."
    )
    moves_burst: int = setting(100, "Users it may send away at once after a quiet time.")
    sent_per_update_max: int = setting(
        20,
        "Users sent to one broker between two of its summaries; further ones go to the next best.",
    )
    remembered_max: int = setting(
        100_000,
        "Moved users remembered for min_stay_s; past it, all of those unknown stay for as long.",
    )

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.stale_after_s <= self.update_period_s:
            raise ValueError("stale_after_s must be longer than update_period_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings:
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    redis_url: str = setting(
        "", "Where advice is, such as redis://10.0.0.9:6379/0. Empty: no advice is read."
    )
    password: str = setting(
        "",
        "File with the password of that server; by default $DYNATOPS_REDIS_PASSWORD. In the URL "
        "every user of the machine could read it.",
    )
    period_s: float = setting(5.0, "How often new advice is looked for.")
    timeout_s: float = setting(2.0, "Redis is taken for away if it gives no answer for this long.")
    backoff_max_s: float = setting(
        60.0, "While Redis is away pauses double up to this; the last advice serves while fresh."
    )
    entries_max: int = setting(
        100_000, "Clients, and as many topics, whose advice is kept; the rest is left out, counted."
    )

    def __post_init__(self) -> None:
        for name in ("period_s", "timeout_s", "backoff_max_s", "entries_max"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
