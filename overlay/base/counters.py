"""What a node counts. Names and meanings here are the ones shown to operators."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class OverlayCounters:
    frames_received: int = counter("Frames taken in from other nodes.")
    frames_stale: int = counter(
        "Frames from an earlier life or a former host of their sender; ignored."
    )
    frames_forwarded: int = counter("Frames for a node that was handed to another broker; sent on.")
    messages_sealed: int = counter("Messages for a node that is changing hands; ignored.")
    messages_unknown: int = counter("Messages of a kind this version does not know; ignored.")
    messages_malformed: int = counter(
        "Messages and publications with terms or numbers that cannot be; ignored."
    )
    hops_exceeded: int = counter("Routed messages dropped because they had made too many hops.")
    peers_moved: int = counter("Nodes learnt to have been handed to another broker.")
    peers_condemned: int = counter("Peers taken for dead, by silence or by a broken connection.")
    takeovers: int = counter("Topics taken over from a rendezvous point that went away.")
    handovers: int = counter("Topics handed over to the node that now owns their key.")
    merges: int = counter("Topics whose two histories, grown apart in a partition, were joined.")
    restamped_events: int = counter("Events stamped again when histories were joined.")
    copy_searches: int = counter(
        "Times a neighbour died before it had copied everything, and others were asked for copies."
    )
    copy_searches_abandoned: int = counter(
        "Of these, ended before all that were asked had answered."
    )
    ranges_assumed: int = counter("Times a range was served without its former owner's word.")
    stamped_events: int = counter("Events stamped as rendezvous point.")
    repeated_events: int = counter(
        "Published events that were stamped already; acknowledged again."
    )
    waiting_events: int = counter(
        "Published events refused because an earlier one is still missing."
    )
    system_events: int = counter(
        "Events of the system's own topics (`$…`), stamped or received here; nothing else counts "
        "them."
    )
    tree_events: int = counter("Events received along a tree, as subscriber or as relay.")
    relayed_events: int = counter("Of these, received without being subscribed: external overhead.")
    tree_delivered_events: int = counter(
        "Of the events received along a tree or stamped here, those that this broker subscribes to."
    )
    tree_delivered_hops: int = counter(
        "Links that these had passed, summed: with the former, the mean length of the way to a "
        "subscriber."
    )
    tree_delivered_way_us: int = counter(
        "Round trips of these links, summed, in microseconds, where a manager has them measured."
    )
    tree_control_sent: int = counter("Messages sent to join, leave and change topic trees.")
    tree_repeats: int = counter("Event runs that had come by already; not forwarded again.")
    tree_strays: int = counter("Event runs of a topic whose tree does not lead through here.")
    tree_resyncs: int = counter("Tree edges whose two ends disagreed and were aligned again.")
    replica_resends: int = counter("Topics sent to the replica again for want of a confirmation.")
    tallies_dropped: int = counter(
        "Topics whose counts nobody had taken, manager or lake, dropped for those of others."
    )
    fetches_served: int = counter("Repair requests answered.")
    log_trimmed_events: int = counter(
        "Recent events dropped from logs to stay within their bounds."
    )

    catalogue_names_dropped: int = counter(
        "Of these, names in the catalogue: it was full, or one name was very long."
    )
    topics_refused: int = counter(
        "Times a topic was not taken because the node had all that it may; its sender tries again."
    )
    histories_dropped: int = counter(
        "Histories on their way to another node that had to go for further ones: what only they "
        "had is lost."
    )
    sentences_dropped: int = counter(
        "Dead peers that were forgotten early, because many died: hearsay may bring them back."
    )
    acknowledgements_dropped: int = counter(
        "Acknowledgements that waited for a replica or the catalogue and had to go for newer ones; "
        "their brokers ask again."
    )
    names_announced_again: int = counter(
        "Names of topics announced to the catalogue again, to see that it still has them."
    )
    catalogue_parts_lost: int = counter(
        "Times a part of the catalogue was found with another history than its names were entered "
        "in; all that belong in it were announced again."
    )
    acknowledgements_held: int = counter(
        "Publications whose acknowledgement had to wait until their topic was in the catalogue."
    )

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
