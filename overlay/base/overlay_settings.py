"""Every number that the overlay's behaviour depends on, with its unit, its reason and its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from overlay.base.catalogue import CATALOGUE_SHARDS


def setting(default: Any, doc: str) -> Any:
    """A dataclass field that carries its own documentation."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySettings:
    # Read by pydantic where these settings are nested in a process's: unknown keys are refused.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    successors_max: int = setting(
        8,
        "Length of the successor list. The ring survives as long as not all of a node's successors "
        "fail within one stabilisation; 8 is log2 of 256 nodes.",
    )
    stabilise_period_s: float = setting(0.5, "How often a node checks its successor.")
    ping_period_s: float = setting(
        1.0, "A peer that this node relies on is pinged after this silence."
    )
    silence_s: float = setting(
        3.0,
        "A peer silent for this long is taken for dead. A broken connection shortens it; lost "
        "packets and busy peers should not.",
    )
    rtt_period_s: float = setting(
        2.0,
        "Where round trips are measured for a manager: how often one more known peer is pinged.",
    )
    condemned_s: float = setting(
        6.0,
        "For this long a dead peer is not believed alive on hearsay; a word of its own suffices.",
    )
    finger_period_min_s: float = setting(
        0.5, "Fingers are made sure of again this soon after a change."
    )
    finger_period_max_s: float = setting(
        2.0,
        "Fingers are made sure of at least this often: by a pong that says where the range of its "
        "sender begins, or else by looking them up.",
    )
    lookup_timeout_s: float = setting(1.5, "An unanswered lookup is forgotten after this.")
    check_period_min_s: float = setting(
        0.25, "A node whose successor has just changed checks its place again this soon."
    )
    check_period_max_s: float = setting(
        2.0,
        "How often a node asks some known peer where it belongs: finds rings that a partition "
        "split and nodes that the ring skips.",
    )
    join_retry_s: float = setting(0.3, "A joining node asks its next seed after this.")
    claim_retry_s: float = setting(0.1, "A new member asks again for its range after this.")
    claim_patience_s: float = setting(
        5.0,
        "After this a new member serves its range with what it has: its successor gave no answer.",
    )
    copy_search_patience_s: float = setting(
        2.0,
        "After a death that left copies elsewhere, others are asked for them for so long; then "
        "their topics begin anew.",
    )
    leave_retry_s: float = setting(0.2, "A leaving node repeats its farewell after this.")
    leave_patience_s: float = setting(5.0, "After this a leaving node goes, answered or not.")
    hops_max: int = setting(
        48,
        "A routed message is dropped after this many hops: routes are log2(n) long unless broken.",
    )
    peers_known_max: int = setting(
        512, "Peers remembered for finding split rings; the longest silent are forgotten first."
    )

    digest_period_s: float = setting(1.0, "How often a tree node compares notes with each child.")
    lease_s: float = setting(
        4.0, "A parent that sends no digest for this long is no parent any more."
    )
    interest_retry_s: float = setting(
        0.5, "A subscription not yet in its tree (or still in it) is sent again; doubles up to 2 s."
    )
    orphan_grace_s: float = setting(
        2.0,
        "A member that the ring does not know for this long is reported to the rendezvous point.",
    )

    log_events_max: int = setting(
        10_000,
        "Recent events kept for each topic; older ones cannot be repaired, only reported lost.",
    )
    log_bytes_max: int = setting(4 << 20, "Bytes of recent events kept for each topic.")
    log_total_bytes_max: int = setting(
        256 << 20, "Bytes of recent events kept by one node for all topics; the oldest go first."
    )
    publishers_max: int = setting(
        4_096,
        "Publishers remembered for each topic, to recognise repeats; the longest silent go first.",
    )
    topics_held_max: int = setting(
        1_000_000,
        "Topics that one node is the rendezvous point of; likewise those that it stands by for, "
        "those whose trees lead through it, and those on their way to another node. Further ones "
        "are not taken: publications and subscriptions wait, and are refused in the end.",
    )
    acknowledgements_waiting_max: int = setting(
        10_000,
        "Acknowledgements of one topic that wait for its replica; past that, the oldest go, and "
        "their brokers ask again.",
    )
    catalogue_names_max: int = setting(
        1_000_000,
        "Topic names kept in the catalogue, an equal share in each of its 32 parts; past that, the "
        "oldest names of a part go: brokers new to a wildcard do not learn of those topics.",
    )
    catalogue_part_bytes_max: int = setting(
        12 << 20,
        "Bytes of one part of the catalogue; past that, its oldest names go. Parts travel whole, "
        "perhaps two in a message: stay well below half of runtime.message_bytes_max.",
    )
    catalogue_check_s: float = setting(
        5.0,
        "How often the rendezvous point of topics makes sure that each part of the catalogue that "
        "they belong in is the one it knows: by announcing one of them again. Names that were lost "
        "with a part are back so soon after the part is, and some round trips.",
    )
    catalogue_round_s: float = setting(
        3_600.0,
        "Each topic is announced to the catalogue again at least once in this time: with a million "
        "topics, 280 announcements a second in the whole network.",
    )
    catalogue_names_per_s: float = setting(
        500.0,
        "Names that one node announces again in a second when a part of the catalogue was lost, "
        "or when it has taken topics over; the rest waits.",
    )
    heartbeat_first_s: float = setting(
        0.5, "After an event without successor its position is announced again; the delay doubles."
    )
    heartbeat_max_s: float = setting(60.0, "The longest delay between such announcements.")
    replica_retry_s: float = setting(
        0.5, "What the replica has not confirmed by then is sent again."
    )
    replica_keep_s: float = setting(
        60.0, "Copies of a range that is no neighbour's any more are kept."
    )
    sync_bytes_per_tick: int = setting(
        4 << 20,
        "State sent to a new replica in one tick, so that events are not held up behind it.",
    )
    adopt_retry_s: float = setting(0.3, "A topic handed over but not confirmed is sent again.")
    topic_idle_s: float = setting(
        600.0, "A topic without members and publications for this long is forgotten, with its log."
    )
    tallied_topics_max: int = setting(
        200_000,
        "Topics whose counts wait for a manager, or for the lake, to be taken; past it the counts "
        "of those that were first go, and are counted.",
    )
    history_grace_s: float = setting(
        5.0,
        "A publication is held up for this long when events before it were acknowledged in a "
        "history that its rendezvous point does not know: after a partition it is on its way.",
    )
    fetch_bytes_max: int = setting(1 << 20, "Events in one answer to a repair request.")

    def __post_init__(self) -> None:
        for name, floor in (
            ("successors_max", 1),
            ("hops_max", 1),
            ("log_events_max", 1),
            ("topics_held_max", 1),
        ):
            if getattr(self, name) < floor:
                raise ValueError(f"{name} must be at least {floor}, not {getattr(self, name)}")
        if self.catalogue_names_max < CATALOGUE_SHARDS:
            raise ValueError(f"catalogue_names_max must be at least {CATALOGUE_SHARDS}")
        for name in self.__slots__:
            if name.endswith("_s") and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a positive number of seconds")
        if self.lease_s <= self.digest_period_s:
            raise ValueError("lease_s must be longer than digest_period_s")
        if self.silence_s <= self.ping_period_s:
            raise ValueError("silence_s must be longer than ping_period_s")
