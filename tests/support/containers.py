"""Containers of the cores that are of no bounded type, by the reason why they cannot grow."""

from __future__ import annotations

# Of each: module, class and attribute.
BOUNDED_OTHERWISE: dict[str, str] = {
    "It is emptied after each input, or when the input has been dealt with.": """
        broker_agent.core.broker.Broker._effects
        broker_agent.core.broker.Broker._node_effects
        broker_agent.core.broker.Broker._to_publish
        broker_agent.core.delivery.SessionDelivery.slow
        broker_agent.core.delivery.SessionDelivery.touched
        broker_agent.core.node_hosting.NodeHosting.effects
        broker_agent.core.publishing.Publishing._touched
        broker_agent.core.readers.Readers._wants
        broker_agent.core.reception.Reception.effects
        broker_agent.core.reconfiguration.Reconfiguration.effects
        broker_agent.core.serving.Serving.published
        broker_agent.core.validation._Load._new
        overlay.effects.Outbox._frames
        overlay.peers.Directory._moved
        overlay.peers.Directory._reborn
        overlay.reader.ReadResult.parts
        overlay.replication.Replication._acks
        overlay.replication.Replication._confirmations
        overlay.trees.Trees._changes
        overlay.trees.Trees._own_changes
        overlay.trees.Trees._refreshes
    """,
    "It is as large as the message, run, file or setting that it is made from.": """
        broker_agent.core.access.Access._claiming
        broker_agent.core.advice.SelectionAdvice.clients
        broker_agent.core.advice.SelectionAdvice.topics
        broker_agent.core.delivery._Selection._attributes
        broker_agent.core.delivery._Selection._pieces
        broker_agent.core.identity.BrokerOptions.labels
        broker_agent.core.journal.Stored.cursors
        broker_agent.core.journal.Stored.own_cursors
        broker_agent.core.journal.Stored.pieces
        broker_agent.core.journal.Stored.sessions
        broker_agent.core.selection_settings.AdviceSettings.__pydantic_config__
        broker_agent.core.selection_settings.SelectionSettings.__pydantic_config__
        broker_agent.core.settings.CoreSettings.__pydantic_config__
        broker_agent.core.transfer.Transfer._due_s
        broker_agent.core.transfer.Transfer._incoming
        broker_agent.core.transfer.Transfer._outgoing
        broker_agent.runtime.links.Links.options
        overlay.geometry.RingGeometry._index
        overlay.place.PlaceChecks._seeds
        overlay.ring.Ring.seeds
        overlay.settings.OverlaySettings.__pydantic_config__
    """,
    (
        "An entry for each session or connection: core.sessions_max, core.unnamed_max, "
        "core.connections_max."
    ): """
        broker_agent.core.feeds.Feed.members
        broker_agent.core.following.Following._sessions
        broker_agent.core.gate.Gate._connected
        broker_agent.core.gate.Gate._connections
        broker_agent.core.gate.Gate._counted
        broker_agent.core.gate.Gate._due
        broker_agent.core.gate.Gate._waiting
        broker_agent.core.holding.Holding._connections
        broker_agent.core.journal.Changes.confirmed
        broker_agent.core.journal.Changes.removed
        broker_agent.core.journal.Changes.sessions
        broker_agent.core.journal.Changes.taken
        broker_agent.core.journal.SessionJournal._before
        broker_agent.core.journal.SessionJournal._changing
        broker_agent.core.journal.SessionJournal._first
        broker_agent.core.journal.SessionJournal._gone
        broker_agent.core.journal.SessionJournal._removing
        broker_agent.core.journal.SessionJournal._with_untold
        broker_agent.core.journal._Capture.records
        broker_agent.core.journal._Capture.serials
        broker_agent.core.logbook.Logbook._places
        broker_agent.core.reception.Reception._unnamed
        broker_agent.core.reception.Reception._unnamed_by_host
        broker_agent.core.registry.Registry._detached
        broker_agent.core.registry.Registry._turn
        broker_agent.core.registry.Registry.clients
        broker_agent.core.registry.Registry.connections
        broker_agent.core.serving.Serving._unread
        broker_agent.core.serving.Serving._waiting_for_others
        broker_agent.core.session_reports.SessionReports._names
        broker_agent.core.subscriptions.Subscriptions._names_left
        broker_agent.core.unsaved.Unsaved.queues
        broker_agent.core.unsaved.Unsaved.sessions
        broker_agent.runtime.agent.Agent._connections
        broker_agent.runtime.links.Links._unnamed
        broker_agent.runtime.narrating.Narrator._connected_s
    """,
    "An entry for each token of the tokens' file.": """
        broker_agent.core.gate.Gate._filters
        broker_agent.core.gate.Gate._paces
        broker_agent.core.gate.Gate._sessions
        broker_agent.core.gate.Gate._topics
    """,
    (
        "Within one session: filters_per_session_max, followed_topics_max, "
        "session_queue_*_max, session_answers_*_max."
    ): """
        broker_agent.core.confirming.UnconfirmedRequest.catalogue
        broker_agent.core.confirming.UnconfirmedRequest.held
        broker_agent.core.confirming.UnconfirmedRequest.missing
        broker_agent.core.confirming.UnconfirmedRequest.new
        broker_agent.core.journal.Changes.pieces
        broker_agent.core.sessions.Session._answers
        broker_agent.core.sessions.Session._marks
        broker_agent.core.sessions.Session._pieces
        broker_agent.core.sessions.Session._untold
        broker_agent.core.sessions.Session.filters
    """,
    ("Requests to subscribe: each is in a session that waits for it, and ends with it."): """
        broker_agent.core.confirming.Confirming._open
        broker_agent.core.confirming.Confirming.held
        broker_agent.core.confirming.Confirming.unsaved
        broker_agent.core.holding.Holding._held
        broker_agent.core.journal._Capture.confirmations
        broker_agent.core.subscriptions.Subscriptions._waiting
        broker_agent.core.subscriptions.Subscriptions._waiting_for_catalogue
    """,
    ("An entry for each topic that sessions here subscribe to, which their filters bound."): """
        broker_agent.core.delivery.SessionDelivery._passed_over
        broker_agent.core.feeds.FeedProgress._ahead
        broker_agent.core.feeds.FeedProgress._behind
        broker_agent.core.journal.Changes.cursors
        broker_agent.core.journal.Changes.own_cursors
        broker_agent.core.journal.SessionJournal._cursors
        broker_agent.core.journal.SessionJournal._own_cursors
        broker_agent.core.journal._Capture.cursors
        broker_agent.core.journal._Capture.own_cursors
        broker_agent.core.readers.Readers._topics
        broker_agent.core.reporting.Reporting._told
        broker_agent.core.summaries.LocalTopics.counts
        broker_agent.core.unsaved.Unsaved.topics
        overlay.interests.Interests._postponed
        overlay.interests.Interests._unsettled
        overlay.interests.Interests._wanted
        overlay.reader.TopicReader._parked
    """,
    (
        "An entry for each topic of this node's: forgotten when idle for "
        "overlay.topic_idle_s, and bounded for each token."
    ): """
        broker_agent.core.announcing.Announcing._open
        broker_agent.core.announcing.Announcing._topics
        broker_agent.core.announcing.Announcing._waiting
        broker_agent.core.gate.TopicsInUse._used_s
        overlay.reigns.Reigns._beats
        overlay.replication.Replication._in_range
        overlay.replication.Replication._unconfirmed
        overlay.replication.Replication._uncopied
        overlay.replication.Replication._unsent
        overlay.replication.Replication.copies
        overlay.retention.LogBudget._by_activity
        overlay.tree_requests.TreeRequests._complaint_due_s
        overlay.tree_requests.TreeRequests._orphans
        overlay.trees.Trees.topics
    """,
    "Names of the catalogue: overlay.catalogue_names_max.": """
        broker_agent.core.following.Following._unread
        broker_agent.core.subscriptions.Subscriptions._catalogue_terms
        broker_agent.core.following.TopicNames._root
        overlay.listing.Listing._parts
        overlay.listing._CataloguePart.asked
        overlay.listing._CataloguePart.remaining
        overlay.listing._CataloguePart.soon
        overlay.listing._CataloguePart.topics
    """,
    (
        "Events and publishers of one topic: overlay.log_events_max, log_bytes_max, publishers_max."
    ): """
        overlay.publishers.Publishers._windows
        overlay.topic_log.TopicLog.entries
    """,
    (
        "Brokers: overlay.peers_known_max, a finger each, or the members of one tree; "
        "the dead are dropped."
    ): """
        broker_agent.core.node_hosting.NodeHosting._forwards
        broker_agent.core.outcomes.Outcomes._committed
        broker_agent.core.summaries.Neighbour.sent_keys
        broker_agent.core.summaries.Neighbours._keyless
        broker_agent.core.summaries.Neighbours._known
        broker_agent.core.tallies.Tallies._takers
        broker_agent.runtime.narrating.Narrator._dead
        overlay.farewell.Farewell._askers
        overlay.farewell.Farewell._unconfirmed
        overlay.fingers.Fingers._fingers
        overlay.lookups.Lookups._pending
        overlay.peers.Directory._heard_s
        overlay.peers.Directory._peers
        overlay.peers.Liveness._watches
        overlay.ring.Ring.successors
        overlay.round_trips.RoundTrips._news
        overlay.round_trips.RoundTrips._open
        overlay.round_trips.RoundTrips._seconds
        overlay.routing.RoutingTable._distances
        overlay.routing.RoutingTable._peers
        overlay.copy_search.CopySearch._unanswered
        overlay.succession.Succession._claims
        overlay.succession.Succession._predecessors
        overlay.succession.Succession._searches
        overlay.tree_state.Edge._members
        overlay.tree_state.TopicTree.delegates
        overlay.tree_state.TopicTree.entrusted
        overlay.trees.Trees._children
        overlay.trees.Trees._parents
    """,
    "A bound of its own, kept where it is filled, and counted there.": """
        broker_agent.core.logbook.LogbookPage.publications
        broker_agent.core.logbook.LogbookPage.requests
        broker_agent.core.logbook.LogbookPage.sessions
        broker_agent.core.logbook.LogbookPage.subscriptions
        broker_agent.core.move_limits.MovedLately._at_s
        broker_agent.core.publishing.Publishing._busy
        broker_agent.core.publishing._PublisherStream.open
        broker_agent.runtime.http_server.HttpServer.requests
        broker_agent.runtime.links.Links._tasks
        broker_agent.runtime.links._Link._queue
        broker_agent.runtime.uplink.Uplink._frames
    """,
}
