"""What a broker counts about its clients; its node's counters are `overlay.base.counters`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class BrokerCounters:
    freezes: int = counter("Times a reconfiguration held this broker's clients back.")
    frozen_ms: int = counter("For how long, in all.")
    thaws_alone: int = counter("Times nobody said how a reconfiguration ended; the broker went on.")
    moves: int = counter("Times this broker's node changed hands.")
    moves_missed: int = counter(
        "Times its node was hosted elsewhere and no other had come for it: it joined the ring anew."
    )
    sessions_opened: int = counter("Sessions opened.")
    sessions_refused: int = counter("Sessions turned away, for their protocol or for their number.")
    sessions_resumed: int = counter("Sessions that a client came back to.")
    sessions_taken_over: int = counter("Connections ended because another came for the session.")
    sessions_expired: int = counter("Sessions given up because nobody came back to them.")
    sessions_moved: int = counter("Sessions given up because their client went to another broker.")
    session_moves_not_believed: int = counter(
        "Words of another broker that a session went there, which named none of that client's."
    )
    session_moves_outdated: int = counter(
        "Such words that came when the client was back already; nothing is given up."
    )
    sessions_restored: int = counter("Sessions found on disk when the broker started.")
    session_writes_failed: int = counter("Times sessions could not be written to disk.")
    subscriptions_not_saved: int = counter(
        "Requests to subscribe of sessions that are to be kept, refused while the disk fails."
    )
    deliveries_saved: int = counter("Deliveries written to disk: not confirmed within a flush.")
    sessions_closed_slow: int = counter("Sessions closed because their queue was full.")
    unread_pauses: int = counter(
        "Times a client was not read from because it did not read what it was told."
    )
    reader_pauses: int = counter(
        "Times a publisher was not read from because all that its events go to had enough to read."
    )
    connections_unread: int = counter("Connections ended because too many answers waited on them.")
    catch_ups_put_off: int = counter(
        "Times a client in a tree that had got what it missed waited before it got that again."
    )
    rests_forgotten: int = counter("Clients that need not wait so, for lack of room.")
    places_untold: int = counter(
        "Times a session was not told where a topic begins, for lack of room in its queue."
    )
    stored_events: int = counter("Events that the store here has on its disk.")
    store_fills_refused: int = counter(
        "Parts of what other stores gave that the log could not take, for good."
    )
    store_refusals: int = counter(
        "Times the store's log took no events, mostly for want of room; they are offered again."
    )
    store_units_refused: int = counter(
        "Runs of events that the store here did not keep: its log has as many topics as it may."
    )
    store_marks_forgotten: int = counter(
        "Topics of which it is no longer known what stores have, for lack of room; they tell again."
    )
    store_questions_forgotten: int = counter(
        "Topics of which brokers are no longer told what stores have, for lack of room; they ask "
        "again."
    )
    authentication_refused: int = counter(
        "Clients not let in: no token, an unknown one, another's client id, or too many sessions."
    )
    inspect_refused: int = counter("Inspections refused: no token, or one that may not inspect.")
    administration_refused: int = counter(
        "Commands refused: no token, or one whose role is not `admin`."
    )
    reloads_failed: int = counter("Times new tokens or certificates were of no use; old ones stay.")
    hello_timeouts: int = counter("Connections ended because no hello came in time.")
    connections_refused: int = counter("Connections ended because too many were without a hello.")
    publishers_not_believed: int = counter(
        "Sessions ended because they published under a number that was not theirs."
    )
    connections_refused_by_host: int = counter("Of these, because too many were of one host.")
    first_reads_lost: int = counter(
        "Streams ended because they had said nothing, and others waited to be read from."
    )
    frames_refused: int = counter(
        "Frames of clients that were none, or larger than a frame may be; their sessions end."
    )
    publish_not_allowed: int = counter(
        "Publications refused because the token does not allow them."
    )
    subscribe_not_allowed: int = counter("Subscriptions refused for the same reason.")
    connections_over_quota: int = counter(
        "Clients not let in because their token has so many connections, or sessions, already."
    )
    filters_over_quota: int = counter(
        "Filters refused: too many of a session or token, too many tests, or too wide."
    )
    topics_over_quota: int = counter(
        "Publications refused because their token has published on so many other topics."
    )
    publish_too_fast: int = counter("Publications refused because too many waited for their turn.")
    throttle_pauses: int = counter("Times a publisher was made to wait for its token's rate.")
    client_errors: int = counter("Client messages refused: bad topic, payload, or order.")
    published_events: int = counter("Events accepted from publishers.")
    published_bytes: int = counter("Their bytes.")
    publish_retries: int = counter("Publications sent to their rendezvous point again.")
    publish_refused_events: int = counter("Events refused, or given up after the deadline.")
    publish_pauses: int = counter("Times a publisher was made to wait.")
    delivered_events: int = counter("Events put into subscribers' queues.")
    dropped_events: int = counter("Events not delivered because a subscriber's queue was full.")
    expired_events: int = counter("Events dropped because they waited too long for their client.")
    catch_ups: int = counter("Readers started for clients that came with a place of their own.")
    followed_topics_refused: int = counter("Topics that a session's wildcards match in excess.")
    lost_events: int = counter("Events that were no longer retained when a gap was noticed.")
    unknown_losses: int = counter("Gaps whose size cannot be known.")
    audiences_forgotten: int = counter(
        "Topics of whom a broker in a tree has looked up who here wants them, forgotten for others."
    )
    streams_forgotten: int = counter(
        "Publishers on a topic, with nothing open, of whom it was forgotten how far they are."
    )
    rendezvous_forgotten: int = counter(
        "Topics whose rendezvous point was forgotten: publications look for it anew."
    )
    repairs_asked: int = counter("Repair requests sent for gaps.")
    topics_announced: int = counter(
        "Topics entered in the catalogue, whose rendezvous point is or was here."
    )
    announcement_retries: int = counter("Announcements of topics to the catalogue sent again.")
    runs_unreadable: int = counter(
        "Runs of events that this broker had to look into and could not read; readers that may "
        "have wanted them are told."
    )
    inputs_failed: int = counter(
        "Frames of clients, brokers or managers that made this broker fail: a bug. The connection "
        "that they came on was ended."
    )
    frames_not_here: int = counter("Peer frames for a node that this broker does not host.")
    clock_jumps: int = counter("Times the clock went backwards or leapt ahead.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
