"""What a broker in a tree counts. Names and meanings here are the ones shown to operators."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class ForwardingCounters:
    link_frames: int = counter("Frames taken in from neighbours.")
    link_frames_strange: int = counter(
        "Frames from brokers that are no neighbours, or with what this version does not know."
    )
    link_batches_repeated: int = counter("Batches that had come already.")
    link_batches_early: int = counter("Batches that overtook others and could not be kept.")
    link_batches_resent: int = counter("Batches sent again for want of a confirmation.")
    link_sessions: int = counter("Sessions of links that came up.")
    link_sessions_lost: int = counter("Sessions of links that ended, by silence or a new one.")
    link_sessions_full: int = counter("Of these, ended because too much was on its way.")
    tree_events_received: int = counter("Events received from neighbours.")
    tree_events_repeated: int = counter("Of these, events that had come already.")
    tree_events_forwarded: int = counter("Events sent on to neighbours, once for each.")
    tree_events_filtered: int = counter("Events that went to no neighbour.")
    tree_events_local: int = counter("Events for subscribers of this broker.")
    tree_events_copied: int = counter("Events sent to the keeper that does not want them itself.")
    tree_filters_refused: int = counter(
        "Filters and advertisements of neighbours that there was no room for."
    )
    tree_events_unreadable: int = counter("Runs that conditions ask about and nobody can read.")
    tree_log_trimmed: int = counter("Entries dropped from the logs to stay within their bounds.")
    tree_losses: int = counter("Times something was found to be lost and told so.")
    streams_dropped: int = counter("Streams forgotten because there were too many.")
    tree_fetches: int = counter("Repairs begun for neighbours and sessions.")
    tree_fetches_read_here: int = counter(
        "Answered from copies or the log here, in place of a neighbour: if it had nothing more, or "
        "its link was down."
    )
    tree_fetches_refused: int = counter("Repairs refused because too many were under way.")
    pending_acks_dropped: int = counter("Acknowledgements dropped because too many were waiting.")
    topics_unremembered: int = counter("Topics whose publishers were forgotten for others.")
    confirmations_dropped: int = counter("Subscriptions whose confirmation was given up.")
    tree_tallies_dropped: int = counter("Topics whose counts nobody took, forgotten for others.")
    publications_early: int = counter("Publications that must come again: too early.")
    published_repeats: int = counter("Publications that had been taken already.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
