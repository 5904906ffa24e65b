"""Every number that forwarding in a tree depends on, with its unit, its reason and its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overlay.base.overlay_settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingSettings:
    # Read by pydantic where these settings are nested in a process's: unknown keys are refused.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    greeting_retry_s: float = setting(0.3, "A link that is not up is greeted on again after this.")
    keepalive_s: float = setting(1.0, "Something is said on a link at least this often.")
    peer_timeout_s: float = setting(
        4.0, "A neighbour silent for this long is taken for gone until it greets again."
    )
    resend_min_s: float = setting(
        0.4, "What is not confirmed by then is sent again; above a round trip, and doubles."
    )
    resend_max_s: float = setting(3.0, "The longest pause between such repeats.")
    resend_batches_max: int = setting(8, "Batches sent again at once; the oldest go first.")
    link_window_bytes: int = setting(
        4 << 20, "Events on their way to one neighbour; more wait in the log, which is bounded."
    )
    link_batches_max: int = setting(
        100_000,
        "Batches on their way to one neighbour, changes of its table among them; past it the "
        "session of the link begins again, with whole tables.",
    )
    early_batches_max: int = setting(
        1_024, "Batches kept that overtook others; later ones come again when it is their turn."
    )
    batch_bytes: int = setting(
        256 << 10, "Events in one batch; a larger run is a batch of its own."
    )

    tree_log_bytes_max: int = setting(
        64 << 20, "Recent events kept for neighbours, own ones and those that came by."
    )
    tree_log_entries_max: int = setting(200_000, "Entries of that log.")
    own_log_bytes_max: int = setting(
        128 << 20, "Events of this broker's publishers, kept for whoever must repair."
    )
    own_log_entries_max: int = setting(500_000, "Entries of that log.")
    copies_bytes_max: int = setting(
        128 << 20, "Events kept for one neighbour whose keeper this broker is."
    )
    copies_entries_max: int = setting(500_000, "Entries of those copies.")
    streams_max: int = setting(
        10_000, "Streams known: one for each life of each broker. The longest quiet are forgotten."
    )
    stream_forget_s: float = setting(
        600.0, "A stream that has ended and that this broker has had whole is forgotten after this."
    )

    progress_s: float = setting(
        1.0, "How often neighbours are told how far streams are that had nothing for them."
    )
    start_patience_s: float = setting(
        5.0, "A subscription waits so long for neighbours that have not been heard of at all yet."
    )
    recovery_patience_s: float = setting(
        10.0,
        "A broker that starts waits so long for all neighbours to say what copies they have of its "
        "former life; what was not found by then is told as lost.",
    )
    fetch_patience_s: float = setting(
        6.0,
        "A repair waits so long for a link that is down; then what lies behind it, and is not all "
        "to be had on this side, is told as lost.",
    )
    fetch_part_bytes: int = setting(256 << 10, "Events in one part of an answer to a repair.")
    fetches_max: int = setting(10_000, "Repairs that are under way here; further ones are refused.")
    keeper_patience_s: float = setting(
        2.0, "A broker whose keeper is gone for this long asks another neighbour to be it."
    )
    pending_acks_max: int = setting(
        100_000,
        "Acknowledgements that wait for the keeper; past it the oldest go and are asked for again.",
    )
    topics_published_max: int = setting(
        200_000, "Topics whose publishers are remembered, to know repeats; the oldest go first."
    )
    topic_publishers_max: int = setting(
        4_096, "Publishers remembered for each topic; the longest silent go first."
    )
    order_patience_s: float = setting(
        3.0, "A publication waits so long for the events that its publisher published elsewhere."
    )
    waiting_confirmations_max: int = setting(
        100_000, "Subscriptions of this broker that wait to be confirmed; the oldest go first."
    )

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith("_s") and not value > 0:
                raise ValueError(f"{name} must be a positive number of seconds")
            if name.endswith(("_max", "_bytes")) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.peer_timeout_s <= self.keepalive_s:
            raise ValueError("peer_timeout_s must be longer than keepalive_s")
