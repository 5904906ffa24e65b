"""What broker selection counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class SelectionCounters:
    summaries_sent: int = counter("Summaries published to the cluster.")
    summaries_received: int = counter("Summaries taken in from other brokers of the cluster.")
    summaries_ignored: int = counter(
        "Summaries ignored: late, malformed, or from more brokers than a cluster may have."
    )
    neighbours_lost: int = counter(
        "Brokers of the cluster that nobody is sent to any more: connections to them failed."
    )
    summary_messages: int = counter(
        "Messages for exchanging summaries as DYNATOPS counts them: one to each other broker."
    )
    summary_keys_sent: int = counter("Topic keys in published summaries.")
    users_considered: int = counter("Times the best broker for a user was looked for.")
    redirects_similarity: int = counter("Users sent to a broker with more of their topics.")
    redirects_load: int = counter("Users sent to a broker with less load.")
    redirects_advised: int = counter("Users sent to the broker that advice names.")
    redirects_held_back: int = counter(
        "Users better off elsewhere who stay: moved lately, or too many at once."
    )

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
