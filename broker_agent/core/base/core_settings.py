"""The bounds of a broker's core, each with its unit, its reason and what happens past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dynatops.kit.topics import TOPIC_BYTES_MAX
from overlay.base.overlay_settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    payload_bytes_max: int = setting(
        1 << 20, "Largest payload of one event; a larger one is refused to its publisher."
    )
    topic_bytes_max: int = setting(
        TOPIC_BYTES_MAX, "Longest topic name in UTF-8 bytes; a longer one is refused."
    )
    filters_per_session_max: int = setting(
        10_000, "Filters that one session subscribes with; further ones are refused."
    )
    wildcards_per_session_max: int = setting(
        1_000,
        "Of these, those with + or #: each is looked at for every topic that another one brings "
        "in. Further ones are refused.",
    )
    condition_tests_max: int = setting(
        1_000,
        "Tests in conditions that one event may have to pass for one session: in those of one "
        "topic, and in those of all wildcards together. A filter with more is refused.",
    )
    condition_bytes_max: int = setting(
        1 << 20,
        "Characters of all conditions of one request: to read them takes half a second. Filters "
        "whose conditions come after that are refused; they may be asked for in another request.",
    )
    wildcard_names_max: int = setting(
        3_000_000,
        "Names of topics that the wildcards of one session are compared with in ten seconds, as "
        "often as it has wildcards where they match; further wildcards are refused. What is "
        "restored after a restart does not count.",
    )
    topics_per_token_max: int = setting(
        250_000,
        "Topics that the clients of one token publish on here, where its limits name no other "
        "number; events on further ones are refused. A topic that they leave alone for an hour "
        "does not count any more.",
    )
    followed_topics_max: int = setting(
        50_000,
        "Topics that one session's wildcards bring in; of further ones it is told that it misses "
        "them.",
    )
    sessions_max: int = setting(
        200_000, "Sessions on this broker, connected or not; further ones are turned away."
    )
    session_expiry_max_s: float = setting(
        86_400.0, "Longest time that a session is kept without a connection; clients ask for less."
    )
    session_window_bytes: int = setting(
        4 << 20,
        "Bytes on their way to one application that has not taken them; past it, the rest waits.",
    )
    offline_age_max_s: float = setting(
        3_600.0, "Events wait this long for an absent client; then they are dropped and counted."
    )
    hello_timeout_s: float = setting(
        5.0, "A connection on which no hello has come for this long is ended."
    )
    unnamed_max: int = setting(
        1_000, "Connections without a hello at a time; further ones are turned away."
    )
    unnamed_per_address_max: int = setting(
        500,
        "The same for those from one host (of IPv6, one network of 64 bits): a host that fills "
        "them up is not in the way of others.",
    )
    hello_frame_bytes_max: int = setting(
        64 << 10,
        "Largest first frame of a connection, of any client; one that is larger ends it.",
    )
    frame_messages_max: int = setting(
        16_384, "Messages in one frame of a client; its session ends with one that has more."
    )
    frame_parts_max: int = setting(
        262_144,
        "The same with all that messages are made of: filters, cursors, events. It is counted "
        "before any of it takes memory.",
    )
    throttle_wait_max_s: float = setting(
        30.0,
        "A publisher whose token has used up its rate is not read from until it may go on. What it "
        "had sent before waits at most this long; the rest is refused as too fast.",
    )
    session_queue_events_max: int = setting(
        200_000,
        "Events waiting for one subscriber; past it, the session's policy for slow subscribers "
        "applies: newest events are dropped and counted, or the session is closed.",
    )
    session_queue_bytes_max: int = setting(16 << 20, "The same, in bytes.")
    reader_patience_s: float = setting(
        0.5,
        "So long a publisher waits at most while all sessions that its events go to are on this "
        "broker and past half of these bounds. A client that has read nothing by then is not "
        "waited for again.",
    )
    session_answers_bytes_max: int = setting(
        8 << 20,
        "Bytes of answers waiting for a client that does not read them: from half of it on, the "
        "broker reads nothing from that client; past it, its connection ends.",
    )
    session_untold_max: int = setting(
        10_000,
        "Topics for which a session that cannot be told yet is told apart how much it missed; of "
        "further ones it is told the sum.",
    )
    publish_window_bytes: int = setting(
        8 << 20,
        "Bytes of one session's publications that the rendezvous points have not taken yet; past "
        "it, the broker stops reading from the publisher until some are.",
    )
    publish_total_bytes_max: int = setting(
        256 << 20,
        "The same of all sessions together; past it, the broker stops reading from the client that "
        "publishes next.",
    )
    publish_retry_s: float = setting(
        0.4, "A publication not taken by its rendezvous point is sent again; doubles up to 2 s."
    )
    history_window_bytes: int = setting(
        1 << 20,
        "Events of the past under way from stores to a client, of each history that it has open; "
        "more follow as they come.",
    )
    histories_per_session_max: int = setting(
        8, "Histories that a client has open at a time; a further one is refused."
    )
    stores_needed: int = setting(
        2,
        "Stores that must have an event on their disks before its publisher hears that it is "
        "`stored`.",
    )
    stored_deadline_s: float = setting(
        30.0,
        "Stores get so long once brokers have an event; then its publisher is told that it is "
        "published, and not known to be on as many disks.",
    )
    publish_deadline_s: float = setting(
        30.0, "A publication that nobody took for this long is refused to its publisher."
    )
    announcements_open_max: int = setting(
        1_000,
        "Topics on their way into the catalogue at once; further ones wait until some are in it.",
    )
    repair_delay_s: float = setting(
        0.03, "A gap is given this long to close by itself: events may overtake each other."
    )
    repair_retry_s: float = setting(0.5, "An unanswered repair request is sent again.")
    publishers_per_topic_max: int = setting(
        4_096, "Publishers remembered for each subscribed topic, to recognise repeats."
    )
    rendezvous_cache_max: int = setting(
        100_000, "Topics whose rendezvous point is remembered, to publish without detours."
    )
    frozen_max_s: float = setting(
        30.0,
        "In a reconfiguration, a broker holds its clients' publications and subscription changes "
        "back for this long at most; a manager may ask for less.",
    )
    quiet_max_s: float = setting(
        1.0, "Frozen, a broker waits this long for publications that are on their way."
    )
    repair_max_s: float = setting(
        2.0, "A broker at its new node waits this long for its trees before it says it is done."
    )
    state_resend_s: float = setting(
        0.3, "A part of a node's state, or a question about a plan, is sent again after this."
    )
    outcome_patience_s: float = setting(
        3.0,
        "Frozen for longer than allowed, a broker whose node is changing hands asks the others "
        "for this long how the plan ended; then it goes on with its former node.",
    )
    avoided_for_s: float = setting(
        30.0, "A client is not sent where it says that it could not connect, for this long."
    )
    alternatives_max: int = setting(5, "Other brokers named to a client, to turn to if need be.")
    clock_step_max_s: float = setting(
        1.0,
        "The most time that passes between two inputs as far as timeouts are concerned: a clock "
        "that jumps, or a process that was asleep, makes nobody look dead.",
    )
